// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// guard is a mechanism that correct counting depends on, and that a test can remove.
type guard string

const (
	listOfCounted  guard = "the list of counted runs"
	keptOnList     guard = "runs stay on the list until their finalizer is removed"
	epochs         guard = "the epoch of a run"
	lockedWrites   guard = "the optimistic lock of the status"
	orderOfReads   guard = "the runs are read after the status"
	exactThreshold guard = "the exact threshold"
)

// sequentialCounter counts sequentially and without races. It knows the order of the writes, and within each write the order in which the runs finished.
type sequentialCounter struct {
	totals   v1alpha1.StrategyTotals
	epoch    int64
	epochAt  int
	token    string
	failures int32
	state    v1alpha1.BreakerState
	trial    types.UID
}

// recordWrite counts the runs of a write and returns an error if the written status differs from this count.
func (l *sequentialCounter) recordWrite(w *world, before v1alpha1.StrategyStatus) error {
	after := w.status()
	if l.state == "" {
		l.state = v1alpha1.BreakerClosed
	}
	if after.ObservedResetToken != l.token {
		l.token, l.epoch, l.epochAt = after.ObservedResetToken, l.epoch+1, w.tokenAt
		l.failures, l.state, l.trial = 0, v1alpha1.BreakerClosed, ""
	}
	var counted []*worldRun
	for _, run := range w.runs {
		if slices.Contains(after.Counted, run.UID) && !slices.Contains(before.Counted, run.UID) {
			if run.counted++; run.counted > 1 {
				return fmt.Errorf("%s was counted twice", run.UID)
			}
			counted = append(counted, run)
		}
	}
	slices.SortFunc(counted, func(a, b *worldRun) int {
		return cmp.Or(a.FinishedAt.Compare(b.FinishedAt), cmp.Compare(a.UID, b.UID))
	})
	for _, run := range counted {
		l.addRun(w, run)
	}
	return l.compare(w, after)
}

// addRun counts one run. A run that started before the last reset, or that belongs to an earlier epoch, counts for the totals but not for the breaker.
func (l *sequentialCounter) addRun(w *world, run *worldRun) {
	add(&l.totals, run.Outcome) // the code under test; TestBreaker_OpensExactlyAtThreshold checks the function add
	failed := run.Outcome == v1alpha1.OutcomeFailed || run.Outcome == v1alpha1.OutcomeTimedOut
	threshold := int32(w.desired.Breaker.Threshold)
	switch {
	case run.started && (run.startAt <= l.epochAt || run.Epoch < l.epoch):
		return
	case l.state == v1alpha1.BreakerClosed && run.Outcome == v1alpha1.OutcomeSucceeded:
		l.failures = 0
	case l.state == v1alpha1.BreakerClosed && failed:
		if l.failures++; l.failures >= threshold {
			l.state = v1alpha1.BreakerOpen
		}
	case l.trial == run.UID && run.Outcome == v1alpha1.OutcomeSucceeded:
		l.state, l.failures, l.trial = v1alpha1.BreakerClosed, 0, ""
	case failed:
		l.failures++
		if l.trial == run.UID && l.state == v1alpha1.BreakerHalfOpen {
			l.state, l.trial = v1alpha1.BreakerOpen, ""
		}
	}
}

// compare compares the status with this count. Only runs and resets change the breaker, except that it becomes half-open after a cool-down.
func (l *sequentialCounter) compare(w *world, after v1alpha1.StrategyStatus) error {
	breaker := after.Breaker
	if l.state == v1alpha1.BreakerOpen && breaker.State == v1alpha1.BreakerHalfOpen {
		if w.desired.Breaker.CoolDown == 0 {
			return fmt.Errorf("there is a trial run although only a reset closes the breaker")
		}
		l.state = v1alpha1.BreakerHalfOpen
	}
	l.trial = breaker.Trial
	open := breaker.State != v1alpha1.BreakerClosed
	switch {
	case after.Totals != l.totals:
		return fmt.Errorf("the totals are %+v; counted sequentially they are %+v", after.Totals, l.totals)
	case breaker.State != l.state || breaker.Failures != l.failures:
		return fmt.Errorf("the breaker is %s after %d failures; counted sequentially it is %s after %d",
			breaker.State, breaker.Failures, l.state, l.failures)
	case open != (int(breaker.Failures) >= w.desired.Breaker.Threshold):
		return fmt.Errorf("the breaker is %s after %d failures of %d", breaker.State, breaker.Failures, w.desired.Breaker.Threshold)
	case breaker.Trial != "" && breaker.State != v1alpha1.BreakerHalfOpen:
		return fmt.Errorf("%s is the trial run while the breaker is %s", breaker.Trial, breaker.State)
	case len(after.Counted) > batch:
		return fmt.Errorf("the list has %d runs", len(after.Counted))
	default:
		return nil
	}
}

// runHistory performs random events, and then lets all runs finish and the managers count without crashes. It returns an error unless every run was counted
// exactly once.
func (w *world) runHistory(steps int) error {
	for range steps {
		if err := w.performRandomEvent(); err != nil {
			return err
		}
	}
	for _, run := range w.runs {
		if run.Outcome == "" {
			w.finish(run, v1alpha1.OutcomeCancelled)
		}
	}
	w.counters = [2]*counter{{}, {}}
	for range 100 * (len(w.runs) + 10) {
		w.clock++
		if err := w.advanceCounter(w.counters[w.random.IntN(2)]); err != nil {
			return err
		}
	}
	for _, run := range w.runs {
		if run.Kept {
			return fmt.Errorf("%s is never released", run.UID)
		}
		if run.counted != 1 {
			return fmt.Errorf("%s was counted %d times", run.UID, run.counted)
		}
	}
	if counted := w.status().Counted; len(counted) > 0 {
		return fmt.Errorf("the list is never empty: %v", counted)
	}
	return nil
}

const (
	histories = 400
	steps     = 400
)

// TestRandomHistories_CountEachRunOnce starts, finishes, cancels and skips runs at random while the breaker is reset and cools down. Two managers count the
// runs; they crash, lose responses and read stale data. The message contains the seed.
func TestRandomHistories_CountEachRunOnce(t *testing.T) {
	counted, opened, tried := 0, 0, 0
	for seed := range uint64(histories) {
		w := newWorld(seed, "")
		if err := w.runHistory(steps); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		counted += len(w.runs)
		for _, status := range w.past[1:] {
			switch status.Breaker.State {
			case v1alpha1.BreakerOpen:
				opened++
			case v1alpha1.BreakerHalfOpen:
				tried++
			}
		}
	}
	t.Logf("%d histories, %d runs; %d states were open, %d half-open", histories, counted, opened, tried)
	if counted < 10*histories || opened < histories || tried < histories/2 {
		t.Error("the histories contain too few events to prove anything")
	}
}

// TestGuards_AreEachNecessary removes one guard at a time. At least one history has to fail without that guard.
func TestGuards_AreEachNecessary(t *testing.T) {
	for _, broken := range []guard{listOfCounted, keptOnList, epochs, lockedWrites, orderOfReads, exactThreshold} {
		t.Run(string(broken), func(t *testing.T) {
			for seed := range uint64(histories) {
				if err := newWorld(seed, broken).runHistory(steps); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("no history fails without this guard")
		})
	}
}
