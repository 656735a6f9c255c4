// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// TestCrashAtEveryWrite kills the manager before each write reaches the API, and after it was applied with its answer lost.
func TestCrashAtEveryWrite(t *testing.T) {
	everywhere(t, func(r reference) int { return r.writes }, func(n int, after bool, strike func()) faults {
		return faults{write: once(n, after, strike)}
	})
}

// TestCrashAtEveryAct kills the manager before each call that changes something outside, and after it took effect.
func TestCrashAtEveryAct(t *testing.T) {
	everywhere(t, func(r reference) int { return r.acts }, func(n int, after bool, strike func()) faults {
		return faults{act: once(n, after, strike)}
	})
}

// everywhere tells the story once for each place of a fault, before and after.
func everywhere(t *testing.T, places func(reference) int, plan func(n int, after bool, strike func()) faults) {
	for i, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := undisturbed(t, s)
			// The kinds share the loop: the first meets every fault, the others every third.
			for n := 1; n <= places(want); n += 1 + 2*min(i, 1) {
				for when, after := range map[string]bool{"before": false, "after": true} {
					t.Run(fmt.Sprintf("%s %d", when, n), func(t *testing.T) {
						w := newWorld(t, s, faults{})
						w.faults = plan(n, after, func() { w.struck = true })
						want.compare(t, w.tell())
					})
				}
			}
		})
	}
}

// once is a fault at the nth call.
func once(n int, after bool, strike func()) func(int, bool) error {
	return func(call int, done bool) error {
		if call == n && done == after {
			strike()
			return errFault
		}
		return nil
	}
}

// TestCrashesAtRandom kills the manager again and again. The seed is the name of the test.
func TestCrashesAtRandom(t *testing.T) {
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := undisturbed(t, s)
			for seed := range uint64(4) {
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 0))
					sometimes := func(int, bool) error {
						if random.IntN(5) == 0 {
							return errFault
						}
						return nil
					}
					want.compare(t, newWorld(t, s, faults{write: sometimes, act: sometimes}).tell())
				})
			}
		})
	}
}

// TestCrashIsToldInOneWrite has a process crash that ran well. The next one is started before anything is written, by the manager that is there and by one
// that has just come, and one write tells all of it.
func TestCrashIsToldInOneWrite(t *testing.T) {
	for _, another := range []bool{false, true} {
		t.Run(fmt.Sprintf("another manager %t", another), func(t *testing.T) {
			w := newWorld(t, subjects[0], faults{})
			w.create()
			manager := w.toRest("create", w.leader(0))
			w.clock.SetTime(w.clock.Now().Add(time.Minute))
			if another {
				manager = w.leader(0)
			}
			writes, acts := w.writes, w.acts
			w.faults.act = func(int, bool) error {
				w.Expect(w.writes).To(Equal(writes), "nothing is written before the start")
				return nil
			}
			w.rt.Exit(uid, facts.Exit{Known: true, Code: 4})
			w.toRest("crash", manager)
			w.Expect(w.acts).To(Equal(acts+1), "one start")
			w.Expect(w.writes).To(Equal(writes+1), "one write")
			status := w.read().GetProcessStatus()
			w.Expect(status.Incarnation).To(BeEquivalentTo(2))
			w.Expect(status.ReservedIncarnation).To(BeEquivalentTo(3))
			w.Expect(status.RestartCount).To(BeEquivalentTo(1))
			w.Expect(status.Failures).To(BeEquivalentTo(1))
			w.Expect(status.LastExit.Incarnation).To(BeEquivalentTo(1))
			w.Expect(status.LastExit.Reason).To(Equal(v1alpha1.ReasonFailed))
			w.Expect(*status.LastExit.ExitCode).To(BeEquivalentTo(4))
			w.Expect(atRest(w.read())).To(BeTrue())
		})
	}
}

// TestStartAheadThatFails has the start of a crashed process fail: from then on the status says that it does not run.
func TestStartAheadThatFails(t *testing.T) {
	w := newWorld(t, subjects[0], faults{})
	w.create()
	manager := w.toRest("create", w.leader(0))
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.rt.Exit(uid, facts.Exit{Known: true, Code: 4})
	w.faults.act = func(int, bool) error { return errFault }
	for range 2 {
		_, err := manager.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		w.Expect(err).To(MatchError(errFault))
	}
	w.Expect(describe(w.read())).To(And(ContainSubstring("incarnation 2"), ContainSubstring("Ready=False StartFailed")))
	w.faults.act = nil
	w.toRest("mended", manager)
	w.Expect(w.rt.Live(uid)).To(ConsistOf(int64(2)))
}
