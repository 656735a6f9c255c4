// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a Kubernetes control plane for one user on one machine: etcd, kube-apiserver and kube-controller-manager as child processes that
// listen on loopback only. It keeps all of its state in one directory, so that a second start finds everything again.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
)

const (
	nameEtcd              = "etcd"
	nameAPIServer         = "kube-apiserver"
	nameControllerManager = "kube-controller-manager"

	defaultReadyTimeout = 2 * time.Minute
	defaultStopGrace    = 10 * time.Second
)

// names lists the children in the order in which they start. They stop in reverse order, so that etcd outlives kube-apiserver.
var names = []string{nameEtcd, nameAPIServer, nameControllerManager}

// Options configure a control plane.
type Options struct {
	// StateDir contains everything that must survive a restart: data, keys, ports. It is created with mode 0700.
	StateDir string
	// Assets is the folder with the binaries. Empty: see FindAssets.
	Assets string
	// Progress is called with readable lines, also after Start has returned. If it is nil, the lines are dropped.
	Progress func(line string)
	// ReadyTimeout bounds the wait until the API is ready. 0 means 2 minutes.
	ReadyTimeout time.Duration
	// StopGrace is the time between SIGTERM and SIGKILL for each child. 0 means 10 seconds.
	StopGrace time.Duration
}

// ControlPlane is a running control plane. It holds the lock of its state directory.
type ControlPlane struct {
	dir        layout
	opts       Options
	lock       *lock
	children   []*child // in the order of names
	kubeconfig []byte
	config     *rest.Config
	assets     string
	used       ports
	failed     chan error

	// The goroutine of watch owns children and restarts while it runs.
	restarts [3]restarts // in the order of names
	watching bool
	unwatch  context.CancelFunc
	watched  chan struct{} // closed when watch has returned
}

// Start locks the state directory. It starts the control plane, or adopts the one that a killed process left running. It returns when the API is ready. Before
// it returns an error, it stops the processes that it has started.
func Start(ctx context.Context, opts Options) (*ControlPlane, error) {
	setDefaults(&opts)
	assets, err := FindAssets(opts.Assets)
	if err != nil {
		return nil, err
	}
	dir, err := makeLayout(opts.StateDir)
	if err != nil {
		return nil, err
	}
	held, err := takeLock(dir.root)
	if err != nil {
		return nil, err
	}
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	c := &ControlPlane{dir: dir, opts: opts, lock: held, assets: assets, failed: make(chan error, 1), unwatch: unwatch, watched: make(chan struct{})}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	c.watching = true
	go c.watch(watching)
	return c, nil
}

func setDefaults(opts *Options) {
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	if opts.ReadyTimeout == 0 {
		opts.ReadyTimeout = defaultReadyTimeout
	}
	if opts.StopGrace == 0 {
		opts.StopGrace = defaultStopGrace
	}
}

func (c *ControlPlane) start(ctx context.Context) error {
	identity, err := loadIdentity(c.dir)
	if err != nil {
		return err
	}
	leftovers, err := findLeftovers(c.dir)
	if err != nil {
		return err
	}
	if c.used, err = loadPorts(c.dir); err != nil {
		return err
	}
	if c.adopt(ctx, leftovers, identity) {
		return nil
	}
	if err := c.lacksSpace(); err != nil {
		return err
	}
	if err := c.endLeftovers(leftovers); err != nil {
		return err
	}
	if c.used, err = choosePorts(c.dir, c.used); err != nil {
		return err
	}
	if err := identity.writeServing(c.dir); err != nil {
		return err
	}
	if err := c.setAccess(identity, c.used); err != nil {
		return err
	}
	return c.startChildren(ctx)
}

// adopt takes over the children of a killed owner if all of them are running, were started the way this version would start them, and respond.
func (c *ControlPlane) adopt(ctx context.Context, leftovers map[string]*child, identity *identity) bool {
	for _, name := range names {
		left := leftovers[name]
		if left == nil || left.record.Fingerprint != fingerprint(argv(name, c.assets, c.dir, c.used)) {
			return false
		}
	}
	if err := c.setAccess(identity, c.used); err != nil {
		return false
	}
	probe, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := ready(probe, c.config); err != nil {
		c.opts.Progress("the control plane of the previous run does not respond; restarting it")
		return false
	}
	for _, name := range names {
		left := leftovers[name]
		left.follow()
		c.children = append(c.children, left)
	}
	c.opts.Progress("the control plane is already running: " + c.config.Host)
	return true
}

