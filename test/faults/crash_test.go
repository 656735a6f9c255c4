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

// TestCrashAtEveryWrite crashes the manager at each write: once before the write reaches the API, and once after the write took effect but before the
// manager received the response.
func TestCrashAtEveryWrite(t *testing.T) {
	everywhere(t, func(r reference) int { return r.writes }, func(n int, after bool, strike func()) faults {
		return faults{write: once(n, after, strike)}
	})
}

// TestCrashAtEveryAct crashes the manager before each call that changes the runtime, and after the call took effect.
func TestCrashAtEveryAct(t *testing.T) {
	everywhere(t, func(r reference) int { return r.acts }, func(n int, after bool, strike func()) faults {
		return faults{act: once(n, after, strike)}
	})
}

// everywhere runs the story twice for each call at which a fault can occur: with the fault before the call, and with the fault after it.
func everywhere(t *testing.T, places func(reference) int, plan func(n int, after bool, strike func()) faults) {
	for i, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := undisturbed(t, s)
			// All kinds share the reconcile loop, so it suffices to test the first kind at every call and each other kind at every third call.
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

// once returns a fault that strikes once: at the nth call, before or after the call takes effect.
func once(n int, after bool, strike func()) func(int, bool) error {
	return func(call int, done bool) error {
		if call == n && done == after {
			strike()
			return errFault
		}
		return nil
	}
}

// TestCrashesAtRandom crashes the manager repeatedly. The subtest name contains the seed.
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

// TestCrashIsToldInOneWrite checks what the current manager and a new one do after a process that ran for a minute crashes: they must start the next
// incarnation before any write, and then record the crash and the start in one write.
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
				w.Expect(w.writes).To(Equal(writes), "no write may precede the start")
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

// TestStartAheadThatFails checks that the status reports the failure when the start of a crashed process fails.
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
