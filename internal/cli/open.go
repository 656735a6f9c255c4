// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/devproxy"
	"github.com/berth-dev/berth/internal/lsp/transport"
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
		ValidArgsFunction: a.completeReferences(flags, kinds),
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

// forward returns a handler that forwards requests to the Service at address through the API server. The handler reaches nothing else in the cluster.
func forward(config *rest.Config, namespace string, address *url.URL) (http.Handler, error) {
	base, transport, err := upgradable(config)
	if err != nil {
		return nil, err
	}
	prefix := proxyPath(base, namespace, address)
	f := &forwarding{base: base, prefix: prefix}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: f.rewrite, Transport: transport, ModifyResponse: f.relocate, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "Cannot reach the API server: "+err.Error(), http.StatusBadGateway)
		},
	}
	return f, nil
}

// upgradable returns the URL of an API server and a transport on which a request can be upgraded, to a WebSocket or to the stream of a language server.
func upgradable(config *rest.Config) (*url.URL, http.RoundTripper, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the API server %s: %w", config.Host, err)
	}
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the API server %s: %w", config.Host, err)
	}
	return base, transport, nil
}

// forwarding forwards requests to one Service through an API server.
type forwarding struct {
	base   *url.URL
	prefix string // of the path on the API server
	proxy  *httputil.ReverseProxy
}

// ServeHTTP forwards a request to the Service. It rejects requests from web pages of other sites, which must not use the rights of the user: see
// devproxy.CheckHost.
func (f *forwarding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := devproxy.CheckHost(r, nil); err != nil {
		http.Error(w, "Forbidden: "+err.Error()+". This address only serves this machine: use 127.0.0.1 or localhost.", http.StatusForbidden)
		return
	}
	if slices.Contains(strings.Split(r.URL.Path, "/"), "..") {
		http.Error(w, "The path must not contain '..'.", http.StatusBadRequest)
		return
	}
	f.proxy.ServeHTTP(w, r)
}

// rewrite converts a request from a browser into a request to the API server. It removes the credentials of the browser; the transport adds those of the user.
func (f *forwarding) rewrite(r *httputil.ProxyRequest) {
	for name := range r.Out.Header {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			r.Out.Header.Del(name)
		}
	}
	path, raw := f.strip(r.In.URL.Path), f.strip(r.In.URL.EscapedPath())
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = f.base.Scheme, f.base.Host, ""
	r.Out.URL.Path, r.Out.URL.RawPath = f.prefix+path, f.prefix+raw
	r.Out.URL.RawQuery = r.In.URL.RawQuery
}

// relocate removes the prefix that the API server added to the path in a Location header.
func (f *forwarding) relocate(response *http.Response) error {
	location, err := url.Parse(response.Header.Get("Location"))
	if err == nil && location.Path != f.strip(location.Path) {
		location.Scheme, location.Host, location.User = "", "", nil
		location.Path, location.RawPath = f.strip(location.Path), ""
		response.Header.Set("Location", location.String())
	}
	return nil
}

// strip removes the prefix from a path. The API server adds the prefix to the links in pages.
func (f *forwarding) strip(path string) string {
	if rest, found := strings.CutPrefix(path, f.prefix); found && (rest == "" || rest[0] == '/') {
		return "/" + strings.TrimPrefix(rest, "/")
	}
	return path
}

// multiplexer connects to the multiplexer of a language server in a Pod through the API server. endpoint is the address of the multiplexer in the cluster.
func (c *connection) multiplexer(ctx context.Context, namespace, endpoint string) (net.Conn, error) {
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("read the endpoint of the language server: %w", err)
	}
	service, _, _ := strings.Cut(at.Hostname(), ".")
	secret := &corev1.Secret{}
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: service}, secret); err != nil {
		return nil, fmt.Errorf("read the token of the language server: %w", err)
	}
	base, client, err := upgradable(c.config)
	if err != nil {
		return nil, err
	}
	through := *base
	through.Path = proxyPath(base, namespace, at) + at.Path
	return transport.Through(ctx, client, &through, strings.TrimSpace(string(secret.Data[transport.ClientToken])))
}

// proxyPath returns the path under which the API server forwards requests to the Service at address.
func proxyPath(base *url.URL, namespace string, address *url.URL) string {
	service, _, _ := strings.Cut(address.Hostname(), ".")
	return strings.TrimSuffix(base.Path, "/") + "/api/v1/namespaces/" + namespace + "/services/" + address.Scheme + ":" + service + ":" + address.Port() + "/proxy"
}
