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

// clone gives a world that goes on by itself.
func (w *world) clone() *world {
	other := *w
	other.status = *w.status.DeepCopy()
	other.runs, other.created, other.events = maps.Clone(w.runs), maps.Clone(w.created), nil
	return &other
}

// happening is something that may happen to a plan.
type happening struct {
	name string
	do   func(*world)
}

// happenings are all that can happen now. bound says how many requests of each kind there may be.
func (w *world) happenings(bound int) []happening {
	all := []happening{
		{"step", func(w *world) { w.step(true) }},
		{"step and die after the write", func(w *world) { w.step(false) }},
	}
	for _, name := range w.live() {
		outcomes := []v1alpha1.RunOutcome{succeeded, failed, skipped}
		if w.runs[name].Cancelling {
			outcomes = []v1alpha1.RunOutcome{v1alpha1.RunWasCancelled, succeeded}
		}
		for _, outcome := range outcomes {
			all = append(all, happening{fmt.Sprintf("%s %s", name, outcome), func(w *world) { w.ends(name, outcome) }})
		}
	}
	if w.desired.Cancelled {
		return all
	}
	all = append(all, happening{"cancel", func(w *world) { w.desired.Cancelled = true }})
	if at := rank(w.desired.Target); at < 2 {
		all = append(all, happening{"approve", func(w *world) { w.desired.Target = order[at+1] }})
	}
	if len(w.desired.RetryToken) < bound {
		all = append(all, happening{"retry", func(w *world) { w.desired.RetryToken += "x" }})
	}
	if len(w.desired.RevertToken) < bound {
		all = append(all, happening{"revert", func(w *world) { w.desired.RevertToken += "x" }})
	}
	return all
}

// key says where a world is, without times and words.
func (w *world) key() string {
	s := w.status
	var b strings.Builder
	fmt.Fprint(&b, w.desired.Cancelled, w.desired.Target, len(w.desired.RetryToken), len(w.desired.RevertToken),
		s.State, s.CurrentPhase, s.Attempt, s.Reversions, s.Completed, len(s.ObservedRetryToken), len(s.ObservedRevertToken))
	if len(s.History) > 0 {
		fmt.Fprint(&b, s.History[len(s.History)-1].Reason)
	}
	for _, run := range s.Runs {
		fmt.Fprint(&b, ";", run.Name, run.UID != "", run.Outcome)
	}
	for _, name := range slices.Sorted(maps.Keys(w.runs)) {
		if run := w.runs[name]; run.Kept { // the others are past
			fmt.Fprint(&b, "|", name, run.Outcome, run.Cancelling)
		}
	}
	return b.String()
}

// cancelEnds checks that from here a cancellation ends everything, and is the end.
func (w *world) cancelEnds() {
	end := w.clone()
	end.desired.Cancelled = true
	end.settle().obey()
	end.g.Expect(end.status.State).To(BeElementOf(cancelled, applied), "cancel did not end it: %s", end.describe())
	end.g.Expect(end.live()).To(BeEmpty())
}

// TestEverythingThatCanHappen walks through all that can happen to a small plan: every order of requests, ends of runs, steps and deaths of the
// manager. The checks of world hold after each, and a cancellation ends it.
func TestEverythingThatCanHappen(t *testing.T) {
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
				if visited%8 == 0 { // a cancellation is among what happens, too
					w.cancelEnds()
				}
				for _, h := range w.happenings(tc.bound) {
					next := w.clone()
					h.do(next)
					if key := next.key(); !seen[key] {
						seen[key] = true
						queue = append(queue, next)
					}
				}
			}
			t.Logf("%d states", len(seen))
			g.Expect(len(seen)).To(BeNumerically(">", 300), "the walk is cut short")
			for _, state := range []v1alpha1.PlanState{processing, complete, errored, constrained, cancelled} {
				g.Expect(reached).To(HaveKey(state), "%s was never reached", state)
			}
		})
	}
}

// TestRandomHistories does the same at random with larger plans, and lets time pass. The seed is the name of the test.
func TestRandomHistories(t *testing.T) {
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
			for range 200 {
				all := w.happenings(12)
				h := all[random.IntN(len(all))]
				if h.name == "cancel" && random.IntN(20) > 0 {
					continue
				}
				h.do(w)
				w.now = w.now.Add(time.Duration(random.IntN(2000)) * time.Millisecond)
			}
			w.settle()
			w.cancelEnds()
		})
	}
}
