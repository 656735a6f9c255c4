// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/elapsed/elapsedtest"
	"github.com/berth-dev/berth/internal/lifecycle"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fixture is a strategy and its runs.
type fixture struct {
	g       *WithT
	desired Desired
	status  v1alpha1.StrategyStatus
	runs    []Run
	now     time.Time
	writes  int
}

func newFixture(t *testing.T, threshold int, coolDown time.Duration) *fixture {
	return &fixture{g: NewWithT(t), desired: Desired{Breaker: lifecycle.Breaker{Threshold: threshold, CoolDown: coolDown}}, now: start}
}

// addFinishedRun adds a finished run of the current epoch.
func (b *fixture) addFinishedRun(outcome v1alpha1.RunOutcome) *fixture {
	b.now = b.now.Add(time.Second)
	b.runs = append(b.runs, Run{
		UID: types.UID(fmt.Sprintf("run-%05d", len(b.runs))), Epoch: b.status.Epoch, Outcome: outcome, FinishedAt: b.now, Kept: true,
	})
	return b
}

func (b *fixture) addWaitingRun(uid types.UID) *fixture {
	b.runs = append(b.runs, Run{UID: uid, Name: string(uid), Epoch: b.status.Epoch, Kept: true, Waits: true, CreatedAt: b.now})
	return b
}

// settle counts until nothing changes.
func (b *fixture) settle() *fixture {
	for range 1000 {
		step := Next(b.desired, b.status, b.runs, b.now)
		same := apiequality.Semantic.DeepEqual(step.Status, b.status)
		if !same {
			b.writes++
		}
		b.status = step.Status
		b.release(step.Release)
		if same && len(step.Release) == 0 && !step.More {
			return b
		}
	}
	b.g.Expect("the counting does not come to rest").To(BeEmpty())
	return b
}

func (b *fixture) release(uids []types.UID) {
	for _, uid := range uids {
		for i := range b.runs {
			if b.runs[i].UID == uid {
				b.runs[i].Kept = false
			}
		}
	}
}

func (b *fixture) expectBreaker(state v1alpha1.BreakerState, failures int) *fixture {
	b.g.THelper()
	b.g.Expect(b.status.Breaker.State).To(Equal(state))
	b.g.Expect(b.status.Breaker.Failures).To(BeEquivalentTo(failures))
	return b
}

func TestBreaker_OpensExactlyAtThreshold(t *testing.T) {
	b := newFixture(t, 3, 0)
	b.addFinishedRun(v1alpha1.OutcomeFailed).addFinishedRun(v1alpha1.OutcomeTimedOut).settle().expectBreaker(v1alpha1.BreakerClosed, 2)
	b.addFinishedRun(v1alpha1.OutcomeSkipped).addFinishedRun(v1alpha1.OutcomeCancelled).settle().expectBreaker(v1alpha1.BreakerClosed, 2)
	b.addFinishedRun(v1alpha1.OutcomeFailed).settle().expectBreaker(v1alpha1.BreakerOpen, 3)
	b.g.Expect(b.status.Totals).To(Equal(v1alpha1.StrategyTotals{Failed: 2, TimedOut: 1, Cancelled: 1, SkippedCircuitOpen: 1}))
	b.now = b.now.Add(time.Hour)
	b.settle().expectBreaker(v1alpha1.BreakerOpen, 3) // a cool-down of 0 never ends
}

func TestBreaker_SuccessResetsFailures(t *testing.T) {
	b := newFixture(t, 3, 0).addFinishedRun(v1alpha1.OutcomeFailed).addFinishedRun(v1alpha1.OutcomeFailed).addFinishedRun(v1alpha1.OutcomeSucceeded).addFinishedRun(v1alpha1.OutcomeFailed)
	b.settle().expectBreaker(v1alpha1.BreakerClosed, 1)
	b.g.Expect(b.status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: 1, Failed: 3}))
}

