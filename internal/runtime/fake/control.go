// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// Verb is a method of the runtime.
type Verb string

// The methods whose calls can be counted or made to fail.
const (
	Start   Verb = "Start"
	Stop    Verb = "Stop"
	Kill    Verb = "Kill"
	Observe Verb = "Observe"
	List    Verb = "List"
	Forget  Verb = "Forget"
)

// Call is a call that had an effect on a process.
type Call struct {
	Verb        Verb
	UID         types.UID
	Incarnation int64
}

// fault is the error that the next call of a verb returns.
type fault struct {
	verb Verb
	err  error
	// done means that the call takes effect before it returns err, as if the response were lost.
	done bool
}

// Fail makes the next call of the verb fail without an effect.
func (r *Runtime) Fail(verb Verb, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fault{verb: verb, err: err})
}

// LoseAnswer makes the next call of the verb take effect and still return err.
func (r *Runtime) LoseAnswer(verb Verb, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fault{verb: verb, err: err, done: true})
}

// Unguarded disables the checks of the method guard: a start of an old incarnation, and a start while another incarnation is alive, then succeed. The method
// Violations reports UIDs with two living incarnations.
func (r *Runtime) Unguarded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unguarded = true
}

// call carries out a call by running do. If a test has set a fault for the verb of c, call removes the fault and returns the error of the fault; in that case
// it runs do only if fault.done is true.
func (r *Runtime) call(c Call, do func() error) error {
	at := slices.IndexFunc(r.faults, func(f fault) bool { return f.verb == c.Verb })
	if at < 0 {
		return do()
	}
	f := r.faults[at]
	r.faults = slices.Delete(r.faults, at, at+1)
	if f.done {
		_ = do() // this result is lost
	}
	return f.err
}

// effect records a call that had an effect, and checks for violations.
func (r *Runtime) effect(c Call) {
	r.calls = append(r.calls, c)
	w := r.workloads[c.UID]
	if w == nil {
		return
	}
	var living []int64
	for number, i := range w.incarnations {
		if i.Alive() {
			living = append(living, number)
		}
	}
	if len(living) > 1 {
		r.violations = append(r.violations, fmt.Sprintf("%s: incarnations %v are alive at the same time", w.name, living))
	}
}

// Effects returns the calls that had an effect on a UID. It omits repeated calls without an effect.
func (r *Runtime) Effects(uid types.UID) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var calls []Call
	for _, c := range r.calls {
		if c.UID == uid {
			calls = append(calls, c)
		}
	}
	return calls
}

// Count returns how often a verb had an effect on a UID.
func (r *Runtime) Count(uid types.UID, verb Verb) int {
	n := 0
	for _, c := range r.Effects(uid) {
		if c.Verb == verb {
			n++
		}
	}
	return n
}

// Looks returns how often Observe was called for a UID.
func (r *Runtime) Looks(uid types.UID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.looks[uid]
}

// Violations returns the observed violations: two living incarnations of one UID.
func (r *Runtime) Violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.violations)
}

// Live returns the numbers of the living incarnations of a UID.
func (r *Runtime) Live(uid types.UID) []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var living []int64
	if w := r.workloads[uid]; w != nil {
		for number, i := range w.incarnations {
			if i.Alive() {
				living = append(living, number)
			}
		}
	}
	slices.Sort(living)
	return living
}

// Known returns the UIDs for which the runtime still has state.
func (r *Runtime) Known() []types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.workloads))
}

// Process returns what the newest incarnation of a UID was started with.
func (r *Runtime) Process(uid types.UID) (runtime.Process, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.newest(uid); i != nil {
		return i.process, true
	}
	return runtime.Process{}, false
}

// Exit makes the newest incarnation of a UID exit, if it is alive.
func (r *Runtime) Exit(uid types.UID, exit facts.Exit) {
	r.change(uid, func(i *incarnation) {
		if i.Alive() {
			r.exit(i, exit)
		}
	})
}

// Run executes a program that Program.Held keeps in phase Starting.
func (r *Runtime) Run(uid types.UID) {
	r.change(uid, func(i *incarnation) {
		if i.Phase == facts.Starting {
			r.run(i)
		}
	})
}

// Lose sets the newest incarnation to phase Unknown, until Find is called.
func (r *Runtime) Lose(uid types.UID, message string) {
	r.change(uid, func(i *incarnation) { i.Phase, i.Message = facts.Unknown, message })
}

// Find sets the newest incarnation, which Lose has set to Unknown, to phase Running.
func (r *Runtime) Find(uid types.UID) {
	r.change(uid, func(i *incarnation) { i.Phase, i.Message = facts.Running, "" })
}

// LeaderExit makes the program of the newest incarnation exit while other processes of its tree stay alive.
func (r *Runtime) LeaderExit(uid types.UID, exit facts.Exit) {
	r.change(uid, func(i *incarnation) { i.Incarnation.LeaderExit = &exit })
}

// Announce sends a UID on Events although nothing has changed.
func (r *Runtime) Announce(uid types.UID) { r.events.Add(uid) }

func (r *Runtime) change(uid types.UID, do func(*incarnation)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.newest(uid); i != nil {
		do(i)
		r.events.Add(uid)
	}
}

// with calls the function do with the state of a UID, if there is any.
func (r *Runtime) with(uid types.UID, do func(*workload)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[uid]; w != nil {
		do(w)
	}
}

func (r *Runtime) newest(uid types.UID) *incarnation {
	if w := r.workloads[uid]; w != nil {
		return w.incarnations[w.newest]
	}
	return nil
}
