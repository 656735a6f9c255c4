// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command gohello is a dev server written in Go. It listens on $PORT and exits on SIGINT or SIGTERM.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, os.Getenv("PORT")); err != nil {
		fmt.Fprintln(os.Stderr, "gohello:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, port string) error {
	if port == "" {
		return errors.New("the variable PORT is not set")
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	started := time.Now()
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "Hello from a dev server written in Go: pid %d, up for %s.\n", os.Getpid(), time.Since(started).Round(time.Second))
		}),
	}
	go func() {
		<-ctx.Done()
		deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		// Connections that are still open after the deadline are closed when the program exits.
		_ = server.Shutdown(deadline)
	}()
	fmt.Printf("Listening on http://%s/\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
