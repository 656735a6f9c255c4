// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// step is one event in the life of an object. After each step the object must come to rest.
type step struct {
	name string
	do   func(*world)
}

// scenario is the life of one object.
var scenario = []step{
	{"create", (*world).create},
	{"restart", func(w *world) { w.change(func(s *v1alpha1.ProcessSpec) { s.RestartToken = "one" }) }},
	{"crash", func(w *world) { w.rt.Exit(uid, facts.Exit{Known: true, Code: 3}) }},
	{"five minutes without a failure", func(w *world) { w.clock.SetTime(w.clock.Now().Add(5 * time.Minute)) }},
	{"crash after that", func(w *world) { w.rt.Exit(uid, facts.Exit{Known: true, Code: 4}) }},
	{"change", func(w *world) {
		w.change(func(s *v1alpha1.ProcessSpec) { s.Process.Command = []string{"serve", "--more"} })
	}},
	{"stop", func(w *world) { w.change(func(s *v1alpha1.ProcessSpec) { s.State = v1alpha1.StateStopped }) }},
	{"start", func(w *world) { w.change(func(s *v1alpha1.ProcessSpec) { s.State = v1alpha1.StateRunning }) }},
	{"command not found, so the process keeps running", func(w *world) {
		w.rt.Program("broken", fake.Program{StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program"}})
		w.change(func(s *v1alpha1.ProcessSpec) { s.Process.Command = []string{"broken"} })
	}},
	{"stop after that", func(w *world) { w.change(func(s *v1alpha1.ProcessSpec) { s.State = v1alpha1.StateStopped }) }},
	{"start, and the command is not found", func(w *world) { w.change(func(s *v1alpha1.ProcessSpec) { s.State = v1alpha1.StateRunning }) }},
	{"corrected, with a program that ignores SIGTERM", func(w *world) {
		w.rt.Program("stubborn", fake.Program{IgnoreStop: true})
		w.change(func(s *v1alpha1.ProcessSpec) { s.Process.Command = []string{"stubborn"} })
	}},
	{"two requests at once", func(w *world) {
		w.change(func(s *v1alpha1.ProcessSpec) { s.RestartToken = "two" })
		w.change(func(s *v1alpha1.ProcessSpec) { s.RestartToken = "three" })
	}},
	{"delete", func(w *world) { w.Expect(w.api.Delete(w.ctx, w.read())).To(Succeed()); w.recordState() }},
}

// outcome is the part of the state after a step that must be the same with and without faults.
type outcome struct {
	Step string
	// Status is a description of the status without times and PIDs.
	Status string
	Starts int
	Live   []int64
}

// runScenario runs the scenario with one leader at a time. Every fault crashes the leader, and a newly started leader replaces it.
func (w *world) runScenario() []outcome {
	w.t.Helper()
	// Disable the check in the runtime, so that only the reconciler prevents a second incarnation.
	w.rt.Unguarded()
	reconciler := w.newReconciler(0)
	return w.runScenarioWith(func(step string) { reconciler = w.reconcileToRest(step, reconciler) })
}

// runScenarioWith runs the scenario. After the event of each step it calls toRest, which reconciles until the object is at rest.
func (w *world) runScenarioWith(toRest func(step string)) []outcome {
	w.t.Helper()
	outcomes := make([]outcome, 0, len(scenario))
	before := 0 // steps that were complete before the fault
	for i, step := range scenario {
		if last := i == len(scenario)-1; !last && w.faultOccurred && i > before+1 {
			continue // the step of the fault and the next step are complete; the remaining steps would not differ, so skip to the last one
		}
		step.do(w)
		toRest(step.name)
		if !w.faultOccurred {
			before = i + 1
		}
		outcomes = append(outcomes, w.outcome(step.name))
		w.expectNoWrites(step.name)
	}
	w.Expect(w.rt.Violations()).To(BeEmpty())
	w.Expect(w.rt.Known()).To(BeEmpty(), "no incarnation may remain in the runtime")
	return outcomes
}

// reconcileToRest reconciles until the object is at rest, and returns the current leader.
func (w *world) reconcileToRest(step string, reconciler *process.Reconciler) *process.Reconciler {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		writes, acts := w.writes, w.acts
		result, err := reconciler.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		switch {
		case err != nil:
			w.Expect(err).To(MatchError(errFault), step)
			reconciler = w.newReconciler(0)
		case w.writes != writes || w.acts != acts:
			// The object or a process has changed: reconcile again, as an event would trigger.
		case w.lagged[0]:
			// A stale cache becomes current, which triggers another reconcile.
		case atRest(w.read()):
			return reconciler
		default:
			w.passTime(result)
		}
		if w.faults.newLeaderPerReconcile && !w.kind.asynchronous {
			// The adapter of an asynchronous kind runs its probes, so a new leader for each reconcile would never receive their results.
			reconciler = w.newReconciler(0)
		}
	}
	w.t.Fatalf("%s: did not come to rest: %s", step, describe(w.read()))
	return nil
}

// expectNoWrites checks that a newly started leader with a current cache writes nothing and changes nothing in the runtime.
func (w *world) expectNoWrites(step string) {
	w.t.Helper()
	saved := w.faults
	w.faults = faults{}
	defer func() { w.faults = saved }()
	writes, acts := w.writes, w.acts
	for range 2 {
		_, err := w.newReconciler(0).Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		w.Expect(err).NotTo(HaveOccurred(), step)
	}
	w.Expect(w.acts).To(Equal(acts), "%s: a second reconcile must not act", step)
	w.Expect(w.writes).To(Equal(writes), "%s: a second reconcile must not write", step)
	// Restore the counts, because the calls of this leader must not shift the call numbers of the faults.
	w.writes, w.acts = writes, acts
}

func (w *world) outcome(step string) outcome {
	return outcome{Step: step, Status: describe(w.read()), Starts: w.rt.Count(uid, fake.Start), Live: w.rt.Live(uid)}
}

// describe formats the part of an object's state that must be the same with and without faults.
func describe(object process.Object) string {
	if object == nil {
		return "gone"
	}
	s := object.GetProcessStatus()
	text := fmt.Sprintf("generation %d of %d, incarnation %d, restarts %d, tokens %q %q, failures %d, finalizers %v, session %s",
		s.ObservedGeneration, object.GetGeneration(), s.Incarnation, s.RestartCount, s.ObservedRestartToken, s.ObservedResetToken,
		s.Failures, object.GetFinalizers(), object.GetLabels()[v1alpha1.LabelSession])
	if s.LastExit != nil {
		text += fmt.Sprintf("; last exit %d %s", s.LastExit.Incarnation, s.LastExit.Reason)
	}
	if s.Stopping != nil {
		text += fmt.Sprintf("; stopping %d", s.Stopping.Incarnation)
	}
	if s.Process != nil {
		text += fmt.Sprintf("; process %d", s.Process.Incarnation)
	}
	for _, condition := range s.Conditions {
		text += fmt.Sprintf("\n%s=%s %s", condition.Type, condition.Status, condition.Reason)
	}
	return text
}

// baseline describes a run without faults: its outcomes and the numbers of writes, acts and cache reads.
type baseline struct {
	outcomes            []outcome
	writes, acts, reads int
}

func runBaseline(t *testing.T, s kindUnderTest) baseline {
	t.Helper()
	w := newWorld(t, s, faults{lag: func(int) int { return 0 }})
	r := baseline{outcomes: w.runScenario()}
	r.writes, r.acts, r.reads = w.writes, w.acts, w.reads
	w.Expect(r.writes).To(BeNumerically(">", 20), "the scenario must be complete")
	w.Expect(r.outcomes[len(r.outcomes)-1].Starts).To(Equal(9))
	return r
}

func (r baseline) compare(t *testing.T, got []outcome) {
	t.Helper()
	var want []outcome
	for _, o := range r.outcomes {
		present := slices.ContainsFunc(got, func(g outcome) bool { return g.Step == o.Step })
		if present && len(got) < len(r.outcomes) && o.Step == scenario[len(scenario)-1].name {
			o.Starts = got[len(got)-1].Starts // the number of starts differs because steps were skipped
		}
		if present {
			want = append(want, o)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differs from the run without faults (-without +with):\n%s", diff)
	}
}