func TestNext_CountsRunsInOrderOfFinish(t *testing.T) {
	b := newFixture(t, 2, 0).addFinishedRun(v1alpha1.OutcomeFailed).addFinishedRun(v1alpha1.OutcomeSucceeded).addFinishedRun(v1alpha1.OutcomeFailed)
	b.runs[0], b.runs[2] = b.runs[2], b.runs[0]
	b.settle().expectBreaker(v1alpha1.BreakerClosed, 1)
}

func TestNext_CountsManyRunsInBatches(t *testing.T) {
	b := newFixture(t, 1000, 0)
	for range 3 * batch {
		b.addFinishedRun(v1alpha1.OutcomeFailed)
	}
	b.settle().expectBreaker(v1alpha1.BreakerClosed, 3*batch)
	b.g.Expect(b.status.Counted).To(BeEmpty())
	b.g.Expect(b.writes).To(BeNumerically("<=", 5), "one write per batch, not per run")
}

func TestNext_CountsOnceAfterCrashBetweenWrites(t *testing.T) {
	b := newFixture(t, 10, 0).addFinishedRun(v1alpha1.OutcomeFailed)
	b.status = Next(b.desired, b.status, b.runs, b.now).Status // the finalizer stays, because the manager crashes here
	step := Next(b.desired, b.status, b.runs, b.now)
	b.g.Expect(step.Release).To(Equal([]types.UID{"run-00000"}))
	b.settle().expectBreaker(v1alpha1.BreakerClosed, 1)
	b.g.Expect(b.status.Totals.Failed).To(BeEquivalentTo(1))
}

func TestReset_BeginsEpochWithoutOldFailures(t *testing.T) {
	b := newFixture(t, 2, 0).addFinishedRun(v1alpha1.OutcomeFailed).addFinishedRun(v1alpha1.OutcomeFailed).settle().expectBreaker(v1alpha1.BreakerOpen, 2)
	b.addFinishedRun(v1alpha1.OutcomeFailed) // a run of the old epoch that is not counted yet at the reset
	b.desired.ResetToken = "again"
	b.settle().expectBreaker(v1alpha1.BreakerClosed, 0)
	b.g.Expect(b.status.Totals.Failed).To(BeEquivalentTo(3), "a run of an old epoch still counts in the totals")
	b.addFinishedRun(v1alpha1.OutcomeFailed).settle().expectBreaker(v1alpha1.BreakerClosed, 1)
	for _, token := range []string{"", "again"} { // removed by the owner of the spec, and set once more
		b.desired.ResetToken = token
		b.settle().expectBreaker(v1alpha1.BreakerClosed, 1)
	}
	b.g.Expect(b.status.Epoch).To(BeEquivalentTo(1))
}

func TestCoolDown_AllowsOneTrialRun(t *testing.T) {
	b := newFixture(t, 1, time.Minute).addFinishedRun(v1alpha1.OutcomeFailed).settle().expectBreaker(v1alpha1.BreakerOpen, 1)
	b.g.Expect(Next(b.desired, b.status, b.runs, b.now).Again).To(Equal(time.Minute))
	b.now = b.now.Add(time.Minute)
	b.settle().expectBreaker(v1alpha1.BreakerHalfOpen, 1)
	b.addWaitingRun("second").runs[1].CreatedAt = b.now.Add(time.Second)
	b.addWaitingRun("first").settle()
	b.g.Expect(b.status.Breaker.Trial).To(BeEquivalentTo("first"))

	b.runs[2].Outcome, b.runs[2].Waits = v1alpha1.OutcomeCancelled, false // a cancelled trial proves nothing, so another run becomes the trial
	b.settle().expectBreaker(v1alpha1.BreakerHalfOpen, 1)
	b.g.Expect(b.status.Breaker.Trial).To(BeEquivalentTo("second"))
	b.runs[1].Outcome, b.runs[1].Waits = v1alpha1.OutcomeFailed, false
	b.settle().expectBreaker(v1alpha1.BreakerOpen, 2)

	b.now = b.now.Add(time.Minute)
	b.addWaitingRun("third").settle()
	b.runs[3].Outcome, b.runs[3].Waits = v1alpha1.OutcomeSucceeded, false
	b.settle().expectBreaker(v1alpha1.BreakerClosed, 0)
	b.g.Expect(b.status.Breaker.Trial).To(BeEmpty())
}

