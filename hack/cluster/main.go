// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command cluster makes a Kubernetes cluster of one node on this machine, without a registry and without downloads beyond Go modules: a control
// plane, a scheduler and a kubelet from the pinned Kubernetes, over a containerd of its own. Pods really run on it. For tests.
//
//	cluster up                     make it, or do nothing when it is there
//	cluster image NAME PROGRAM...  make an image of static programs, which are in / of it, and give it to the node
//	cluster stop PART              end one of its processes, such as kubelet or kube-apiserver, to see what holds without it
//	cluster kill PART              the same, at once, as a crash does
//	cluster start PART             start it again; the others have not noticed where it was
//	cluster logs                   print the ends of the logs of its processes
//	cluster down                   end it, and leave nothing
//
// BERTH_CLUSTER names the folder that holds all of it (default /var/lib/berth-cluster); its kubeconfig is in there.
// The exit code is 77 where a node cannot be made; what is missing is said.
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
	// exitUnavailable tells tests to leave out what needs the cluster, by name.
	exitUnavailable = 77
	// patience is how long making or ending may take.
	patience = 5 * time.Minute
)

// errUnavailable says that this machine cannot be a node.
var errUnavailable = errors.New("no cluster can be made here")

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

// cluster is the folder that everything is in. Its base name is also that of the cgroup of its Pods.
type cluster struct {
	dir    string
	assets string // where the programs of Kubernetes are
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
		return nil, fmt.Errorf("BERTH_CLUSTER is %s; name a folder of its own, in at most 60 characters, as sockets are in it", dir)
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
