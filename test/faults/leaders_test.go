// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// TestProcess_TwoLeaders lets two managers reconcile one object. Their cache reads are current, or one or two writes old, at random. Before each API call, a
// random choice decides which manager continues, so that one can pause while the other completes several incarnations. The subtest name contains the
// seed.
func TestProcess_TwoLeaders(t *testing.T) {
	for _, s := range kindsUnderTest {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := runBaseline(t, s)
			for seed := range uint64(5) {
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					want.compare(t, runScenarioWithTwoLeaders(t, s, rand.New(rand.NewPCG(seed, 2))))
				})
			}
		})
	}
}

// TestProcess_LateStartOfReplacedLeader lets a leader hang before its start of incarnation 1. The spec changes, and the next leader records incarnation 1 with
// the new spec, but crashes before it starts the process. Then the first leader continues and starts incarnation 1 with the old spec. No lock prevents
// this for Pods, so the next leader must replace that process.
func TestProcess_LateStartOfReplacedLeader(t *testing.T) {
	for _, s := range kindsUnderTest {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, s, faults{})
			w.slowStart = true
			w.rt.Unguarded()
			w.faults.act = func(n int, done bool) error {
				switch {
				case n == 1 && !done:
					w.change(func(s *v1alpha1.ProcessSpec) {
						s.Process.Command, s.RestartToken = []string{"serve", "--more"}, "one"
					})
					_, err := w.newReconciler(1).Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
					w.Expect(err).To(MatchError(errFault))
					w.Expect(w.acts).To(Equal(2), "the next leader has recorded its start")
				case n == 2:
					return errFault
				}
				return nil
			}
			w.create()
			reconciler := w.reconcileToRest("create", w.newReconciler(0))
			runs, _ := w.rt.Process(uid)
			w.Expect(runs.Command).To(Equal([]string{"serve", "--more"}))
			w.Expect(w.rt.Live(uid)).To(Equal([]int64{2}))
			w.Expect(w.read().GetProcessStatus().ObservedRestartToken).To(Equal("one"))
			w.Expect(w.rt.Violations()).To(BeEmpty())
			w.expectNoWrites("create")
			w.Expect(w.api.Delete(w.ctx, w.read())).To(Succeed())
			w.reconcileToRest("delete", reconciler)
		})
	}
}

// leader is a manager that pauses before each API call until the test lets it continue.
type leader struct {
	reconciler *process.Reconciler
	busy       bool
	// quiet means that nothing has changed since the leader's last reconcile began.
	quiet   bool
	result  ctrl.Result
	proceed chan struct{}
	reports chan report
}

// report is the message that a leader sends when it pauses within or after a reconcile.
type report struct {
	done   bool
	result ctrl.Result
	err    error
}

// run starts a reconcile each time the test lets the leader continue after the previous reconcile, and reports the result.
func (l *leader) run(w *world) {
	for range l.proceed {
		result, err := l.reconciler.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		l.reports <- report{done: true, result: result, err: err}
	}
}

// waitForTurn pauses the leader before an API call.
func (l *leader) waitForTurn() {
	l.reports <- report{}
	<-l.proceed
}

func runScenarioWithTwoLeaders(t *testing.T, s kindUnderTest, random *rand.Rand) []outcome {
	leaders := make([]*leader, 2)
	for i := range leaders {
		leaders[i] = &leader{proceed: make(chan struct{}), reports: make(chan report)}
	}
	w := newWorld(t, s, faults{
		turn: func(number int) { leaders[number].waitForTurn() },
		lag:  func(int) int { return max(0, random.IntN(5)-2) },
	})
	for i, l := range leaders {
		l.reconciler = w.newReconciler(i)
		go l.run(w)
		t.Cleanup(func() { close(l.proceed) })
	}
	return w.runScenarioWith(func(step string) { w.interleave(step, leaders, random) })
}

// interleave lets the leaders take turns until the object is at rest and a reconcile of either leader would change nothing.
func (w *world) interleave(step string, leaders []*leader, random *rand.Rand) {
	w.t.Helper()
	for _, l := range leaders {
		l.quiet = false
	}
	for range 20_000 {
		i := random.IntN(len(leaders))
		l := leaders[i]
		writes, acts := w.writes, w.acts
		if !l.busy {
			l.busy, l.quiet = true, true
		}
		l.proceed <- struct{}{}
		message := <-l.reports
		if w.writes != writes || w.acts != acts {
			for _, other := range leaders {
				other.quiet = false
			}
		}
		if !message.done {
			continue
		}
		w.Expect(message.err).NotTo(HaveOccurred(), step)
		l.busy, l.result = false, message.result
		l.quiet = l.quiet && !w.lagged[i]
		if leaders[0].busy || leaders[1].busy || !leaders[0].quiet || !leaders[1].quiet {
			continue
		}
		if atRest(w.read()) {
			return
		}
		w.passTime(leaders[random.IntN(len(leaders))].result)
		leaders[0].quiet, leaders[1].quiet = false, false
	}
	w.t.Fatalf("%s: did not come to rest: %s", step, describe(w.read()))
}
