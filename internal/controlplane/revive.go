// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"time"
)

const (
	// maxRestarts is the number of restarts that are permitted within restartWindow. The type restarts defines which restarts count.
	maxRestarts   = 8
	restartWindow = 5 * time.Minute
	// firstDelay is the delay before the first restart. It doubles with each further restart within the window, up to longestDelay.
	firstDelay   = 250 * time.Millisecond
	longestDelay = 10 * time.Second
)

// restarts are the times at which the child was restarted. They are cleared when the API becomes ready.
type restarts []time.Time

// next records a restart and returns how long to wait before it. It returns false if there were too many restarts within the window.
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

// watch restarts the child whenever it exits, until the context is done or the child cannot be restarted.
func (c *ControlPlane) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.child.done:
		}
		if err := c.revive(ctx); err != nil {
			if ctx.Err() == nil {
				c.failed <- err
			}
			return
		}
	}
}

// revive restarts the child, which has exited. It returns an error if the context is done or the child cannot be restarted.
func (c *ControlPlane) revive(ctx context.Context) error {
	c.opts.Progress(fmt.Sprintf("%s exited unexpectedly; restarting it (log %s)", program, c.dir.oldLog(program)))
	// On a full disk, the child exits after every start. Such exits do not count as failed restarts.
	full, err := c.awaitSpace(ctx)
	if err != nil {
		return err
	}
	var delay time.Duration
	if !full {
		var ok bool
		if delay, ok = c.restarts.next(time.Now()); !ok {
			return c.explain(fmt.Sprintf("exited %d times within %s and is not restarted again", maxRestarts+1, restartWindow))
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
		return c.restart(ctx)
	}
}

// restart starts the child again. If the start fails or the child has exited in the meantime, the next call of revive handles it.
func (c *ControlPlane) restart(ctx context.Context) error {
	started, err := startChild(c.dir, program, argv(c.assets, c.dir, c.port))
	if err != nil {
		c.opts.Progress(err.Error())
		return ctx.Err()
	}
	c.child = started
	err = c.waitReady(ctx, time.Now())
	if err == nil {
		c.restarts = nil
		c.opts.Progress(fmt.Sprintf("restarted %s (process %d); the API server is ready", program, started.record.PID))
	}
	if again := c.child.ended() || c.lacksSpace() != nil; again && ctx.Err() == nil {
		return nil
	}
	return err
}
