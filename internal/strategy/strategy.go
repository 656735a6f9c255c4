// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package strategy counts each finished run of a Strategy exactly once, and decides the state of its breaker. It is pure: it performs no I/O and does not read
// the clock.
//
// A finished run keeps a finalizer until it is counted. Counting takes three steps:
//
//  1. One patch adds the run to the totals and its UID to status.counted.
//  2. The finalizer of the run is removed.
//  3. The next write of the status removes the UID from status.counted.
//
// After a crash, the UID in the list prevents a second count, and the remaining steps are repeated.
package strategy

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// trialPatience is how long the trial run may take to start. Afterwards another run that can start takes its place, because the cause of the delay, such as a
// silent host, may last forever.
const trialPatience = time.Minute

// batch bounds how many runs wait for the removal of their finalizer at one time, which bounds the size of the status.
const batch = 256

// Desired is what affects the breaker of a Strategy, beside its runs.
type Desired struct {
	ResetToken string
	Breaker    lifecycle.Breaker
	// Timeline converts recorded times to elapsed time.
	Timeline elapsed.Timeline
}

// Run is the current state of one run of the strategy. A finished run that is not counted yet must be read from the API server, because a cache can be stale.
type Run struct {
	UID   types.UID
	Name  string
	Epoch int64
	// Outcome is empty while the run has not finished.
	Outcome    v1alpha1.RunOutcome
	FinishedAt time.Time
	// Kept reports whether the run still has the finalizer.
	Kept bool
	// Foreign reports whether the run started from another Strategy of the same name. Such a run loses its finalizer without being counted.
	Foreign bool
	// Waits reports that the run can start as soon as the breaker permits it. CreatedAt orders the waiting runs.
	Waits     bool
	CreatedAt time.Time
	// Started reports that the process of the run was started, on a host that still reports.
	Started bool
	// Ending reports that the run is being cancelled or deleted, so that its outcome will prove nothing.
	Ending bool
}

// Step is what to do next: write Status if it differs from the record; after that write has succeeded, remove the finalizer from the runs in Release.
type Step struct {
	Status  v1alpha1.StrategyStatus
	Release []types.UID
	// Again is the time until Next must be called again; 0 means that it need not be.
	Again time.Duration
	// More reports whether there are finished runs that this step did not count.
	More bool
}

// Next counts finished runs. runs must contain all runs that still have the finalizer: Next treats a run that is on the list of counted
// runs but not in runs as one that has lost the finalizer.
func Next(desired Desired, record v1alpha1.StrategyStatus, runs []Run, now time.Time) Step {
	t := &evaluator{desired: desired, step: Step{Status: *record.DeepCopy()}, now: now}
	if t.step.Status.Breaker == nil {
		t.step.Status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
	}
	t.reset()
	t.settle(runs)
	t.count(runs)
	t.try(runs)
	return t.step
}

type evaluator struct {
	desired Desired
	step    Step
	now     time.Time
}

// reset starts a new epoch if a new reset is requested. A removed token is no request.
func (t *evaluator) reset() {
	status := &t.step.Status
	if token := t.desired.ResetToken; token == "" || token == status.ObservedResetToken {
		return
	}
	status.ObservedResetToken = t.desired.ResetToken
	status.Epoch++
	status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
}

// settle removes runs without the finalizer from the list, and requests the removal of the finalizer from the others.
func (t *evaluator) settle(runs []Run) {
	kept := map[types.UID]bool{}
	for _, run := range runs {
		if run.Kept {
			kept[run.UID] = true
		}
	}
	status := &t.step.Status
	status.Counted = slices.DeleteFunc(status.Counted, func(uid types.UID) bool { return !kept[uid] })
	if len(status.Counted) == 0 {
		status.Counted = nil
	}
	t.step.Release = slices.Clone(status.Counted)
}

// count adds finished runs to the totals and to the breaker, in the order in which they finished.
func (t *evaluator) count(runs []Run) {
	status := &t.step.Status
	finished := slices.DeleteFunc(slices.Clone(runs), func(run Run) bool {
		return !run.Kept || run.Outcome == "" || slices.Contains(status.Counted, run.UID)
	})
	slices.SortFunc(finished, func(a, b Run) int {
		return cmp.Or(a.FinishedAt.Compare(b.FinishedAt), cmp.Compare(a.UID, b.UID))
	})
	for _, run := range finished {
		if run.Foreign {
			t.step.Release = append(t.step.Release, run.UID)
			continue
		}
		if len(status.Counted) >= batch {
			t.step.More = true
			break
		}
		status.Counted = append(status.Counted, run.UID)
		t.step.Release = append(t.step.Release, run.UID)
		add(&status.Totals, run.Outcome)
		if run.Epoch == status.Epoch {
			t.judge(run)
		}
	}
}