// halfOpen returns a strategy whose breaker is half-open and that has no runs.
func halfOpen(t *testing.T) *fixture {
	b := newFixture(t, 1, time.Minute).addFinishedRun(v1alpha1.OutcomeFailed).settle()
	b.now, b.runs = b.now.Add(time.Minute), nil
	return b.settle().expectBreaker(v1alpha1.BreakerHalfOpen, 1)
}

// run returns the run with this UID.
func (b *fixture) run(uid types.UID) *Run {
	b.g.THelper()
	i := slices.IndexFunc(b.runs, func(run Run) bool { return run.UID == uid })
	b.g.Expect(i).NotTo(Equal(-1))
	return &b.runs[i]
}

func (b *fixture) expectTrial(uid types.UID) {
	b.g.THelper()
	b.settle()
	b.g.Expect(b.status.Breaker.Trial).To(Equal(uid))
	if uid == "" {
		b.g.Expect(b.status.Breaker.TrialName).To(BeEmpty())
		b.g.Expect(b.status.Breaker.TrialTime).To(BeNil())
		return
	}
	b.g.Expect(b.status.Breaker.TrialName).NotTo(BeEmpty())
	b.g.Expect(b.status.Breaker.TrialTime).NotTo(BeNil())
}

func TestTrial_IsOnlyARunThatCanStart(t *testing.T) {
	for name, change := range map[string]func(*Run){
		"cannot start":              func(run *Run) { run.Waits = false },
		"is cancelled or deleted":   func(run *Run) { run.Ending = true },
		"has already finished":      func(run *Run) { run.Outcome = v1alpha1.OutcomeCancelled },
		"has started, not finished": func(run *Run) { run.Waits, run.Started = false, true },
	} {
		t.Run(name, func(t *testing.T) {
			b := halfOpen(t)
			change(b.addWaitingRun("older").run("older"))
			b.expectTrial("")
			b.now = b.now.Add(time.Hour)
			b.addWaitingRun("younger").expectTrial("younger")
		})
	}
}

func TestTrial_LosesItsPlace(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*Run)
		after  time.Duration
		kept   bool
	}{
		"waits, in time":                  {func(*Run) {}, trialPatience - time.Millisecond, true},
		"waits for too long":              {func(*Run) {}, trialPatience, false},
		"can no longer start, in time":    {func(run *Run) { run.Waits = false }, trialPatience - time.Millisecond, true},
		"can no longer start":             {func(run *Run) { run.Waits = false }, trialPatience, false},
		"has started":                     {func(run *Run) { run.Waits, run.Started = false, true }, 24 * time.Hour, true},
		"has started, on a silent host":   {func(run *Run) { run.Waits = false }, 24 * time.Hour, false},
		"is cancelled before it starts":   {func(run *Run) { run.Ending = true }, 0, false},
		"is cancelled or deleted later":   {func(run *Run) { run.Waits, run.Started, run.Ending = false, true, true }, 0, false},
		"is finished without being tried": {func(run *Run) { run.Waits, run.Outcome = false, v1alpha1.OutcomeSkipped }, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := halfOpen(t)
			b.addWaitingRun("first").expectTrial("first")
			b.g.Expect(Next(b.desired, b.status, b.runs, b.now).Again).To(Equal(trialPatience), "no event reports that a run does not start")
			b.now = b.now.Add(time.Millisecond)
			b.addWaitingRun("other")
			row.change(b.run("first"))
			b.now = b.now.Add(row.after - time.Millisecond)
			if row.kept {
				b.expectTrial("first")
			} else {
				b.expectTrial("other")
			}
		})
	}
}

