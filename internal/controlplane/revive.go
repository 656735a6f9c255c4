// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"os"
	"time"
)

const (
	// A child is not restarted again after maxRestarts restarts within restartWindow in which the API did not become ready.
	maxRestarts   = 8
	restartWindow = 5 * time.Minute
	// The delay before a restart starts at firstDelay and doubles with each further restart within the window, up to longestDelay.
	firstDelay   = 250 * time.Millisecond
	longestDelay = 10 * time.Second
)

// restarts are the times at which a child was restarted. The times of etcd and kube-apiserver are cleared when the API becomes ready.
type restarts []time.Time

// next returns how long to wait before the next restart. It returns false if there were too many restarts within the window.
func (r *restarts) next(now time.Time) (time.Duration, bool) {
	var recent restarts
	for _, at := range *r {
		if now.Sub(at) < restartWindow {
			recent = append(recent, at)
		}
	}
	if len(recent) >= maxRestarts {
		return 0, false
	}
	*r = append(recent, now)
	return min(firstDelay<<len(recent), longestDelay), true
}

// watch restarts children that exit, and limits the size of their logs, until the context is done or a child cannot be restarted.
func (c *ControlPlane) watch(ctx context.Context) {
	defer close(c.watched)
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.children[0].done:
		case <-c.children[1].done:
		case <-c.children[2].done:
		case <-tick.C:
			for _, name := range names {
				boundLog(c.dir.log(name))
			}
			if err := c.compactIfLarge(ctx); err != nil && ctx.Err() == nil && !c.anyEnded() {
				c.opts.Progress(err.Error())
			}
			continue
		}
		if err := c.revive(ctx); err != nil {
			if ctx.Err() == nil {
				c.failed <- err
			}
			return
		}
	}
}

// revive restarts the first child that has exited, because the later ones depend on it. It returns an error if the context is done or the child cannot be
// restarted.
func (c *ControlPlane) revive(ctx context.Context) error {
	for i, gone := range c.children {
		if !gone.ended() {
			continue
		}
		c.opts.Progress(fmt.Sprintf("%s exited unexpectedly; restarting it (log %s)", gone.name, c.dir.oldLog(gone.name)))
		// On a full disk children exit after every start. That does not count as a failed restart.
		full, err := c.awaitSpace(ctx)
		if err != nil {
			return err
		}
		var delay time.Duration
		if !full {
			var ok bool
			if delay, ok = c.restarts[i].next(time.Now()); !ok {
				return c.explain(gone, fmt.Sprintf("exited %d times within %s and is not restarted again", maxRestarts+1, restartWindow))
			}
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
		return c.restart(ctx, i)
	}
	return nil
}

// restart starts a child again. If the start fails or another child has exited in the meantime, the next call of revive handles it.
func (c *ControlPlane) restart(ctx context.Context, i int) error {
	name := names[i]
	// Keep the log of the exited child: the new child truncates the file. A rename needs no space on a full disk.
	_ = os.Rename(c.dir.log(name), c.dir.oldLog(name))
	started, err := startChild(c.dir, name, argv(name, c.assets, c.dir, c.used))
	if err != nil {
		c.opts.Progress(err.Error())
		return ctx.Err()
	}
	c.children[i] = started
	if name == nameControllerManager {
		return nil
	}
	if name == nameEtcd {
		c.compactBeforeReady(ctx, started)
	}
	// The controller manager exits if the API is not ready, so no other child is restarted before the API is.
	err = c.waitReady(ctx, time.Now())
	if err == nil {
		c.restarts[0], c.restarts[1] = nil, nil // an API that is ready proves that both work
		c.opts.Progress(fmt.Sprintf("restarted %s (process %d); the API server is ready", name, started.record.PID))
	}
	if again := c.anyEnded() || c.lacksSpace() != nil; again && ctx.Err() == nil {
		return nil
	}
	return err
}

func (c *ControlPlane) anyEnded() bool {
	for _, child := range c.children {
		if child.ended() {
			return true
		}
	}
	return false
}

func sleep(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
