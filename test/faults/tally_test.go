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

	"github.com/berth-dev/berth/api/v1alpha1"
)

// The tests of this file apply the same faults as the tests of process kinds, to a Strategy and its runs. In every case each run must be started once
// and counted once, and the breaker must have the same state as in the run without faults.

func compareTales(t *testing.T, want, got []telling) {
	t.Helper()
	if diff := cmp.Diff(want[:len(got)], got); diff != "" {
		t.Errorf("differs from the undisturbed run (-undisturbed +disturbed):\n%s", diff)
	}
}

func TestTallyCrashAtEveryWriteAndAct(t *testing.T) {
	want, calls := undisturbedTale(t)
	for what, places := range map[string]int{"write": calls.writes, "act": calls.acts} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for n := 1; n <= places; n++ {
				for when, after := range map[string]bool{"before": false, "after": true} {
					t.Run(fmt.Sprintf("%s %d", when, n), func(t *testing.T) {
						w := newTallyWorld(t, faults{})
						fault := once(n, after, func() { w.struck = true })
						if what == "write" {
							w.faults.write = fault
						} else {
							w.faults.act = fault
						}
						compareTales(t, want, w.alone())
						if !w.struck {
							t.Error("the fault did not occur")
						}
					})
				}
			}
		})
	}
}

func TestTallyCrashesAtRandom(t *testing.T) {
	want, _ := undisturbedTale(t)
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
			compareTales(t, want, newTallyWorld(t, faults{write: sometimes, act: sometimes}).alone())
		})
	}
}

// TestTallyStaleReadAtEveryRead runs the tale once for every seventh cache read. In each run, that one read returns the state of one or two writes
// ago. The test does this with one manager, and with a new manager for every reconcile.
func TestTallyStaleReadAtEveryRead(t *testing.T) {
	want, calls := undisturbedTale(t)
	for _, forgetful := range []bool{false, true} {
		t.Run(fmt.Sprintf("forgetful %v", forgetful), func(t *testing.T) {
			t.Parallel()
			for n := 1; n <= calls.reads; n += 7 {
				lag := 1 + n%2
				t.Run(fmt.Sprintf("read %d is %d old", n, lag), func(t *testing.T) {
					w := newTallyWorld(t, faults{forgetful: forgetful})
					w.faults.lag = func(read int) int {
						if read != n {
							return 0
						}
						w.struck = true
						return lag
					}
					compareTales(t, want, w.alone())
				})
			}
		})
	}
}

func TestTallyStaleReadsAtRandom(t *testing.T) {
	want, _ := undisturbedTale(t)
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 4))
			// About one in eight reads is stale, so that some rounds have no stale read.
			lag := func(int) int { return max(0, random.IntN(17)-14) }
			compareTales(t, want, newTallyWorld(t, faults{lag: lag, forgetful: seed%2 == 0}).alone())
		})
	}
}

func TestUndisturbedTale(t *testing.T) {
	told, calls := undisturbedTale(t)
	g := NewWithT(t)
	g.Expect(told).To(HaveLen(len(tale)))
	t.Logf("%d writes, %d acts, %d reads", calls.writes, calls.acts, calls.reads)
}

// TestTallyRemembersAnotherStrategy gives a manager a stale read that returns a deleted strategy with the same name. The manager must still count a run
// of the new strategy before it releases the run.
func TestTallyRemembersAnotherStrategy(t *testing.T) {
	g := NewWithT(t)
	old := 0
	// Only the first read after old is set is stale. This is a read of the strategy; the reads of runs are current.
	w := newTallyWorld(t, faults{lag: func(int) int {
		lag := old
		old = 0
		return lag
	}})
	manager := w.newTallier(0)
	reconcile := func(name string) {
		_, err := manager.reconcile(w.ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
	}
	w.createStrategy()
	reconcile(strategyName)
	first := w.strategyNow()
	g.Expect(w.api.Delete(w.ctx, first)).To(Succeed())
	w.note(strategyName)
	second := first.DeepCopy()
	second.UID, second.ResourceVersion, second.Status = "another", "", v1alpha1.StrategyStatus{}
	g.Expect(w.api.Create(w.ctx, second)).To(Succeed())
	w.note(strategyName)
	reconcile(strategyName)
	w.createRun("bad")
	for range 6 {
		reconcile("bad")
		if len(w.rt.Live(uidOf("bad"))) > 0 {
			w.exit("bad", 1)
		}
	}
	g.Expect(w.runNow("bad").Status.Outcome).To(Equal(v1alpha1.RunFailed))

	old = 3
	for range 4 {
		reconcile(strategyName)
	}
	g.Expect(w.strategyNow().Status.Totals.Failed).To(BeEquivalentTo(1))
	g.Expect(w.runNow("bad").Finalizers).To(HaveLen(1))
}

// TestAQuickRunTakesFourWrites checks that a run that is created with its finalizers and ends immediately is written only four times: create, intent,
// result, counted. A longer run must also record its process.
func TestAQuickRunTakesFourWrites(t *testing.T) {
	g := NewWithT(t)
	w := newTallyWorld(t, faults{lag: func(int) int { return 0 }})
	manager := w.newTallier(0)
	look := func(names ...string) (soonest time.Duration) {
		for _, name := range names {
			result, err := manager.reconcile(w.ctx, name)
			g.Expect(err).NotTo(HaveOccurred())
			soonest = result.RequeueAfter
		}
		return soonest
	}
	w.createStrategy()
	look(strategyName)
	w.createRun("quick", v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount)
	look("quick")
	g.Expect(w.rt.Live(uidOf("quick"))).To(HaveLen(1))
	g.Expect(look("quick")).To(BeNumerically(">", 0), "the run must be checked again without an event")
	w.exit("quick", 0)
	look("quick", strategyName, strategyName, "quick")
	g.Expect(w.runNow("quick").Status.Outcome).To(Equal(v1alpha1.RunSucceeded))
	g.Expect(w.runNow("quick").Finalizers).To(Equal([]string{v1alpha1.FinalizerProcess}))
	g.Expect(w.history["quick"]).To(HaveLen(4))

	w.createRun("slow", v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount)
	look("slow")
	w.clock.SetTime(w.clock.Now().Add(look("slow")))
	look("slow")
	g.Expect(w.runNow("slow").Status.Process).NotTo(BeNil(), "the process of a running run must be recorded")
}
