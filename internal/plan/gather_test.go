// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// finishObservedRun ends a run and sets the time of the observation to now.
func (w *world) finishObservedRun(name string, outcome v1alpha1.RunOutcome) {
	w.finishRun(name, outcome)
	run := w.runs[name]
	run.SeenAt = w.now
	w.runs[name] = run
}

func TestGathering_BatchesOutcomesWithoutOtherEffect(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(4))
	w.settle()
	before := w.status.DeepCopy()
	w.finishObservedRun(runName(1, strategize, 0), succeeded)
	step := w.next()
	w.g.Expect(step.Status).To(Equal(*before), "the outcome can wait for others")
	w.g.Expect(step.Release).To(BeEmpty(), "a run is not released before its outcome is recorded")
	w.g.Expect(step.Requeue).To(Equal(gathering))

	w.now = w.now.Add(gathering / 2)
	w.finishObservedRun(runName(1, strategize, 1), succeeded)
	w.g.Expect(w.next().Requeue).To(Equal(gathering/2), "a second outcome does not extend the wait of the first")
	w.now = w.now.Add(gathering / 2)
	step = w.next()
	w.g.Expect(step.Release).To(ConsistOf(runName(1, strategize, 0), runName(1, strategize, 1)))
	w.g.Expect(step.Status.Waiting).To(Equal("for 2 of 4 runs"))
}

func TestGathering_EndsOnAnyOtherChange(t *testing.T) {
	for what, do := range map[string]func(*world){
		"the phase is over":      func(w *world) { w.finishObservedRun(runName(1, strategize, 1), succeeded) },
		"the phase has failed":   func(w *world) { w.finishObservedRun(runName(1, strategize, 1), failed) },
		"the plan is cancelled":  func(w *world) { w.desired.Cancelled = true },
		"the plan is retried":    func(w *world) { w.desired.RetryToken = "again" },
		"the spec has changed":   func(w *world) { w.desired.Generation++ },
		"the clock was set back": func(w *world) { w.now = w.now.Add(-time.Hour) },
		"the wait is over":       func(w *world) { w.now = w.now.Add(time.Hour) },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(gomega(t), pinnedAction(2))
			w.settle()
			w.finishObservedRun(runName(1, strategize, 0), succeeded)
			w.g.Expect(w.next().Status).To(Equal(w.status), "one outcome alone waits")
			do(w)
			w.g.Expect(w.next().Status).NotTo(Equal(w.status))
		})
	}
}

func TestGathering_DoesNotDelayNextRun(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(5))
	w.settle()
	w.g.Expect(w.liveRuns()).To(HaveLen(4))
	w.finishObservedRun(runName(1, strategize, 0), succeeded)
	w.g.Expect(w.next().Create).To(HaveLen(1))
}
