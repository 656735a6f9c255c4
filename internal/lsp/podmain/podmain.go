// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podmain implements berth-lsp-pod, the multiplexer of a language server as the main process of a Pod, with connections over the network. It is a
// separate program so that multiplexers on hosts, one for each server, need no memory for TLS and HTTP.
package podmain

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/daemon"
	"github.com/berth-dev/berth/internal/lsp/transport"
)

// Name is the file name of the program in the directory that --install copies it to, Source its name in the image of Berth.
const (
	Name   = "berth-lsp"
	Source = "berth-lsp-pod"
)

// Main runs berth-lsp-pod and returns its exit code.
func Main(args []string) int {
	var p place
	flags := flag.NewFlagSet(Source, flag.ContinueOnError)
	flags.StringVar(&p.Address, "listen", "", "address to listen on for clients and the manager")
	flags.StringVar(&p.Keys, "keys", "", "directory of the certificate and the tokens")
	flags.StringVar(&p.State, "state", "", "file that stores the state")
	install := flags.String("install", "", "copy this program into a directory, for another container, and exit")
	if err := flags.Parse(args[1:]); err != nil {
		return 2
	}
	switch {
	case flags.NArg() == 0 && *install != "":
		return daemon.Until(func(context.Context) error { return installInto(*install) })
	case flags.NArg() == 0 && p.Address != "" && p.Keys != "" && p.State != "":
		return daemon.Until(func(ctx context.Context) error { return run(ctx, p, os.Stderr) })
	}
	fmt.Fprintln(os.Stderr, "berth-lsp-pod is started by berth, not by hand: it requires --listen, --keys and --state, or --install")
	return 2
}

// mostState is the maximum size of the termination message that a kubelet keeps, in bytes.
const mostState = 4096

// place contains the address and the files of the multiplexer.
type place struct {
	// Address is the listen address, Keys the directory in which the Secret of the multiplexer is mounted.
	Address, Keys string
	// State is the termination message file, whose content the kubelet reports after the container has exited for any reason.
	State string
}

// run serves managers and clients from the network until a manager sends Quit or the context ends. When the context ends, run stops the server before it
// returns.
func run(ctx context.Context, p place, stderr *os.File) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", p.Address)
	if err != nil {
		return fmt.Errorf("listen for clients and the manager: %w", err)
	}
	clients, managers := transport.Open(listener, p.Keys)
	return daemon.Serve(ctx, clients, managers, func(report lsp.Report) error { return lastWords(p.State, report) }, stderr)
}

// lastWords overwrites a file with a report that is shortened to mostState. It must not replace the file, because the kubelet reads the file that it has
// mounted.
func lastWords(path string, report lsp.Report) error {
	text, err := json.Marshal(report)
	if err == nil && len(text) > mostState {
		report.Message, report.ServerName, report.ServerVersion = "", "", ""
		if report.StartError != nil {
			report.StartError = &facts.StartError{Reason: report.StartError.Reason, Message: "see the log of the Pod"}
		}
		text, err = json.Marshal(report)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// installInto copies the running program into a directory that another container shares.
func installInto(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	from, err := os.Open(self)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	defer func() { _ = from.Close() }()
	// The other container may run as any user, and that user must be able to execute the file.
	to, err := os.OpenFile(filepath.Join(dir, Name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755) //nolint:gosec // see above
	if err != nil {
		return fmt.Errorf("install this program: %w", err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("install this program: %w", err)
	}
	return nil
}