func add(totals *v1alpha1.StrategyTotals, outcome v1alpha1.RunOutcome) {
	switch outcome {
	case v1alpha1.OutcomeSucceeded:
		totals.Succeeded++
	case v1alpha1.OutcomeFailed:
		totals.Failed++
	case v1alpha1.OutcomeTimedOut:
		totals.TimedOut++
	case v1alpha1.OutcomeCancelled:
		totals.Cancelled++
	case v1alpha1.OutcomeSkipped:
		totals.SkippedCircuitOpen++
	}
}

// judge applies the outcome of one run to the breaker. While the breaker is not closed, only the trial run after a cool-down can change its state.
func (t *evaluator) judge(run Run) {
	breaker := t.step.Status.Breaker
	trial := breaker.Trial != "" && breaker.Trial == run.UID
	if breaker.State != v1alpha1.BreakerClosed && !trial {
		if run.Outcome == v1alpha1.OutcomeFailed || run.Outcome == v1alpha1.OutcomeTimedOut {
			breaker.Failures++ // the run started before the breaker opened
		}
		return
	}
	switch run.Outcome {
	case v1alpha1.OutcomeSucceeded:
		*breaker = v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
	case v1alpha1.OutcomeFailed, v1alpha1.OutcomeTimedOut:
		breaker.Failures++
		circuit := lifecycle.Circuit{State: breaker.State, OpenedAt: breaker.OpenTime}
		circuit = t.desired.Breaker.Fail(circuit, int(breaker.Failures), t.now)
		breaker.State, breaker.OpenTime = circuit.State, circuit.OpenedAt
		t.setTrial(nil)
	default: // the outcome is not conclusive; another run becomes the trial
		t.setTrial(nil)
	}
}

// try changes the breaker for reasons other than the outcome of a run. It opens a closed breaker if the failures reach the threshold, which the spec may
// have lowered. When the cool-down of an open breaker is over, it lets one trial run start.
func (t *evaluator) try(runs []Run) {
	breaker := t.step.Status.Breaker
	if breaker.State == v1alpha1.BreakerClosed { // the spec may have lowered the threshold
		circuit := t.desired.Breaker.Fail(lifecycle.Circuit{State: breaker.State}, int(breaker.Failures), t.now)
		breaker.State, breaker.OpenTime = circuit.State, circuit.OpenedAt
	}
	if breaker.State == v1alpha1.BreakerOpen {
		circuit, left, ends := t.desired.Breaker.Cooling(lifecycle.Circuit{State: breaker.State, OpenedAt: breaker.OpenTime}, t.desired.Timeline, t.now)
		if !ends {
			return
		}
		if breaker.OpenTime = circuit.OpenedAt; left > 0 {
			t.step.Again = left
			return
		}
		breaker.State = v1alpha1.BreakerHalfOpen
	}
	if breaker.State == v1alpha1.BreakerHalfOpen {
		t.choose(runs)
	}
}

// choose selects the trial run. A trial run keeps its place until it has finished, is cancelled or is deleted. It also loses its place if it has not started
// within trialPatience and another run waits. The waiting runs take turns, the one that has waited longest first, so a run that never starts holds up the others
// only for a time.
func (t *evaluator) choose(runs []Run) {
	var current *Run
	var waiting []*Run // in the order of their turns
	for i := range runs {
		switch run := &runs[i]; {
		case run.Outcome != "" || run.Ending:
		case run.UID == t.step.Status.Breaker.Trial:
			current = run
		case run.Waits:
			waiting = append(waiting, run)
		}
	}
	switch {
	case current != nil && (current.Started || t.patient() || len(waiting) == 0):
		return
	case len(waiting) == 0:
		t.setTrial(nil)
		return
	}
	slices.SortFunc(waiting, turns)
	next := 0
	if current != nil {
		next = max(0, slices.IndexFunc(waiting, func(run *Run) bool { return turns(current, run) < 0 }))
	}
	t.setTrial(waiting[next])
}

// turns compares two runs in the order in which runs become the trial run.
func turns(a, b *Run) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.UID, b.UID))
}

// patient reports whether the trial run, which has not started, keeps its place for now. If no known step of the clock explains why its time lies in the future, the
// time begins again.
func (t *evaluator) patient() bool {
	breaker := t.step.Status.Breaker
	left, valid := time.Duration(0), false
	if breaker.TrialTime != nil {
		left, valid = t.desired.Timeline.Left(breaker.TrialTime.Add(trialPatience), trialPatience, t.now)
	}
	if !valid {
		breaker.TrialTime, left = &metav1.MicroTime{Time: t.now}, trialPatience
	}
	t.step.Again = max(left, 0)
	return left > 0
}

// setTrial makes a run the trial run. Without a run, there is none.
func (t *evaluator) setTrial(run *Run) {
	breaker := t.step.Status.Breaker
	if breaker.Trial, breaker.TrialName, breaker.TrialTime = "", "", nil; run == nil {
		return
	}
	breaker.Trial, breaker.TrialName, breaker.TrialTime = run.UID, run.Name, &metav1.MicroTime{Time: t.now}
	t.step.Again = trialPatience
}