func (c *ControlPlane) endLeftovers(leftovers map[string]*child) error {
	for i := len(names) - 1; i >= 0; i-- {
		left := leftovers[names[i]]
		if left == nil {
			continue
		}
		c.opts.Progress(fmt.Sprintf("stopping %s (process %d), which an earlier run left running", left.name, left.record.PID))
		left.follow()
		if err := left.stop(c.opts.StopGrace); err != nil {
			return err
		}
	}
	return nil
}

func (c *ControlPlane) startChildren(ctx context.Context) error {
	began := time.Now()
	for _, name := range names {
		started, err := startChild(c.dir, name, argv(name, c.assets, c.dir, c.used))
		if err != nil {
			return err
		}
		c.children = append(c.children, started)
		c.opts.Progress(fmt.Sprintf("started %s (process %d, log %s)", name, started.record.PID, c.dir.log(name)))
		if name == nameEtcd {
			c.compactBeforeReady(ctx, started)
		}
		// The controller manager exits if the API is not ready soon, so it is started last.
		if name == nameAPIServer {
			if err := c.waitReady(ctx, began); err != nil {
				return err
			}
		}
	}
	c.opts.Progress(fmt.Sprintf("the API server at %s is ready after %.1f s", c.config.Host, time.Since(began).Seconds()))
	return nil
}

// waitReady waits until the API server reports that it is ready. It returns an error immediately if etcd or the API server exits before that.
func (c *ControlPlane) waitReady(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.ReadyTimeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	lastLine := time.Now()
	for {
		err := ready(ctx, c.config)
		if err == nil {
			return nil
		}
		for _, child := range c.children[:min(len(c.children), 2)] { // the API does not need the controller manager
			if child.ended() {
				return c.explain(child, "exited before the API server was ready")
			}
		}
		if time.Since(lastLine) >= 5*time.Second {
			c.opts.Progress(fmt.Sprintf("still waiting for the API server, %.0f s", time.Since(began).Seconds()))
			lastLine = time.Now()
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("the API server was not ready after %s (%w): see %s", c.opts.ReadyTimeout, err, c.dir.log(nameAPIServer))
			}
			return fmt.Errorf("waiting for the API server: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (c *ControlPlane) explain(gone *child, what string) error {
	if err := c.lacksSpace(); err != nil {
		return fmt.Errorf("%w; %s %s; its log is %s", err, gone.name, what, c.dir.log(gone.name))
	}
	return fmt.Errorf("%s %s; the end of its log %s:\n%s", gone.name, what, c.dir.log(gone.name), tail(c.dir.log(gone.name), 2048))
}

// Config returns a copy of the configuration for the administrator of this control plane.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the credentials of Config in the form of a kubeconfig. It contains a token: keep it private.
func (c *ControlPlane) Kubeconfig() []byte { return append([]byte(nil), c.kubeconfig...) }

// Failed returns a channel that receives an error when a child has exited and cannot be restarted.
func (c *ControlPlane) Failed() <-chan error { return c.failed }

// Stop stops the controller manager, then kube-apiserver, then etcd: with SIGTERM first, and with SIGKILL after StopGrace. It releases the state directory, and
// must be called once.
func (c *ControlPlane) Stop() error {
	c.endWatch()
	var errs []error
	for i := len(c.children) - 1; i >= 0; i-- {
		if err := c.children[i].stop(c.opts.StopGrace); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, c.lock.release())...)
}

func (c *ControlPlane) endWatch() {
	c.unwatch()
	if c.watching {
		<-c.watched
	}
}

// abandon leaves the children running, as if this process had been killed. It is for tests.
func (c *ControlPlane) abandon() error {
	c.endWatch()
	return c.lock.release()
}