// The last run of several that never start must not hold up those that can.
func TestTrial_WaitingRunsTakeTurns(t *testing.T) {
	b := halfOpen(t)
	var order []types.UID
	for i := range 4 {
		order = append(order, types.UID(fmt.Sprintf("waiting-%d", i)))
		b.now = b.now.Add(time.Millisecond)
		b.addWaitingRun(order[i])
	}
	for range 2 {
		for _, uid := range order {
			b.expectTrial(uid)
			b.now = b.now.Add(trialPatience)
		}
	}
	b.runs = b.runs[:1]
	b.expectTrial(order[0])
	writes := b.writes
	b.now = b.now.Add(24 * time.Hour)
	b.expectTrial(order[0])
	b.g.Expect(b.writes).To(Equal(writes), "the only run keeps its place without a write")
	b.g.Expect(Next(b.desired, b.status, b.runs, b.now).Again).To(BeZero(), "the next run is an event")
}

func TestTrial_StaysBoundedWhenClockIsSetBack(t *testing.T) {
	b := halfOpen(t)
	b.addWaitingRun("first").expectTrial("first")
	b.now = b.now.Add(-24 * time.Hour)
	b.addWaitingRun("other").expectTrial("first")
	b.now = b.now.Add(trialPatience)
	b.expectTrial("other")
}

func TestCoolDown_StaysBoundedWhenClockIsSetBack(t *testing.T) {
	b := newFixture(t, 1, time.Minute).addFinishedRun(v1alpha1.OutcomeFailed).settle()
	b.now = b.now.Add(-24 * time.Hour)
	b.settle()
	b.g.Expect(Next(b.desired, b.status, b.runs, b.now).Again).To(Equal(time.Minute))
}

func TestBreaker_OpensWhenThresholdIsLowered(t *testing.T) {
	b := newFixture(t, 5, 0).addFinishedRun(v1alpha1.OutcomeFailed).addFinishedRun(v1alpha1.OutcomeFailed).settle().expectBreaker(v1alpha1.BreakerClosed, 2)
	b.desired.Breaker.Threshold = 2
	b.settle().expectBreaker(v1alpha1.BreakerOpen, 2)
}

func TestForeignRun_IsReleasedWithoutCount(t *testing.T) {
	b := newFixture(t, 1, 0).addFinishedRun(v1alpha1.OutcomeFailed)
	b.runs[0].Foreign = true
	b.settle().expectBreaker(v1alpha1.BreakerClosed, 0)
	b.g.Expect(b.runs[0].Kept).To(BeFalse())
	b.g.Expect(b.status.Totals).To(BeZero())
}

func TestTrial_DoesNotChangeWithClock(t *testing.T) {
	for _, step := range elapsedtest.Steps {
		b := halfOpen(t)
		b.addWaitingRun("first").expectTrial("first")
		b.addWaitingRun("other")
		wall := elapsedtest.New(b.now)
		clock := elapsed.New(wall)
		advance := func(d time.Duration) {
			wall.Step(d)
			b.now, b.desired.Timeline = clock.Read()
		}
		advance(trialPatience / 2)
		wall.Set(step)
		advance(trialPatience/2 - time.Millisecond)
		b.expectTrial("first")
		advance(2 * time.Millisecond)
		b.expectTrial("other")
	}
}

func TestCoolDown_DoesNotChangeWithClock(t *testing.T) {
	for _, step := range elapsedtest.Steps {
		b := newFixture(t, 1, 10*time.Minute).addFinishedRun(v1alpha1.OutcomeFailed).settle()
		b.addWaitingRun("trial")
		wall := elapsedtest.New(b.now)
		clock := elapsed.New(wall)
		advance := func(d time.Duration) {
			wall.Step(d)
			b.now, b.desired.Timeline = clock.Read()
			b.settle()
		}
		advance(5 * time.Minute)
		wall.Set(step)
		advance(5*time.Minute - time.Millisecond)
		b.expectBreaker(v1alpha1.BreakerOpen, 1)
		advance(2 * time.Millisecond)
		b.expectBreaker(v1alpha1.BreakerHalfOpen, 1)
	}
}
