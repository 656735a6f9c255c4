// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tally

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// guard is something that counting depends on, and that can be taken out.
type guard string

const (
	listOfCounted  guard = "the list of runs that were counted"
	keptOnList     guard = "that a run stays on the list until it has lost its finalizer"
	epochs         guard = "the epoch of a run"
	lockedWrites   guard = "the lock of the status on the version that was read"
	orderOfReads   guard = "that the runs are read after the status"
	exactThreshold guard = "the threshold as it was asked for"
)

// ledger counts as somebody would who sees one thing after the other: it has the order in which the writes took place, and in each the order in
// which the runs finished.
type ledger struct {
	totals   v1alpha1.StrategyTotals
	epoch    int64
	epochAt  int
	token    string
	failures int32
	state    v1alpha1.BreakerState
	trial    types.UID
}

// enter takes a write into account and fails when the status that was written says anything else.
func (l *ledger) enter(w *world, before v1alpha1.StrategyStatus) error {
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
		l.add(w, run)
	}
	return l.compare(w, after)
}

// add counts one run. It knows which reset the run began after, from when both happened and not from what the run says.
func (l *ledger) add(w *world, run *worldRun) {
	add(&l.totals, run.Outcome) // TestOpensExactlyAtTheThreshold counts them by hand
	failed := run.Outcome == v1alpha1.RunFailed || run.Outcome == v1alpha1.RunTimedOut
	threshold := int32(w.desired.Breaker.Threshold)
	switch {
	case run.started && (run.startAt <= l.epochAt || run.Epoch < l.epoch):
		return
	case l.state == v1alpha1.BreakerClosed && run.Outcome == v1alpha1.RunSucceeded:
		l.failures = 0
	case l.state == v1alpha1.BreakerClosed && failed:
		if l.failures++; l.failures >= threshold {
			l.state = v1alpha1.BreakerOpen
		}
	case l.trial == run.UID && run.Outcome == v1alpha1.RunSucceeded:
		l.state, l.failures, l.trial = v1alpha1.BreakerClosed, 0, ""
	case failed:
		l.failures++
		if l.trial == run.UID && l.state == v1alpha1.BreakerHalfOpen {
			l.state, l.trial = v1alpha1.BreakerOpen, ""
		}
	}
}

// compare holds the status against the ledger. That one run is let through after a cool-down is the only thing that no run has caused.
func (l *ledger) compare(w *world, after v1alpha1.StrategyStatus) error {
	breaker := after.Breaker
	if l.state == v1alpha1.BreakerOpen && breaker.State == v1alpha1.BreakerHalfOpen {
		if w.desired.Breaker.CoolDown == 0 {
			return fmt.Errorf("a run is tried although only a reset closes the breaker")
		}
		l.state = v1alpha1.BreakerHalfOpen
	}
	l.trial = breaker.Trial
	open := breaker.State != v1alpha1.BreakerClosed
	switch {
	case after.Totals != l.totals:
		return fmt.Errorf("the totals are %+v; one after the other they are %+v", after.Totals, l.totals)
	case breaker.State != l.state || breaker.Failures != l.failures:
		return fmt.Errorf("the breaker is %s after %d failures; one after the other it is %s after %d",
			breaker.State, breaker.Failures, l.state, l.failures)
	case open != (int(breaker.Failures) >= w.desired.Breaker.Threshold):
		return fmt.Errorf("the breaker is %s after %d failures of %d", breaker.State, breaker.Failures, w.desired.Breaker.Threshold)
	case breaker.Trial != "" && breaker.State != v1alpha1.BreakerHalfOpen:
		return fmt.Errorf("%s is tried while the breaker is %s", breaker.Trial, breaker.State)
	case len(after.Counted) > batch:
		return fmt.Errorf("the list has %d runs", len(after.Counted))
	default:
		return nil
	}
}

// tell is one history and its end: everything finishes, nobody crashes any more, and every run was counted once.
func (w *world) tell(steps int) error {
	for range steps {
		if err := w.happen(); err != nil {
			return err
		}
	}
	for _, run := range w.runs {
		if run.Outcome == "" {
			w.finish(run, v1alpha1.RunWasCancelled)
		}
	}
	w.counters = [2]*counter{{}, {}}
	for range 100 * (len(w.runs) + 10) {
		w.clock++
		if err := w.count(w.counters[w.random.IntN(2)]); err != nil {
			return err
		}
	}
	for _, run := range w.runs {
		if run.Kept {
			return fmt.Errorf("%s is never let go", run.UID)
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

// TestEveryHistory lets runs start, finish, be cancelled and be skipped at random while the breaker is reset and cools down, and two managers count
// them that crash, lose answers and read what is old. The seed is in the message.
func TestEveryHistory(t *testing.T) {
	counted, opened, tried := 0, 0, 0
	for seed := range uint64(histories) {
		w := newWorld(seed, "")
		if err := w.tell(steps); err != nil {
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
		t.Error("the histories are too quiet to say anything")
	}
}

// TestGuards takes out what counting depends on, one thing at a time: some history has to show it.
func TestGuards(t *testing.T) {
	for _, broken := range []guard{listOfCounted, keptOnList, epochs, lockedWrites, orderOfReads, exactThreshold} {
		t.Run(string(broken), func(t *testing.T) {
			for seed := range uint64(histories) {
				if err := newWorld(seed, broken).tell(steps); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("nobody notices that it is gone")
		})
	}
}
