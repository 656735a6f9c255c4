// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tally counts the finished runs of a Strategy, each exactly once, and decides where its breaker stands. It is pure: it does no I/O
// and asks no clock.
//
// A finished run keeps a finalizer until it is counted. Counting takes two writes: the first adds the run to the totals and to the list of
// counted runs, in one patch; the second takes the finalizer off the run. Between them the list says that the run is not to be counted again;
// a run without the finalizer was counted, and leaves the list with the next write. So a crash between both writes is mended by doing the
// second one again.
package tally

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// batch bounds how many runs wait for their finalizer to be taken off at one time, and so the status.
const batch = 256

// Desired is what the spec of a Strategy asks for.
type Desired struct {
	ResetToken string
	Breaker    lifecycle.Breaker
}

// Run is one run of the strategy, as it is now and not as some cache remembers it.
type Run struct {
	UID   types.UID
	Epoch int64
	// Outcome is empty while the run has not finished.
	Outcome    v1alpha1.RunOutcome
	FinishedAt time.Time
	// Kept says that the finalizer is still there.
	Kept bool
	// Foreign says that the run started from another Strategy of the same name: it is let go, and not counted.
	Foreign bool
	// Waits says that the run has not started; CreatedAt orders those that wait.
	Waits     bool
	CreatedAt time.Time
}

// Step is what to do: write Status if it differs, and only when that is acknowledged take the finalizer off Release.
type Step struct {
	Status  v1alpha1.StrategyStatus
	Release []types.UID
	// Again asks to look again after so long, if it is not 0.
	Again time.Duration
	// More says that there are finished runs that this step left for the next.
	More bool
}

// Next counts what has finished. runs are all runs that still have the finalizer; gone says of a run that is not among them, and is on the list,
// that it has none any more.
func Next(desired Desired, record v1alpha1.StrategyStatus, runs []Run, now time.Time) Step {
	t := &tallier{desired: desired, step: Step{Status: *record.DeepCopy()}, now: now}
	if t.step.Status.Breaker == nil {
		t.step.Status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
	}
	t.reset()
	t.settle(runs)
	t.count(runs)
	t.try(runs)
	return t.step
}

type tallier struct {
	desired Desired
	step    Step
	now     time.Time
}

// reset begins a new epoch.
func (t *tallier) reset() {
	status := &t.step.Status
	if t.desired.ResetToken == status.ObservedResetToken {
		return
	}
	status.ObservedResetToken = t.desired.ResetToken
	status.Epoch++
	status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
}

// settle drops from the list who has lost the finalizer, and asks again to take it off the others.
func (t *tallier) settle(runs []Run) {
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

// count adds what has finished to the totals and to the breaker, in the order in which it finished.
func (t *tallier) count(runs []Run) {
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
	case v1alpha1.RunSucceeded:
		totals.Succeeded++
	case v1alpha1.RunFailed:
		totals.Failed++
	case v1alpha1.RunTimedOut:
		totals.TimedOut++
	case v1alpha1.RunWasCancelled:
		totals.Cancelled++
	case v1alpha1.RunSkipped:
		totals.SkippedCircuitOpen++
	}
}

// judge is what one outcome does to the breaker. Only the one run that is tried after a cool-down decides about an open one.
func (t *tallier) judge(run Run) {
	breaker := t.step.Status.Breaker
	trial := breaker.Trial != "" && breaker.Trial == run.UID
	if breaker.State != v1alpha1.BreakerClosed && !trial {
		if run.Outcome == v1alpha1.RunFailed || run.Outcome == v1alpha1.RunTimedOut {
			breaker.Failures++ // it began before the breaker opened
		}
		return
	}
	switch run.Outcome {
	case v1alpha1.RunSucceeded:
		*breaker = v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
	case v1alpha1.RunFailed, v1alpha1.RunTimedOut:
		breaker.Failures++
		circuit := lifecycle.Circuit{State: breaker.State, OpenedAt: breaker.OpenedAt}
		circuit = t.desired.Breaker.Fail(circuit, int(breaker.Failures), t.now)
		breaker.State, breaker.OpenedAt, breaker.Trial = circuit.State, circuit.OpenedAt, ""
	default: // it says nothing; another one is tried
		breaker.Trial = ""
	}
}

// try lets one run through when the cool-down of an open breaker is over: the one that has waited longest.
func (t *tallier) try(runs []Run) {
	breaker := t.step.Status.Breaker
	if breaker.State == v1alpha1.BreakerClosed { // the spec may ask for less than it did
		circuit := t.desired.Breaker.Fail(lifecycle.Circuit{State: breaker.State}, int(breaker.Failures), t.now)
		breaker.State, breaker.OpenedAt = circuit.State, circuit.OpenedAt
	}
	if breaker.State == v1alpha1.BreakerOpen {
		circuit, left, ends := t.desired.Breaker.Cooling(lifecycle.Circuit{State: breaker.State, OpenedAt: breaker.OpenedAt}, t.now)
		if !ends {
			return
		}
		if breaker.OpenedAt = circuit.OpenedAt; left > 0 {
			t.step.Again = left
			return
		}
		breaker.State = v1alpha1.BreakerHalfOpen
	}
	if breaker.State == v1alpha1.BreakerHalfOpen {
		t.choose(runs)
	}
}

// choose names the run that is tried, unless the one that was named still can be.
func (t *tallier) choose(runs []Run) {
	breaker := t.step.Status.Breaker
	var oldest *Run
	for i := range runs {
		run := &runs[i]
		if run.UID == breaker.Trial && run.Outcome == "" {
			return
		}
		if run.Waits && run.Outcome == "" && (oldest == nil || run.CreatedAt.Before(oldest.CreatedAt) ||
			run.CreatedAt.Equal(oldest.CreatedAt) && run.UID < oldest.UID) {
			oldest = run
		}
	}
	if breaker.Trial = ""; oldest != nil {
		breaker.Trial = oldest.UID
	}
}
