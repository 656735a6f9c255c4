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

// TestProcess_CrashAtEveryWrite crashes the manager at each write: once before the write reaches the API, and once after the write took effect but before the
// manager received the response.
func TestProcess_CrashAtEveryWrite(t *testing.T) {
	testEveryCall(t, func(r baseline) int { return r.writes }, func(n int, after bool, onFault func()) faults {
		return faults{write: faultAtCall(n, after, onFault)}
	})
}

// TestProcess_CrashAtEveryRuntimeCall crashes the manager before each call that changes the runtime, and after the call took effect.
func TestProcess_CrashAtEveryRuntimeCall(t *testing.T) {
	testEveryCall(t, func(r baseline) int { return r.acts }, func(n int, after bool, onFault func()) faults {
		return faults{act: faultAtCall(n, after, onFault)}
	})
}

// testEveryCall runs the scenario twice for each call at which a fault can occur: with the fault before the call, and with the fault after it.
func testEveryCall(t *testing.T, calls func(baseline) int, plan func(n int, after bool, onFault func()) faults) {
	for i, s := range kindsUnderTest {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := runBaseline(t, s)
			// All kinds share the reconcile loop, so it suffices to test the first kind at every call and each other kind at every third call.
			for n := 1; n <= calls(want); n += 1 + 2*min(i, 1) {
				for when, after := range map[string]bool{"before": false, "after": true} {
					t.Run(fmt.Sprintf("%s %d", when, n), func(t *testing.T) {
						w := newWorld(t, s, faults{})
						w.faults = plan(n, after, func() { w.faultOccurred = true })
						want.compare(t, w.runScenario())
					})
				}
			}
		})
	}
}

// faultAtCall returns a fault that occurs once: at the nth call, before or after the call takes effect.
func faultAtCall(n int, after bool, onFault func()) func(int, bool) error {
	return func(call int, done bool) error {
		if call == n && done == after {
			onFault()
			return errFault
		}
		return nil
	}
}

// TestProcess_RandomCrashes crashes the manager repeatedly. The subtest name contains the seed.
func TestProcess_RandomCrashes(t *testing.T) {
	for _, s := range kindsUnderTest {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := runBaseline(t, s)
			for seed := range uint64(4) {
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 0))
					sometimes := func(int, bool) error {
						if random.IntN(5) == 0 {
							return errFault
						}
						return nil
					}
					want.compare(t, newWorld(t, s, faults{write: sometimes, act: sometimes}).runScenario())
				})
			}
		})
	}
}

// TestProcess_CrashIsRecordedInOneWrite crashes a process that ran for a minute, once under the current manager and once under a new manager. Each manager must
// start the next incarnation before any write, and then record the crash and the start in one write. If the process is then not ready yet, a second write
// records that it is ready.
func TestProcess_CrashIsRecordedInOneWrite(t *testing.T) {
	for _, s := range kindsUnderTest[:2] {
		for _, another := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, another manager %t", s.name, another), func(t *testing.T) { crashRunningProcess(t, s, another) })
		}
	}
}

func crashRunningProcess(t *testing.T, s kindUnderTest, another bool) {
	w := newWorld(t, s, faults{})
	w.create()
	manager := w.reconcileToRest("create", w.newReconciler(0))
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	if another {
		manager = w.newReconciler(0)
	}
	writes, acts := w.writes, w.acts
	w.faults.act = func(int, bool) error {
		w.Expect(w.writes).To(Equal(writes), "no write may precede the start")
		return nil
	}
	w.faults.write = func(n int, applied bool) error {
		if status := w.read().GetProcessStatus(); applied && n == writes+1 {
			w.Expect(status.Incarnation).To(BeEquivalentTo(2))
			w.Expect(status.Process).To(HaveField("Incarnation", int64(2)), "the crash, the start and the process are one write")
		}
		return nil
	}
	w.rt.Exit(uid, facts.Exit{Known: true, Code: 4})
	w.reconcileToRest("crash", manager)
	w.Expect(w.acts).To(Equal(acts+1), "one start")
	if s.asynchronous {
		w.Expect(w.writes).To(BeNumerically("<=", writes+2), "one write, and one when the process is ready")
	} else {
		w.Expect(w.writes).To(Equal(writes+1), "one write")
	}
	status := w.read().GetProcessStatus()
	w.Expect(status.Incarnation).To(BeEquivalentTo(2))
	w.Expect(status.ReservedIncarnation).To(BeEquivalentTo(3))
	w.Expect(status.RestartCount).To(BeEquivalentTo(1))
	w.Expect(status.Failures).To(BeEquivalentTo(1))
	w.Expect(status.LastExit.Incarnation).To(BeEquivalentTo(1))
	w.Expect(status.LastExit.Reason).To(Equal(v1alpha1.ReasonFailed))
	w.Expect(*status.LastExit.ExitCode).To(BeEquivalentTo(4))
	w.Expect(atRest(w.read())).To(BeTrue())
}

// TestProcess_FailedRestartIsReported checks that the status reports the failure when the start of a crashed process fails.
func TestProcess_FailedRestartIsReported(t *testing.T) {
	w := newWorld(t, kindsUnderTest[0], faults{})
	w.create()
	manager := w.reconcileToRest("create", w.newReconciler(0))
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.rt.Exit(uid, facts.Exit{Known: true, Code: 4})
	w.faults.act = func(int, bool) error { return errFault }
	for range 2 {
		_, err := manager.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		w.Expect(err).To(MatchError(errFault))
	}
	w.Expect(describe(w.read())).To(And(ContainSubstring("incarnation 2"), ContainSubstring("Ready=False StartFailed")))
	w.faults.act = nil
	w.reconcileToRest("corrected", manager)
	w.Expect(w.rt.Live(uid)).To(ConsistOf(int64(2)))
}
