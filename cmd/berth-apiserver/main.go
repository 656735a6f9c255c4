// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth-apiserver is a Kubernetes control plane without Pods, in one process: etcd, the generic API server of Kubernetes, and the controllers that finish
// the deletion of namespaces, collect garbage, count quotas and aggregate roles. berth up runs it. It listens on 127.0.0.1 only; etcd listens on a Unix socket in
// the state directory.
//
// It is a separate module, because k8s.io/kubernetes and etcd would otherwise be in the module graph of every program that imports the API types of Berth.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	_ "k8s.io/component-base/metrics/prometheus/workqueue" // registers the metrics of work queues
)

func main() {
	closeOnExec()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go boundMemory(ctx)
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "berth-apiserver:", err)
		os.Exit(1)
	}
}

// options contains the values of the flags. Secrets are passed in files, because every user of the machine can read a command line.
type options struct {
	// dir is the state directory. The process changes to it, because the path of a Unix socket has at most 107 characters.
	dir string
	// port is the port of the API on 127.0.0.1.
	port int
	// quota limits the database file of etcd, in bytes.
	quota int64
}

func (o options) pki(name string) string { return filepath.Join(o.dir, "pki", name) }

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("berth-apiserver", flag.ContinueOnError)
	flags.StringVar(&o.dir, "state-dir", "", "directory with the subdirectories pki (keys, certificates and tokens, created by berth up) and etcd (the database)")
	flags.IntVar(&o.port, "port", 0, "port of the API on 127.0.0.1")
	flags.Int64Var(&o.quota, "etcd-quota-bytes", 512<<20, "maximum size of the database file in bytes; etcd rejects writes beyond it")
	if err := flags.Parse(args); err != nil {
		return o, fmt.Errorf("command line: %w", err)
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.dir == "":
		return o, errors.New("--state-dir is required; berth up sets it")
	case o.quota < 1:
		return o, fmt.Errorf("--etcd-quota-bytes must be positive, not %d", o.quota)
	case o.port < 1 || o.port > 65535:
		return o, fmt.Errorf("--port must be between 1 and 65535, not %d", o.port)
	}
	var err error
	o.dir, err = filepath.Abs(o.dir)
	return o, err
}

// run serves the API until the context is done. It stops the API server before etcd.
func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	syscall.Umask(0o077) // only the owner may use the files and the socket
	if err := os.Chdir(o.dir); err != nil {
		return fmt.Errorf("enter the state directory: %w", err)
	}
	database, err := startEtcd(ctx, o)
	if err != nil {
		return err
	}
	defer database.Close()
	keeping, stop := context.WithCancel(ctx)
	defer stop() // before etcd is closed
	go func() {
		// The API server cannot shut down in order without etcd. berth up starts this process again.
		if err := database.keep(keeping); err != nil {
			fmt.Fprintln(os.Stderr, "berth-apiserver:", err)
			os.Exit(1)
		}
	}()
	return serve(ctx, o)
}
