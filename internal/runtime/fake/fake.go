// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fake is an in-memory runtime for tests: its processes start, exit and ignore signals as a test requests, and its calls fail where a test
// injects faults.
package fake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/eventqueue"
)

// Node is the name of the machine that the processes appear to run on.
const Node = "fake-node"

// Runtime keeps processes in memory. Create one with New.
type Runtime struct {
	runtime.Local
	runtime.NoLogs
	runtime.NoTerminals
	runtime.NoInspection

	clock  clock.PassiveClock
	events *eventqueue.Queue

	mu         sync.Mutex
	nextPID    int64
	workloads  map[types.UID]*workload
	calls      []Call
	faults     []fault
	violations []string
	programs   map[string]Program
	imitate    func(command []string) (Program, bool)
	unguarded  bool
	looks      map[types.UID]int
}

// workload is the state of one UID.
type workload struct {
	name         string
	newest       int64
	incarnations map[int64]*incarnation
	results      runtime.Results
	display      display
}

type incarnation struct {
	facts.Incarnation
	process runtime.Process
	program Program
}

// Program is the behavior of a process.
type Program struct {
	// Held keeps the process in phase Starting until Run is called.
	Held bool
	// Exit makes the process exit as soon as it runs.
	Exit *facts.Exit
	// StartError makes the execution of the program fail.
	StartError *facts.StartError
	// IgnoreStop makes the process ignore Stop.
	IgnoreStop bool
	// DeferStops is how many calls of Stop are deferred.
	DeferStops int
}

var _ runtime.Runtime = (*Runtime)(nil)

// New returns an empty runtime that reads the time from c. It delivers events until the context ends.
func New(ctx context.Context, c clock.PassiveClock) *Runtime {
	r := &Runtime{
		clock:     c,
		events:    eventqueue.New(),
		nextPID:   1000,
		workloads: map[types.UID]*workload{},
		programs:  map[string]Program{},
		looks:     map[types.UID]int{},
	}
	go r.events.Run(ctx.Done())
	return r
}

// Program sets the behavior of processes that are started after this call and whose Process.Command begins with command, or is empty if command is "". By
// default, a process runs until Stop or Kill.
func (r *Runtime) Program(command string, program Program) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.programs[command] = program
}

// Imitate sets a function that derives the behavior of a process from its whole command. It is not called for commands whose behavior was set with Program.
func (r *Runtime) Imitate(how func(command []string) (program Program, known bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.imitate = how
}

// Start implements runtime.Runtime.
func (r *Runtime) Start(_ context.Context, p runtime.Process) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.call(Call{Verb: Start, UID: p.UID, Incarnation: p.Incarnation}, func() error { return r.start(p) })
}

func (r *Runtime) start(p runtime.Process) error {
	w := r.workloads[p.UID]
	if w == nil {
		w = &workload{incarnations: map[int64]*incarnation{}}
		r.workloads[p.UID] = w
	}
	if w.incarnations[p.Incarnation] != nil {
		return nil
	}
	if err := r.guard(w, p); err != nil {
		return err
	}
	before := w.ended()
	maps.DeleteFunc(w.incarnations, func(_ int64, i *incarnation) bool { return !i.Alive() })
	w.newest, w.name = p.Incarnation, p.Name
	i := &incarnation{process: p, program: r.behaviour(p.Command)}
	i.Incarnation = facts.Incarnation{UID: string(p.UID), Number: p.Incarnation, Name: p.Name, Phase: facts.Starting, Containment: "Cgroup", Origin: p.Origin}
	i.Before = before
	w.incarnations[p.Incarnation] = i
	r.effect(Call{Verb: Start, UID: p.UID, Incarnation: p.Incarnation})
	if !i.program.Held {
		r.run(i)
	}
	r.events.Add(p.UID)
	return nil
}

// ended returns the exit of the newest incarnation; nil if it has not exited.
func (w *workload) ended() *facts.Ended {
	newest := w.incarnations[w.newest]
	if newest == nil || newest.Phase != facts.Exited {
		return nil
	}
	return &facts.Ended{Number: newest.Number, Exit: *newest.Exit}
}

// Capabilities implements runtime.Runtime.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Terminals: r, Inspection: r, Results: r, KeepsOrigin: true, KeepsPreviousExit: true}
}

// behaviour returns the behavior that was set with Program, or else the behavior that the function set with Imitate returns, or else the default.
func (r *Runtime) behaviour(command []string) Program {
	if program, set := r.programs[first(command)]; set {
		return program
	}
	if r.imitate != nil {
		if program, known := r.imitate(command); known {
			return program
		}
	}
	return Program{}
}

