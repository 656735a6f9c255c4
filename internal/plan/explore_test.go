// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// clone returns an independent copy of the world.
func (w *world) clone() *world {
	other := *w
	other.status = *w.status.DeepCopy()
	other.runs, other.created, other.events = maps.Clone(w.runs), maps.Clone(w.created), nil
	other.approvals = maps.Clone(w.approvals)
	return &other
}

// possibleEvent is one event that can happen to a plan.
type possibleEvent struct {
	name string
	do   func(*world)
}

// possibleEvents returns every event that can happen now. bound is the maximum number of retry and of revert requests.
func (w *world) possibleEvents(bound int) []possibleEvent {
	all := []possibleEvent{
		{"step", func(w *world) { w.step(true) }},
		{"step and crash after the write", func(w *world) { w.step(false) }},
	}
	for _, name := range w.liveRuns() {
		outcomes := []v1alpha1.RunOutcome{succeeded, failed, skipped}
		if w.runs[name].Cancelling {
			outcomes = []v1alpha1.RunOutcome{v1alpha1.OutcomeCancelled, succeeded}
		}
		for _, outcome := range outcomes {
			all = append(all, possibleEvent{fmt.Sprintf("%s %s", name, outcome), func(w *world) { w.finishRun(name, outcome) }})
		}
	}
	if w.desired.Cancelled {
		return all
	}
	all = append(all, possibleEvent{"cancel", func(w *world) { w.desired.Cancelled = true }})
	if w.status.State == complete {
		all = append(all, possibleEvent{"approve", func(w *world) { w.approveWaiting("") }})
	}
	if len(w.desired.RetryToken) < bound {
		all = append(all, possibleEvent{"retry", func(w *world) { w.desired.RetryToken += "x" }})
	}
	if len(w.desired.RevertToken) < bound {
		all = append(all, possibleEvent{"revert", func(w *world) { w.desired.RevertToken += "x" }})
	}
	return all
}

// key identifies the state of a world, without times and messages.
func (w *world) key() string {
	s := w.status
	var b strings.Builder
	if a := w.desired.Approval; a != nil {
		fmt.Fprint(&b, a.Phase, a.Attempt)
	}
	fmt.Fprint(&b, w.desired.Cancelled, w.desired.Target, len(w.desired.RetryToken), len(w.desired.RevertToken),
		s.State, s.CurrentPhase, s.Attempt, s.Reversions, s.Completed, len(s.ObservedRetryToken), len(s.ObservedRevertToken))
	if len(s.History) > 0 {
		fmt.Fprint(&b, s.History[len(s.History)-1].Reason)
	}
	for _, run := range s.Runs {
		fmt.Fprint(&b, ";", run.Name, run.UID != "", run.Outcome)
	}
	for _, name := range slices.Sorted(maps.Keys(w.runs)) {
		if run := w.runs[name]; run.Kept { // released runs no longer matter
			fmt.Fprint(&b, "|", name, run.Outcome, run.Cancelling)
		}
	}
	return b.String()
}

// checkCancelEnds checks that a cancellation in this state cancels every run and that the plan ends.
func (w *world) checkCancelEnds() {
	end := w.clone()
	end.desired.Cancelled = true
	end.settle().finishCancelledRuns()
	end.g.Expect(end.status.State).To(BeElementOf(cancelled, applied), "the plan did not end after its cancellation: %s", end.describe())
	end.g.Expect(end.liveRuns()).To(BeEmpty())
}

// TestAllHistories_KeepInvariants walks all histories of a small plan: every order of requests, outcomes of runs, and steps and crashes of the
// manager. The invariants of world hold after each event, and a cancellation ends the plan.
func TestAllHistories_KeepInvariants(t *testing.T) {
	for _, tc := range []struct {
		name   string
		counts []int
		needed int32
		bound  int
	}{
		{"one strategy in two phases", []int{1, 0, 1}, 1, 1},
		{"any of two", []int{2}, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := gomega(t)
			pinned := pinnedAction(tc.counts...)
			pinned.Phases[0].Needed = tc.needed
			pinned.MaxParallel = 1 + int32(len(pinned.Phases)%2)
			first := newWorld(g, pinned)
			seen := map[string]bool{first.key(): true}
			queue := []*world{first}
			reached := map[v1alpha1.PlanState]bool{}
			for visited := 0; len(queue) > 0; visited++ {
				w := queue[0]
				queue = queue[1:]
				reached[w.status.State] = true
				if visited%8 == 0 { // every eighth state is enough, because the walk itself also contains cancellations
					w.checkCancelEnds()
				}
				for _, h := range w.possibleEvents(tc.bound) {
					next := w.clone()
					h.do(next)
					if key := next.key(); !seen[key] {
						seen[key] = true
						queue = append(queue, next)
					}
				}
			}
			t.Logf("%d states", len(seen))
			g.Expect(len(seen)).To(BeNumerically(">", 300), "the walk ended too early")
			for _, state := range []v1alpha1.PlanState{processing, complete, errored, constrained, cancelled} {
				g.Expect(reached).To(HaveKey(state), "%s was never reached", state)
			}
		})
	}
}

// TestRandomHistories_KeepInvariants walks random histories of larger plans, in which time passes. The name of the subtest contains the seed.
func TestRandomHistories_KeepInvariants(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 5))
			pinned := pinnedAction(1+random.IntN(4), random.IntN(4), 1+random.IntN(5))
			pinned.MaxParallel, pinned.MaxReversions = 1+random.Int32N(4), random.Int32N(4)
			for i := range pinned.Phases {
				phase := &pinned.Phases[i]
				phase.Needed = 1 + random.Int32N(int32(len(phase.Strategies)))
				if random.IntN(3) == 0 {
					phase.TimeoutSeconds = 1 + random.Int32N(20)
				}
			}
			w := newWorld(gomega(t), pinned)
			w.desired.Target = order[random.IntN(len(order))]
			for range 200 {
				all := w.possibleEvents(12)
				h := all[random.IntN(len(all))]
				if h.name == "cancel" && random.IntN(20) > 0 {
					continue
				}
				h.do(w)
				w.now = w.now.Add(time.Duration(random.IntN(2000)) * time.Millisecond)
			}
			w.settle()
			w.checkCancelEnds()
		})
	}
}
