// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// The tests of this file apply the same faults as the tests of process kinds, to a Strategy and its runs. In every case each run must be started once
// and counted once, and the breaker must have the same state as in the run without faults.

func compareStrategyOutcomes(t *testing.T, want, got []strategyOutcome) {
	t.Helper()
	if diff := cmp.Diff(want[:len(got)], got); diff != "" {
		t.Errorf("differs from the run without faults (-without +with):\n%s", diff)
	}
}

func TestStrategy_CrashAtEveryCall(t *testing.T) {
	want, calls := strategyWithoutFaults(t)
	for what, count := range map[string]int{"write": calls.writes, "act": calls.acts} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for n := 1; n <= count; n++ {
				for when, after := range map[string]bool{"before": false, "after": true} {
					t.Run(fmt.Sprintf("%s %d", when, n), func(t *testing.T) {
						w := newStrategyWorld(t, faults{})
						fault := faultAtCall(n, after, func() { w.faultOccurred = true })
						if what == "write" {
							w.faults.write = fault
						} else {
							w.faults.act = fault
						}
						compareStrategyOutcomes(t, want, w.runStrategyScenario())
						if !w.faultOccurred {
							t.Error("the fault did not occur")
						}
					})
				}
			}
		})
	}
}

func TestStrategy_RandomCrashes(t *testing.T) {
	want, _ := strategyWithoutFaults(t)
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 3))
			sometimes := func(int, bool) error {
				if random.IntN(6) == 0 {
					return errFault
				}
				return nil
			}
			compareStrategyOutcomes(t, want, newStrategyWorld(t, faults{write: sometimes, act: sometimes}).runStrategyScenario())
		})
	}
}

// TestStrategy_StaleReadAtEveryRead runs the scenario once for every seventh cache read. In each run, that one read returns the state of one or two writes
// ago. The test does this with one manager, and with a new manager for every reconcile.
func TestStrategy_StaleReadAtEveryRead(t *testing.T) {
	want, calls := strategyWithoutFaults(t)
	for _, newLeaderPerReconcile := range []bool{false, true} {
		t.Run(fmt.Sprintf("new leader for every reconcile %v", newLeaderPerReconcile), func(t *testing.T) {
			t.Parallel()
			for n := 1; n <= calls.reads; n += 7 {
				lag := 1 + n%2
				t.Run(fmt.Sprintf("read %d is %d writes old", n, lag), func(t *testing.T) {
					w := newStrategyWorld(t, faults{newLeaderPerReconcile: newLeaderPerReconcile})
					w.faults.lag = func(read int) int {
						if read != n {
							return 0
						}
						w.faultOccurred = true
						return lag
					}
					compareStrategyOutcomes(t, want, w.runStrategyScenario())
				})
			}
		})
	}
}

func TestStrategy_RandomStaleReads(t *testing.T) {
	want, _ := strategyWithoutFaults(t)
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 4))
			// About one in eight reads is stale, so that some rounds have no stale read.
			lag := func(int) int { return max(0, random.IntN(17)-14) }
			compareStrategyOutcomes(t, want, newStrategyWorld(t, faults{lag: lag, newLeaderPerReconcile: seed%2 == 0}).runStrategyScenario())
		})
	}
}

func TestStrategy_WithoutFaults(t *testing.T) {
	outcomes, calls := strategyWithoutFaults(t)
	g := NewWithT(t)
	g.Expect(outcomes).To(HaveLen(len(strategyScenario)))
	t.Logf("%d writes, %d acts, %d reads", calls.writes, calls.acts, calls.reads)
}

// TestStrategy_StaleReadOfDeletedStrategy gives a manager a stale read that returns a deleted strategy with the same name. The manager must still count a run
// of the new strategy before it releases the run.
func TestStrategy_StaleReadOfDeletedStrategy(t *testing.T) {
	g := NewWithT(t)
	old := 0
	// When the test sets the variable old, only the next read is stale. That read is a read of the strategy; the reads of runs are current.
	w := newStrategyWorld(t, faults{lag: func(int) int {
		lag := old
		old = 0
		return lag
	}})
	manager := w.newStrategyManager(0)
	reconcile := func(name string) {
		_, err := manager.reconcile(w.ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
	}
	w.createStrategy()
	reconcile(strategyName)
	first := w.strategyNow()
	g.Expect(w.api.Delete(w.ctx, first)).To(Succeed())
	w.recordObject(strategyName)
	second := first.DeepCopy()
	second.UID, second.ResourceVersion, second.Status = "another", "", v1alpha1.StrategyStatus{}
	g.Expect(w.api.Create(w.ctx, second)).To(Succeed())
	w.recordObject(strategyName)
	reconcile(strategyName)
	w.createRun("bad")
	for range 6 {
		reconcile("bad")
		if len(w.rt.Live(uidOf("bad"))) > 0 {
			w.exit("bad", 1)
		}
	}
	g.Expect(w.runNow("bad").Status.Outcome).To(Equal(v1alpha1.OutcomeFailed))

	old = 3
	for range 4 {
		reconcile(strategyName)
	}
	g.Expect(w.strategyNow().Status.Totals.Failed).To(BeEquivalentTo(1))
	g.Expect(w.runNow("bad").Finalizers).To(HaveLen(1))
}

// TestStrategyRun_ShortRunNeedsFiveWrites checks that a run that is created with its finalizers and ends immediately is written only five times: its
// creation, the mark that tells copies of it apart, the intent to start, the result, and the removal of the count finalizer. A run of a plan needs no mark. A
// longer run must also record its process.
func TestStrategyRun_ShortRunNeedsFiveWrites(t *testing.T) {
	g := NewWithT(t)
	w := newStrategyWorld(t, faults{lag: func(int) int { return 0 }})
	manager := w.newStrategyManager(0)
	reconcile := func(names ...string) (soonest time.Duration) {
		for _, name := range names {
			result, err := manager.reconcile(w.ctx, name)
			g.Expect(err).NotTo(HaveOccurred())
			soonest = result.RequeueAfter
		}
		return soonest
	}
	w.createStrategy()
	reconcile(strategyName)
	plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "plan", UID: "plan-uid"}}
	g.Expect(w.api.Create(w.ctx, plan)).To(Succeed())
	w.createRun("quick", v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount)
	w.createRunOf(plan, "of-plan", v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount)
	for name, writes := range map[string]int{"quick": 5, "of-plan": 4} {
		reconcile(name)
		g.Expect(w.rt.Live(uidOf(name))).To(HaveLen(1))
		g.Expect(reconcile(name)).To(BeNumerically(">", 0), "the run must be checked again without an event")
		w.exit(name, 0)
		reconcile(name, strategyName, strategyName, name)
		g.Expect(w.runNow(name).Status.Outcome).To(Equal(v1alpha1.OutcomeSucceeded))
		g.Expect(w.runNow(name).Finalizers).To(Equal([]string{v1alpha1.FinalizerProcess}))
		g.Expect(w.history[name]).To(HaveLen(writes), name)
	}

	w.createRun("slow", v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount)
	reconcile("slow")
	w.clock.SetTime(w.clock.Now().Add(reconcile("slow")))
	reconcile("slow")
	g.Expect(w.runNow("slow").Status.Process).NotTo(BeNil(), "the process of a running run must be recorded")
}
