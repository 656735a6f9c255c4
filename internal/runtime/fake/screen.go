// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/internal/terminal"
)

// display is the terminal of a workload: its content, its last activity, how often it was read and inspected, and the child processes of its program.
type display struct {
	text      string
	size      runtime.Terminal
	input     facts.Input
	told      signals.Tracker
	active    time.Time
	read      int
	inspected int
	watched   bool
	members   []runtime.Member
}

// Show sets the content of the terminal of a started UID. It emits an event if the UID is watched.
func (r *Runtime) Show(uid types.UID, text string) {
	r.with(uid, func(w *workload) {
		w.display.text, w.display.active = text, r.clock.Now()
		if w.display.watched {
			w.display.watched = false
			r.events.Add(uid)
		}
	})
}

// Print writes output without text to the terminal of a started UID, such as a title. It emits an event if the UID is watched.
func (r *Runtime) Print(uid types.UID, output string) {
	r.with(uid, func(w *workload) {
		w.display.active = r.clock.Now()
		w.display.told.Note([]byte(output), r.clock.Now())
		if w.display.watched {
			w.display.watched = false
			r.events.Add(uid)
		}
	})
}

// Resize sets the size of the terminal of a started UID, as an attached client does. It emits no event.
func (r *Runtime) Resize(uid types.UID, size runtime.Terminal) {
	r.with(uid, func(w *workload) { w.display.size = size })
}

// Reads sets how the started program of a UID reads its terminal from now on. It emits no event.
func (r *Runtime) Reads(uid types.UID, input facts.Input) {
	r.with(uid, func(w *workload) { w.display.input = input })
}

// Spawn adds processes to the started program of a UID.
func (r *Runtime) Spawn(uid types.UID, members ...runtime.Member) {
	r.with(uid, func(w *workload) { w.display.members = append(w.display.members, members...) })
}

// Captured returns how often the terminal of a UID was read.
func (r *Runtime) Captured(uid types.UID) (times int) {
	r.with(uid, func(w *workload) { times = w.display.read })
	return times
}

// Inspected returns how often the programs in the foreground of the terminal of a UID were inspected.
func (r *Runtime) Inspected(uid types.UID) (times int) {
	r.with(uid, func(w *workload) { times = w.display.inspected })
	return times
}

// LastActivity implements runtime.Logs.
func (r *Runtime) LastActivity(_ context.Context, uid types.UID) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[uid]; w != nil && !w.display.active.IsZero() {
		return w.display.active, nil
	}
	return time.Time{}, runtime.ErrNotFound
}

// Watch implements runtime.Logs.
func (r *Runtime) Watch(_ context.Context, uid types.UID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workloads[uid]
	if w == nil {
		return runtime.ErrNotFound
	}
	w.display.watched = true
	return nil
}

// Capture implements runtime.Terminals. The cursor is at the end of the text.
func (r *Runtime) Capture(_ context.Context, uid types.UID) (terminal.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workloads[uid]
	if w == nil {
		return terminal.View{}, runtime.ErrNotFound
	}
	w.display.read++
	drawn := terminal.New(int(w.display.size.Columns), int(w.display.size.Rows))
	_, _ = drawn.Write([]byte(strings.ReplaceAll(w.display.text, "\n", "\r\n")))
	return drawn.View(), nil
}

// Input implements runtime.Terminals.
func (r *Runtime) Input(_ context.Context, uid types.UID) (facts.Input, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[uid]; w != nil {
		w.display.inspected++
		return w.display.input, nil
	}
	return facts.Input{}, runtime.ErrNotFound
}

// Told implements runtime.Terminals.
func (r *Runtime) Told(_ context.Context, uid types.UID) (facts.Signals, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[uid]; w != nil {
		return w.display.told.Signals(), nil
	}
	return facts.Signals{}, runtime.ErrNotFound
}

// Size implements runtime.Terminals.
func (r *Runtime) Size(_ context.Context, uid types.UID) (runtime.Terminal, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[uid]; w != nil {
		return w.display.size, nil
	}
	return runtime.Terminal{}, runtime.ErrNotFound
}

// Members implements runtime.Inspection.
func (r *Runtime) Members(_ context.Context, uid types.UID) ([]runtime.Member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workloads[uid]
	if w == nil || w.incarnations[w.newest] == nil || !w.incarnations[w.newest].Alive() {
		return nil, nil
	}
	i := w.incarnations[w.newest]
	program := runtime.Member{PID: i.PID, Name: first(i.process.Command)}
	return append([]runtime.Member{program}, slices.Clone(w.display.members)...), nil
}
