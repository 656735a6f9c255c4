// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func (a *app) openCommand() *cobra.Command {
	flags, port := &connectionFlags{}, int32(0)
	command := &cobra.Command{
		Use:   "open devserver/NAME",
		Short: "Print an address at which you can reach a dev server",
		Long: "Open prints the address of a dev server. If the dev server runs in a Pod, open prints an address on this machine instead, and forwards requests\n" +
			"from there through the API server until you press Ctrl-C, also across restarts of the dev server.\n" +
			"Forwarding needs permission for services/proxy, which the role edit grants. The address only serves this machine. Its clients use your\n" +
			"permissions, for this dev server only. The API server does not forward the header Authorization.",
		Example: "  # Print the address of a dev server\n" +
			"  berth open devserver/web\n\n" +
			"  # Forward port 8080 of this machine to a dev server in a Pod\n" +
			"  berth open devserver/web --port 8080",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			return a.open(command.Context(), flags, args[0], port)
		},
	}
	flags.add(command)
	command.Flags().Int32Var(&port, "port", 0, "port on this machine for a dev server in a Pod; 0 selects a free port")
	return command
}

func (a *app) open(ctx context.Context, flags *connectionFlags, word string, port int32) error {
	ref, to, err := a.reach(ctx, flags, word)
	if err != nil {
		return err
	}
	object, err := to.get(ctx, ref)
	if err != nil {
		return err
	}
	dev, is := object.(*v1alpha1.DevServer)
	switch {
	case !is:
		return fmt.Errorf("%s is not a dev server: use berth attach for a terminal, or berth lsp connect for a language server", ref)
	case dev.Status.URL == "":
		return fmt.Errorf("%s has no address yet: see berth status %s", ref, ref)
	case !inPod(dev):
		_, _ = fmt.Fprintln(a.out, clean(dev.Status.URL))
		return nil
	}
	address, err := url.Parse(dev.Status.URL)
	if err != nil {
		return fmt.Errorf("read the address of %s: %w", ref, err)
	}
	handler, err := forward(to.config, dev.Namespace, address)
	if err != nil {
		return err
	}
	return a.serveOpen(ctx, ref, handler, port)
}

// closeTime is how long requests may continue after Ctrl-C.
const closeTime = time.Second

// Limits for clients of berth open, the same as those of the proxies of DevServers.
const (
	openHeaderTime  = 10 * time.Second
	openIdleTime    = 2 * time.Minute
	openHeaderBytes = 64 << 10
)

// serveOpen serves handler on 127.0.0.1 until the context is done.
func (a *app) serveOpen(ctx context.Context, ref reference, handler http.Handler, port int32) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("open %s: %w; choose another --port", ref, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: openHeaderTime, IdleTimeout: openIdleTime, MaxHeaderBytes: openHeaderBytes}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	_, _ = fmt.Fprintf(a.out, "http://%s/\n", listener.Addr())
	a.say("forwarding this address to %s; press Ctrl-C to stop", ref)
	select {
	case <-ctx.Done():
	case err := <-served:
		return fmt.Errorf("open %s: %w", ref, err)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	_ = server.Shutdown(ending)
	_ = server.Close()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