// first returns the program that a command names, or "" for the entrypoint of an image.
func first(command []string) string {
	if len(command) == 0 {
		return ""
	}
	return command[0]
}

// guard rejects the starts that every backend must reject. A test disables it with Unguarded to show that the caller does not rely on these checks.
func (r *Runtime) guard(w *workload, p runtime.Process) error {
	if r.unguarded {
		return nil
	}
	if p.Incarnation < w.newest {
		return fmt.Errorf("start incarnation %d of %s: %w", p.Incarnation, p.Name, runtime.ErrStale)
	}
	for number, older := range w.incarnations {
		if older.Alive() {
			return fmt.Errorf("start incarnation %d of %s while %d lives: %w", p.Incarnation, p.Name, number, runtime.ErrOldAlive)
		}
	}
	return nil
}

// run executes the program.
func (r *Runtime) run(i *incarnation) {
	if i.program.StartError != nil {
		i.Phase, i.StartError = facts.Failed, i.program.StartError
		return
	}
	r.nextPID++
	i.Phase, i.Node, i.PID, i.StartTicks, i.BootID = facts.Running, Node, r.nextPID, r.nextPID*100, "fake-boot"
	i.StartedAt = r.clock.Now()
	if i.program.Exit != nil {
		r.exit(i, *i.program.Exit)
	}
}

func (r *Runtime) exit(i *incarnation, exit facts.Exit) {
	if exit.FinishedAt.IsZero() {
		exit.FinishedAt = r.clock.Now()
	}
	i.Phase, i.Exit, i.LeaderExit = facts.Exited, &exit, nil
}

// Stop implements runtime.Runtime. The stop signal terminates the process, unless its program ignores that signal.
func (r *Runtime) Stop(_ context.Context, uid types.UID, number int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := Call{Verb: Stop, UID: uid, Incarnation: number}
	return r.call(call, func() error {
		i := r.alive(uid, number)
		if i == nil {
			return nil
		}
		r.effect(call)
		if i.program.DeferStops > 0 {
			if i.program.DeferStops--; !i.StopDeferred {
				r.events.Add(uid)
			}
			i.StopDeferred = true
			return nil
		}
		i.StopDeferred = false
		i.StopSent = true
		if !i.program.IgnoreStop {
			r.exit(i, facts.Exit{Known: true, Signal: i.process.StopSignal})
		}
		r.events.Add(uid)
		return nil
	})
}

// Kill implements runtime.Runtime.
func (r *Runtime) Kill(_ context.Context, uid types.UID, number int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := Call{Verb: Kill, UID: uid, Incarnation: number}
	return r.call(call, func() error {
		if i := r.alive(uid, number); i != nil {
			r.effect(call)
			r.exit(i, facts.Exit{Known: true, Signal: "SIGKILL"})
			r.events.Add(uid)
		}
		return nil
	})
}

func (r *Runtime) alive(uid types.UID, number int64) *incarnation {
	if w := r.workloads[uid]; w != nil {
		if i := w.incarnations[number]; i != nil && i.Alive() && i.Phase != facts.Unknown {
			return i
		}
	}
	return nil
}

// Observe implements runtime.Runtime.
func (r *Runtime) Observe(_ context.Context, uid types.UID) (found []facts.Incarnation, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks[uid]++
	err = r.call(Call{Verb: Observe, UID: uid}, func() error {
		if w := r.workloads[uid]; w != nil {
			found = w.list()
		}
		return nil
	})
	return found, err
}

// List implements runtime.Runtime.
func (r *Runtime) List(context.Context) (found []facts.Incarnation, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.call(Call{Verb: List}, func() error {
		for _, w := range r.workloads {
			found = append(found, w.list()...)
		}
		slices.SortFunc(found, func(a, b facts.Incarnation) int {
			return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Number, b.Number))
		})
		return nil
	})
	return found, err
}

// list returns copies, because callers use them without the lock.
func (w *workload) list() []facts.Incarnation {
	found := make([]facts.Incarnation, 0, len(w.incarnations))
	for _, i := range w.incarnations {
		found = append(found, i.Incarnation)
	}
	return found
}

// Forget implements runtime.Runtime.
func (r *Runtime) Forget(_ context.Context, uid types.UID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := Call{Verb: Forget, UID: uid}
	return r.call(call, func() error {
		w := r.workloads[uid]
		if w == nil {
			return nil
		}
		for number, i := range w.incarnations {
			if i.Alive() {
				return fmt.Errorf("forget %s: incarnation %d is still alive", w.name, number)
			}
		}
		delete(r.workloads, uid)
		r.effect(call)
		return nil
	})
}

// Events implements runtime.Runtime.
func (r *Runtime) Events() <-chan types.UID { return r.events.C() }
