// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command cluster creates a Kubernetes cluster with one node on this machine, for tests. It uses no registry and downloads only Go modules. The control plane,
// the scheduler and the kubelet are built from the pinned Kubernetes version and run on a separate containerd. Pods run for real.
//
//	cluster up                     create the cluster; do nothing if it is up
//	cluster image NAME PROGRAM...  create an image with static programs in /, and import it into the node
//	cluster stop PART              stop one process, such as kubelet or kube-apiserver, to test the behavior without it
//	cluster kill PART              kill one process, to simulate a crash
//	cluster start PART             start the process again, with the same configuration and ports
//	cluster logs                   print the end of the log of each process
//	cluster down                   stop the cluster and remove everything that it created
//
// BERTH_CLUSTER is the folder that contains all files of the cluster, including its kubeconfig (default /var/lib/berth-cluster). The exit code is 77 if this
// machine cannot run a node; the message names what is missing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// exitUnavailable is the exit code after which hack/cluster/test.sh skips the suites that need the cluster, and prints their names.
	exitUnavailable = 77
	// patience bounds one command.
	patience = 5 * time.Minute
)

// errUnavailable means that this machine cannot run a node.
var errUnavailable = errors.New("this machine cannot run a node")

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, enough := context.WithTimeout(ctx, patience)
	err := run(ctx, os.Args[1:])
	enough()
	cancel()
	switch {
	case errors.Is(err, errUnavailable):
		say("%v", err)
		os.Exit(exitUnavailable)
	case err != nil:
		say("%v", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	c, err := open()
	if err != nil {
		return err
	}
	switch {
	case len(args) == 1 && args[0] == "up":
		return c.up(ctx)
	case len(args) == 1 && args[0] == "down":
		return c.down(ctx)
	case len(args) == 1 && args[0] == "logs":
		say("%s", c.lastWords())
		return nil
	case len(args) > 2 && args[0] == "image":
		return c.image(ctx, args[1], args[2:])
	}
	ofParts := map[string]func(context.Context, string) error{"stop": c.stopPart, "kill": c.killPart, "start": c.startPart}
	if len(args) == 2 && ofParts[args[0]] != nil {
		return ofParts[args[0]](ctx, args[1])
	}
	return errors.New("usage: cluster up | cluster image NAME PROGRAM... | cluster stop PART | cluster kill PART | cluster start PART | cluster logs | cluster down")
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// cluster is the folder that contains all files of the cluster. Its base name is also the name of the cgroup of its Pods.
type cluster struct {
	dir    string
	assets string // folder with the Kubernetes binaries
}

func open() (*cluster, error) {
	dir, assets := os.Getenv("BERTH_CLUSTER"), os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		dir = "/var/lib/berth-cluster"
	}
	if assets == "" {
		assets = "bin"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", dir, err)
	}
	if filepath.Dir(dir) == dir || len(dir) > 60 {
		return nil, fmt.Errorf("BERTH_CLUSTER is %s; choose a separate folder with a path of at most 60 characters, because it contains sockets", dir)
	}
	assets, err = filepath.Abs(assets)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", assets, err)
	}
	return &cluster{dir: dir, assets: assets}, nil
}

func (c *cluster) path(names ...string) string {
	return filepath.Join(append([]string{c.dir}, names...)...)
}
func (c *cluster) group() string  { return filepath.Base(c.dir) }
func (c *cluster) socket() string { return c.path("containerd.sock") }
