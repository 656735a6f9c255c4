// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a Kubernetes control plane for one user on one machine: the child process berth-apiserver, which contains etcd, the API server and
// the controllers that it needs, and listens on loopback only. It keeps all of its state in one directory, so that a second start finds everything again.
package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

const (
	// program is the name of the control plane's program, and of its log and pid file.
	program = "berth-apiserver"

	defaultReadyTimeout = 2 * time.Minute
	// adoptTimeout is how long a control plane of the previous run may take to respond, for example on a busy machine, before it is restarted.
	adoptTimeout = 20 * time.Second
	// stopGrace is the time between SIGTERM and SIGKILL.
	stopGrace = 20 * time.Second
	// readyPoll is how often the API is polled until it is ready.
	readyPoll = 50 * time.Millisecond
)

// Options configure a control plane.
type Options struct {
	// StateDir is the directory that contains everything that must survive a restart: data, keys, ports. It is created with mode 0700.
	StateDir string
	// Assets is the folder with berth-apiserver. If it is empty, findAssets searches for it.
	Assets string
	// Progress receives messages for the user, one line each, also after Start has returned. If Progress is nil, the messages are dropped.
	Progress func(line string)
	// ReadyTimeout bounds the wait until the API is ready. 0 means 2 minutes.
	ReadyTimeout time.Duration
}

// ControlPlane is a running control plane. It holds the lock of its state directory.
type ControlPlane struct {
	dir        layout
	opts       Options
	lock       *flock.Flock
	child      *child // nil before it has started
	kubeconfig []byte
	config     *rest.Config
	assets     string
	port       int // of the API
	failed     chan error

	// While the method watch runs, only its goroutine may use the fields child and restarts.
	restarts restarts
	watching sync.WaitGroup
	unwatch  context.CancelFunc
}

// Start locks the state directory. It starts the control plane, or adopts the one that a killed process left running. It returns when the API is ready. Before
// it returns an error, it stops the processes that it has started.
func Start(ctx context.Context, opts Options) (*ControlPlane, error) {
	setDefaults(&opts)
	assets, err := findAssets(opts.Assets)
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
	c := &ControlPlane{dir: dir, opts: opts, lock: held, assets: assets, failed: make(chan error, 1), unwatch: unwatch}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	c.watching.Go(func() { c.watch(watching) })
	c.watching.Go(func() { wait.UntilWithContext(watching, c.dir.boundLogs, 5*time.Second) })
	return c, nil
}

func setDefaults(opts *Options) {
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	opts.ReadyTimeout = cmp.Or(opts.ReadyTimeout, defaultReadyTimeout)
}

func (c *ControlPlane) start(ctx context.Context) error {
	identity, err := loadIdentity(c.dir)
	if err != nil {
		return err
	}
	left, err := findLeftover(c.dir)
	if err != nil {
		return err
	}
	if c.port, err = loadPort(c.dir); err != nil {
		return err
	}
	if c.adopt(ctx, left, identity) {
		return nil
	}
	if err := c.lacksSpace(); err != nil {
		return err
	}
	if err := c.endLeftover(left); err != nil {
		return err
	}
	if c.port, err = choosePort(c.dir, c.port); err != nil {
		return err
	}
	if err := identity.writeServing(c.dir); err != nil {
		return err
	}
	if err := c.setAccess(identity); err != nil {
		return err
	}
	return c.startChild(ctx)
}

// adopt takes over the child of a killed owner if the child is running, was started in the same way as this version would start it, and responds.
func (c *ControlPlane) adopt(ctx context.Context, left *child, identity *identity) bool {
	if left == nil || left.record.Fingerprint != fingerprint(argv(c.assets, c.dir, c.port)) {
		return false
	}
	if err := c.setAccess(identity); err != nil {
		return false
	}
	left.follow()
	c.child = left
	limited, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	if err := c.waitReady(limited, time.Now()); err != nil {
		c.opts.Progress("the control plane of the previous run does not respond; restarting it")
		return false
	}
	c.opts.Progress("the control plane is already running: " + c.config.Host)
	return true
}

// endLeftover stops the child of a killed owner; left is nil if there is none.
func (c *ControlPlane) endLeftover(left *child) error {
	if left == nil {
		return nil
	}
	c.opts.Progress(fmt.Sprintf("stopping %s (process %d), which an earlier run left running", left.name, left.record.PID))
	if left != c.child { // adopt already follows its child
		left.follow()
	}
	return left.stop(stopGrace)
}

func (c *ControlPlane) startChild(ctx context.Context) error {
	began := time.Now()
	var err error
	if c.child, err = startChild(c.dir, program, argv(c.assets, c.dir, c.port)); err != nil {
		return err
	}
	c.opts.Progress(fmt.Sprintf("started %s (process %d, log %s)", program, c.child.record.PID, c.dir.log(program)))
	err = c.waitReady(ctx, began)
	// A signal, such as that of the OOM killer, says nothing about the next start. A child that exits by itself would do so again.
	for err != nil && ctx.Err() == nil && c.child.ended() && c.child.killed {
		if err = c.revive(ctx); err == nil && c.child.ended() { // revive leaves a child that has exited again to its caller
			err = c.explain("exited before the API server was ready")
		}
	}
	if err != nil {
		return err
	}
	c.opts.Progress(fmt.Sprintf("the API server at %s is ready after %.1f s", c.config.Host, time.Since(began).Seconds()))
	return nil
}

// waitReady waits until the API server reports that it is ready. It returns an error immediately if the child exits before that.
func (c *ControlPlane) waitReady(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.ReadyTimeout)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	lastLine := time.Now()
	for {
		err := ready(ctx, c.config)
		if err == nil {
			return nil
		}
		if c.child.ended() {
			return c.explain("exited before the API server was ready")
		}
		if time.Since(lastLine) >= 5*time.Second {
			c.opts.Progress(fmt.Sprintf("still waiting for the API server, %.0f s", time.Since(began).Seconds()))
			lastLine = time.Now()
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("the API server was not ready after %s (%w): see %s", c.opts.ReadyTimeout, err, c.dir.log(program))
			}
			return fmt.Errorf("wait for the API server: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (c *ControlPlane) explain(what string) error {
	log := c.dir.log(program)
	if err := c.lacksSpace(); err != nil {
		return fmt.Errorf("%w; %s %s; its log is %s", err, program, what, log)
	}
	return fmt.Errorf("%s %s; the end of its log %s:\n%s", program, what, log, tail(log, 2048))
}

// Config returns a copy of the configuration for the administrator of this control plane.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the credentials of Config in the form of a kubeconfig. It contains a token: keep it private.
func (c *ControlPlane) Kubeconfig() []byte { return append([]byte(nil), c.kubeconfig...) }

// Failed returns a channel that receives an error when the control plane has exited and cannot be restarted.
func (c *ControlPlane) Failed() <-chan error { return c.failed }

// Stop stops the control plane: with SIGTERM first, and with SIGKILL after a grace period. It releases the state directory, and must be called once.
func (c *ControlPlane) Stop() error {
	c.endWatch()
	var err error
	if c.child != nil {
		err = c.child.stop(stopGrace)
	}
	return errors.Join(err, releaseLock(c.lock))
}

func (c *ControlPlane) endWatch() {
	c.unwatch()
	c.watching.Wait()
}
