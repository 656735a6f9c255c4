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
	// A child that was restarted maxRestarts times within restartWindow, and with which the API never got ready, is given up.
	maxRestarts   = 8
	restartWindow = 5 * time.Minute
	// The first restart waits for firstDelay, and each further one in the window twice as long, up to longestDelay.
	firstDelay   = 250 * time.Millisecond
	longestDelay = 10 * time.Second
)

// restarts are the times at which one child was restarted; those of etcd and kube-apiserver, since the API was ready.
type restarts []time.Time

// next returns how long to wait before the next restart. It returns false if there were too many within the window.
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

// watch restarts children that end, and keeps their logs small, until the context ends or a child cannot be brought back.
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

// revive restarts the first child that has ended: the later ones need it. It returns an error if the context ends or the child cannot be brought back.
func (c *ControlPlane) revive(ctx context.Context) error {
	for i, gone := range c.children {
		if !gone.ended() {
			continue
		}
		c.opts.Progress(fmt.Sprintf("%s ended unexpectedly; restarting it (log %s)", gone.name, c.dir.oldLog(gone.name)))
		// On a full disk children exit after every start; that is no reason to give up.
		full, err := c.awaitSpace(ctx)
		if err != nil {
			return err
		}
		var delay time.Duration
		if !full {
			var ok bool
			if delay, ok = c.restarts[i].next(time.Now()); !ok {
				return c.explain(gone, fmt.Sprintf("ended %d times within %s, the last time", maxRestarts+1, restartWindow))
			}
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
		return c.restart(ctx, i)
	}
	return nil
}

// restart starts a child again. That it cannot be started, or others have ended meanwhile, is left to the next call of revive.
func (c *ControlPlane) restart(ctx context.Context, i int) error {
	name := names[i]
	// The next child starts a new log. A rename needs no space on a full disk.
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
	// The controller manager ends if the API does not answer, so nothing else is restarted before it does.
	err = c.waitReady(ctx, time.Now())
	if err == nil {
		c.restarts[0], c.restarts[1] = nil, nil // an API that is ready proves both
		c.opts.Progress(fmt.Sprintf("restarted %s (process %d); the API answers", name, started.record.PID))
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
