// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-dev/berth/internal/runtime"
)

const (
	reconnectFirst = 100 * time.Millisecond
	reconnectMost  = 5 * time.Second
)

// engine is what the engine has reported about itself.
type engine struct {
	name string // host name of the engine's machine
	init bool   // docker-init is available
	// ahead is the clock of the engine minus the clock of this machine; 0 if they differ by less than sameClock.
	ahead time.Duration
}

// sameClock is the difference between two clocks that the duration of a request can explain.
const sameClock = 2 * time.Second

// local converts a time of the engine to the clock of this machine, with which the caller compares it. The engine may run on another machine.
func (r *Runtime) local(t time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.engine == nil || t.IsZero() {
		return t
	}
	return t.Add(-r.engine.ahead)
}

// ask queries the identity and the clock of the engine.
func (r *Runtime) ask(ctx context.Context) (*engine, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	answer, err := r.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, time.Time{}, r.explain("query the Docker Engine", err)
	}
	info := answer.Info
	e := &engine{name: info.Name, init: info.InitCommit.ID != "N/A"} // N/A if docker-init is missing, empty if the engine does not report it
	now, err := time.Parse(time.RFC3339Nano, info.SystemTime)
	if err != nil {
		now = time.Now()
	}
	if ahead := time.Until(now); ahead.Abs() >= sameClock {
		e.ahead = ahead
	}
	r.mu.Lock()
	r.engine = e
	r.mu.Unlock()
	return e, now, nil
}

// theEngine returns the cached identity of the engine, and queries it if necessary.
func (r *Runtime) theEngine(ctx context.Context) (*engine, error) {
	r.mu.Lock()
	e := r.engine
	r.mu.Unlock()
	if e != nil {
		return e, nil
	}
	e, _, err := r.ask(ctx)
	return e, err
}

// explain wraps an error of a request. If the engine does not respond, the message includes how to correct that.
func (r *Runtime) explain(what string, err error) error {
	if client.IsErrConnectionFailed(err) || cerrdefs.IsUnavailable(err) {
		return fmt.Errorf("%s: %w", what, &runtime.UnavailableError{
			Message: fmt.Sprintf("the Docker Engine at %s does not respond; start it, or correct DOCKER_HOST", r.client.DaemonHost()), Err: err})
	}
	return fmt.Errorf("%s: %w", what, err)
}

// follow follows the events of the engine until the runtime is closed, and reconnects when the connection is lost.
func (r *Runtime) follow() {
	wait := reconnectFirst
	for r.Lifetime().Err() == nil {
		connected, err := r.stream()
		if r.Lifetime().Err() != nil {
			return
		}
		if connected {
			wait = reconnectFirst
			r.log.Info("Lost the connection to the Docker Engine", "host", r.client.DaemonHost(), "err", fmt.Sprint(err))
		}
		wait = pause(r.Lifetime(), wait, reconnectMost)
	}
}

// stream forwards container events until the connection is lost.
func (r *Runtime) stream() (connected bool, err error) {
	ctx, cancel := context.WithCancel(r.Lifetime())
	defer cancel()
	_, now, err := r.ask(ctx)
	if err != nil {
		return false, err
	}
	// The engine responds before its event listener is registered, so also request the events of the preceding second. The method wake finds earlier changes.
	since := now.Add(-time.Second)
	impatience := time.AfterFunc(lookTimeout, cancel)
	stream := r.client.Events(ctx, client.EventsListOptions{
		Since:   fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond()),
		Filters: client.Filters{}.Add("type", string(events.ContainerEventType)),
	})
	if !impatience.Stop() {
		return false, fmt.Errorf("follow the events of the Docker Engine: no response within %s", lookTimeout)
	}
	r.Go(func() { r.wake(ctx) })
	for {
		select {
		case message := <-stream.Messages:
			if uid := r.owner(message); uid != "" {
				r.events.Add(uid)
			}
		case err := <-stream.Err:
			return true, err
		}
	}
}

// owner returns the UID that an event is about, or "" if the event does not change an incarnation.
func (r *Runtime) owner(message events.Message) types.UID {
	switch message.Action {
	case events.ActionCreate, events.ActionStart, events.ActionDie, events.ActionDestroy, events.ActionPause, events.ActionUnPause, events.ActionOOM:
	default:
		return ""
	}
	if message.Actor.Attributes[labelInstall] == r.install {
		return types.UID(message.Actor.Attributes[LabelUID])
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.adopted[message.Actor.ID]
}

// wake reads the state of every known UID, because anything may have changed while the connection was lost.
func (r *Runtime) wake(ctx context.Context) {
	uids := sets.New(r.entries.UIDs()...)
	if all, err := r.list(ctx, ""); err == nil {
		for _, c := range all {
			uids.Insert(types.UID(c.Labels[LabelUID]))
		}
	}
	for uid := range uids {
		_, _ = r.Observe(ctx, uid) // continues copying the output, even if no other caller observes the UID
		r.events.Add(uid)
	}
}
