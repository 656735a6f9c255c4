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

// chapter is one event in the life of an object. After each chapter the object must come to rest.
type chapter struct {
	name string
	do   func(*world)
}

// story is the life of one object.
var story = []chapter{
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
	{"command not found", func(w *world) {
		w.rt.Program("broken", fake.Program{StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program"}})
		w.change(func(s *v1alpha1.ProcessSpec) { s.Process.Command = []string{"broken"} })
	}},
	{"corrected, with a program that ignores SIGTERM", func(w *world) {
		w.rt.Program("stubborn", fake.Program{IgnoreStop: true})
		w.change(func(s *v1alpha1.ProcessSpec) { s.Process.Command = []string{"stubborn"} })
	}},
	{"two requests at once", func(w *world) {
		w.change(func(s *v1alpha1.ProcessSpec) { s.RestartToken = "two" })
		w.change(func(s *v1alpha1.ProcessSpec) { s.RestartToken = "three" })
	}},
	{"delete", func(w *world) { w.Expect(w.api.Delete(w.ctx, w.read())).To(Succeed()); w.remember() }},
}

// outcome is the part of the state after a chapter that must be the same with and without faults.
type outcome struct {
	Chapter string
	// Status is a description of the status without times and PIDs.
	Status string
	Starts int
	Live   []int64
}

// tell runs the story with one leader at a time. Every fault crashes the leader, and a newly started leader replaces it.
func (w *world) tell() []outcome {
	w.t.Helper()
	// Disable the check in the runtime, so that only the reconciler prevents a second incarnation.
	w.rt.Unguarded()
	reconciler := w.leader(0)
	return w.tellWith(func(chapter string) { reconciler = w.toRest(chapter, reconciler) })
}

// tellWith runs the story. After the event of each chapter it calls toRest, which reconciles until the object is at rest.
func (w *world) tellWith(toRest func(chapter string)) []outcome {
	w.t.Helper()
	outcomes := make([]outcome, 0, len(story))
	before := 0 // chapters that were complete before the fault
	for i, chapter := range story {
		if last := i == len(story)-1; !last && w.struck && i > before+1 {
			continue // the chapter of the fault and the next chapter are complete; the remaining chapters would not differ, so skip to the last one
		}
		chapter.do(w)
		toRest(chapter.name)
		if !w.struck {
			before = i + 1
		}
		outcomes = append(outcomes, w.outcome(chapter.name))
		w.writesNothing(chapter.name)
	}
	w.Expect(w.rt.Violations()).To(BeEmpty())
	w.Expect(w.rt.Known()).To(BeEmpty(), "no incarnation may remain in the runtime")
	return outcomes
}

// toRest reconciles until the object is at rest, and returns the current leader.
func (w *world) toRest(chapter string, reconciler *process.Reconciler) *process.Reconciler {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		writes, acts := w.writes, w.acts
		result, err := reconciler.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		switch {
		case err != nil:
			w.Expect(err).To(MatchError(errFault), chapter)
			reconciler = w.leader(0)
		case w.writes != writes || w.acts != acts:
			// The object or a process has changed: reconcile again, as an event would trigger.
		case w.lagged[0]:
			// A stale cache becomes current, which triggers another reconcile.
		case atRest(w.read()):
			return reconciler
		default:
			w.passTime(result)
		}
		if w.faults.forgetful && !w.subject.asynchronous {
			// The adapter of an asynchronous kind runs its probes, so a new leader for each reconcile would never receive their results.
			reconciler = w.leader(0)
		}
	}
	w.t.Fatalf("%s: did not come to rest: %s", chapter, describe(w.read()))
	return nil
}

// writesNothing checks that a newly started leader with a current cache writes nothing and changes nothing in the runtime.
func (w *world) writesNothing(chapter string) {
	w.t.Helper()
	undisturbed := w.faults
	w.faults = faults{}
	defer func() { w.faults = undisturbed }()
	writes, acts := w.writes, w.acts
	for range 2 {
		_, err := w.leader(0).Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		w.Expect(err).NotTo(HaveOccurred(), chapter)
	}
	w.Expect(w.acts).To(Equal(acts), "%s: a second reconcile must not act", chapter)
	w.Expect(w.writes).To(Equal(writes), "%s: a second reconcile must not write", chapter)
	// Restore the counts, because the calls of this leader must not shift the call numbers of the faults.
	w.writes, w.acts = writes, acts
}

func (w *world) outcome(chapter string) outcome {
	return outcome{Chapter: chapter, Status: describe(w.read()), Starts: w.rt.Count(uid, fake.Start), Live: w.rt.Live(uid)}
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

// reference describes a run without faults: its outcomes and the numbers of writes, acts and cache reads.
type reference struct {
	outcomes            []outcome
	writes, acts, reads int
}

func undisturbed(t *testing.T, s subject) reference {
	t.Helper()
	w := newWorld(t, s, faults{lag: func(int) int { return 0 }})
	r := reference{outcomes: w.tell()}
	r.writes, r.acts, r.reads = w.writes, w.acts, w.reads
	w.Expect(r.writes).To(BeNumerically(">", 20), "the story must be complete")
	w.Expect(r.outcomes[len(r.outcomes)-1].Starts).To(Equal(9))
	return r
}

func (r reference) compare(t *testing.T, got []outcome) {
	t.Helper()
	var want []outcome
	for _, o := range r.outcomes {
		told := slices.ContainsFunc(got, func(g outcome) bool { return g.Chapter == o.Chapter })
		if told && len(got) < len(r.outcomes) && o.Chapter == story[len(story)-1].name {
			o.Starts = got[len(got)-1].Starts // the number of starts differs because chapters were skipped
		}
		if told {
			want = append(want, o)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differs from the undisturbed run (-undisturbed +disturbed):\n%s", diff)
	}
}
