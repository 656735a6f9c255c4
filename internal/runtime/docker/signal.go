// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const defaultStopSignal = "SIGTERM"

// Stop implements runtime.Runtime. It does nothing for a container that was never started.
func (r *Runtime) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	err := r.end(ctx, uid, incarnation, func(ctx context.Context, e *entry, c *container.InspectResponse, newest bool) error {
		if !isAlive(c.State.Status) {
			return nil
		}
		if r.defersStop(ctx, e, incarnation, c) {
			return nil
		}
		signal := cmp.Or(c.Config.StopSignal, defaultStopSignal)
		if newest {
			signal = cmp.Or(e.record.StopSignal, signal)
			e.record.StopSignal, e.record.StopSent = signal, true
			if err := r.save(e); err != nil {
				e.record.StopSent = false
				return err
			}
		}
		if err := r.send(ctx, c, signal); err != nil {
			if newest { // the next call sends the signal
				e.record.StopSent = false
				err = errors.Join(err, r.save(e))
			}
			return err
		}
		e.deferred = deferral{}
		// A process stopped by SIGSTOP handles no signal until it is resumed.
		return r.send(ctx, c, "SIGCONT")
	})
	if err != nil {
		return fmt.Errorf("stop incarnation %d of %s: %w", incarnation, uid, err)
	}
	return nil
}

// deferMost is how long Stop sends no signal to a container whose init program does not start the program. Some engines never list a second process.
const deferMost = 5 * time.Second

// deferral is since when the stop of an incarnation is deferred. A new manager defers it again.
type deferral struct {
	incarnation int64
	since       time.Time
}

// defersStop reports whether the stop signal must be sent later, because the init program of the container would lose it.
func (r *Runtime) defersStop(ctx context.Context, e *entry, incarnation int64, c *container.InspectResponse) bool {
	if r.receives(ctx, c) {
		return false
	}
	if e.deferred.incarnation != incarnation {
		e.deferred = deferral{incarnation, time.Now()}
		r.events.Add(e.uid) // Observe now reports StopDeferred
	}
	return time.Since(e.deferred.since) < deferMost
}

// receives reports whether the program of a container can receive a signal: its init program has started it. The engine reports the container as running before
// that, and the kernel discards a signal that the init program does not handle yet, because it is PID 1 of the container.
func (r *Runtime) receives(ctx context.Context, c *container.InspectResponse) bool {
	if c.State.Paused || c.HostConfig == nil || !ptr.Deref(c.HostConfig.Init, false) {
		return true
	}
	top, err := r.client.ContainerTop(ctx, c.ID, client.ContainerTopOptions{Arguments: []string{"-eo", "pid"}})
	return err != nil || len(top.Processes) > 1 // if the processes cannot be listed, the signal is sent nevertheless
}

// Kill implements runtime.Runtime. It removes a container that was created but not started, so that no later call can start the container.
func (r *Runtime) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	err := r.end(ctx, uid, incarnation, func(ctx context.Context, e *entry, c *container.InspectResponse, newest bool) error {
		if c.State.Status == container.StateCreated && !e.record.Adopted {
			r.remove(ctx, c.ID)
			return nil
		}
		if !isAlive(c.State.Status) {
			return nil
		}
		if newest {
			e.record.KillSent = true
			if err := r.save(e); err != nil {
				return err
			}
		}
		return r.send(ctx, c, "SIGKILL")
	})
	if err != nil {
		return fmt.Errorf("kill incarnation %d of %s: %w", incarnation, uid, err)
	}
	return nil
}

// end calls the function act with the container of one incarnation, if that container exists. If its image is still being pulled, end cancels the pull instead.
func (r *Runtime) end(ctx context.Context, uid types.UID, incarnation int64,
	act func(context.Context, *entry, *container.InspectResponse, bool) error) error {
	ctx, e, release, err := r.acquireFor(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	all, err := r.list(ctx, uid)
	if err != nil {
		return err
	}
	e.merge(all)
	if e.pull != nil && e.record.Incarnation == incarnation {
		e.pull.cancel()
		return nil
	}
	id, newest := "", e.record.Incarnation == incarnation
	if newest {
		id = e.record.Container
	}
	for _, c := range all {
		if id == "" && number(c.Labels) == incarnation {
			id = c.ID
		}
	}
	if id == "" {
		return nil
	}
	c, err := r.inspect(ctx, id)
	if err != nil || c == nil {
		return err
	}
	return act(ctx, e, c, newest)
}

// send sends a signal to a container. It returns nil if the container has exited meanwhile.
func (r *Runtime) send(ctx context.Context, c *container.InspectResponse, signal string) error {
	if c.State.Paused {
		if _, err := r.client.ContainerUnpause(ctx, c.ID, client.ContainerUnpauseOptions{}); err != nil && !ended(err) {
			return r.explain("unpause the container, so that it receives the signal", err)
		}
		c.State.Paused = false
	}
	if _, err := r.client.ContainerKill(ctx, c.ID, client.ContainerKillOptions{Signal: signal}); err != nil && !ended(err) {
		return r.explain("send "+signal, err)
	}
	return nil
}

// ended reports whether an error means that the container is not running.
func ended(err error) bool { return cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) }
