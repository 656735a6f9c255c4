// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

// failRuns creates runs that end with exit code 1, from many clients concurrently, and returns the runs.
func failRuns(ctx context.Context, s *v1alpha1.Strategy, name string, n int) []*v1alpha1.StrategyRun {
	runs := make([]*v1alpha1.StrategyRun, n)
	inParallel(n, func(i int) error {
		runs[i] = newRun(s, fmt.Sprintf("%s-%03d", name, i), 1, "")
		return k8s.Create(ctx, runs[i])
	})
	return runs
}

var _ = row("R17", "100 concurrent failures are counted as exactly 100", func(ctx context.Context) {
	s := newStrategy("hundred", 1000)
	Expect(k8s.Create(ctx, s)).To(Succeed())
	runs := failRuns(ctx, s, "hundred", 100)
	last := waitForCounted(ctx, s, len(runs))
	Consistently(ctx, func(g Gomega) {
		last, err := strategyNow(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(last.Status.Breaker.Failures).To(Equal(int32(100)), "each failure is counted once")
		g.Expect(last.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Failed: 100}), "each failure is counted once")
	}).Should(Succeed())
	Expect(last.Status.Breaker.State).To(Equal(v1alpha1.BreakerClosed))
	expectExecutedOnce(runs)
})

var _ = row("R18", "the breaker opens exactly at the threshold", func(ctx context.Context) {
	const threshold = 5
	s := newStrategy("exact", threshold)
	Expect(k8s.Create(ctx, s)).To(Succeed())
	seen := watchStrategy(ctx, s)
	failRuns(ctx, s, "below", threshold-1)
	below := waitForCounted(ctx, s, threshold-1)
	Expect(below.Status.Breaker.State).To(Equal(v1alpha1.BreakerClosed), "the breaker opens exactly at the threshold, not before")
	failRuns(ctx, s, "at", 1)
	at := waitForCounted(ctx, s, threshold)
	Expect(at.Status.Breaker.State).To(Equal(v1alpha1.BreakerOpen), "the breaker opens exactly at the threshold, not after")
	skipped := failRuns(ctx, s, "beyond", 3)
	last := waitForCounted(ctx, s, threshold+len(skipped))
	Expect(last.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Failed: threshold, SkippedCircuitOpen: 3}))
	Expect(checkBreakerStates(seen.upTo(ctx, last), threshold)).To(Succeed())
})

var _ = row("R19", "concurrent successes and failures count in some serial order, and the breaker is open exactly from the threshold on, at every read", func(ctx context.Context) {
	const writers, each, threshold = 20, 4, 3
	s := newStrategy("mixed", threshold)
	Expect(k8s.Create(ctx, s)).To(Succeed())
	seen := watchStrategy(ctx, s)
	inParallel(writers, func(i int) error {
		for n := range each {
			r := newRun(s, fmt.Sprintf("mixed-%02d-%d", i, n), (i*7+n*3)%5%2, "")
			if err := k8s.Create(ctx, r); err != nil {
				return err
			}
			outcome, err := waitForOutcome(ctx, r)
			if err := errors.Join(err, checkBreakerStates(seen.soFar(), threshold)); err != nil {
				return err
			}
			if outcome == v1alpha1.OutcomeSkipped {
				if err := resetStrategy(ctx, s, r.Name); err != nil {
					return err
				}
			}
		}
		return nil
	})
	last := waitForCounted(ctx, s, writers*each)
	Expect(totalRuns(last.Status.Totals)).To(Equal(writers * each))
	states := seen.upTo(ctx, last)
	Expect(checkBreakerStates(states, threshold)).To(Succeed())
	expectSerialCounts(ctx, s, states, threshold)
})

var _ = row("R20", "the failures of all clients add up, and every later run sees an open breaker", func(ctx context.Context) {
	const clients, threshold = 8, 10
	s := newStrategy("shared", threshold)
	Expect(k8s.Create(ctx, s)).To(Succeed())
	var mu sync.Mutex
	created, later := 0, []string{}
	inParallel(clients, func(i int) error {
		for n, after := 0, 0; after < 3; n++ {
			now, err := strategyNow(ctx, s)
			if err != nil {
				return err
			}
			open := now.Status.Breaker.State == v1alpha1.BreakerOpen
			r := newRun(s, fmt.Sprintf("shared-%d-%d", i, n), 1, "")
			if err := k8s.Create(ctx, r); err != nil {
				return err
			}
			mu.Lock()
			created++
			if open {
				after++
				later = append(later, r.Name)
			}
			mu.Unlock()
			if _, err := waitForOutcome(ctx, r); err != nil {
				return err
			}
		}
		return nil
	})
	last := waitForCounted(ctx, s, created)
	for _, note := range notes("starts", "") {
		Expect(later).NotTo(ContainElement(note.name), "no process of a run that was created after the breaker had opened")
	}
	Expect(last.Status.Totals).To(Equal(v1alpha1.StrategyTotals{
		Failed: int64(last.Status.Breaker.Failures), SkippedCircuitOpen: int64(created) - int64(last.Status.Breaker.Failures),
	}))
	Expect(last.Status.Breaker.Failures).To(BeNumerically(">=", threshold))
	Expect(notes("starts", "")).To(HaveLen(int(last.Status.Breaker.Failures)), "no process except those of the runs that failed")
})

var _ = row("R21", "all strategies are reset while 50 runs are in flight: none of these runs counts after the reset, and no breaker stays open", func(ctx context.Context) {
	strategies := []*v1alpha1.Strategy{newStrategy("a", 3), newStrategy("b", 3), newStrategy("open", 3)}
	gate := gateFile("reset")
	var flying []*v1alpha1.StrategyRun
	for _, s := range strategies {
		Expect(k8s.Create(ctx, s)).To(Succeed())
		for n := range 17 - len(flying)/34 {
			flying = append(flying, newRun(s, fmt.Sprintf("%s-%02d", s.Name, n), 1, gate))
		}
	}
	inParallel(len(flying), func(i int) error { return k8s.Create(ctx, flying[i]) })
	waitForStarted(ctx, flying)
	failRuns(ctx, strategies[2], "opens", 3)
	Expect(waitForCounted(ctx, strategies[2], 3).Status.Breaker.State).To(Equal(v1alpha1.BreakerOpen))

	var resets sync.WaitGroup
	errs := make([]error, len(strategies))
	for i, s := range strategies {
		resets.Go(func() { errs[i] = resetStrategy(ctx, s, "all") })
	}
	Expect(os.WriteFile(gate, nil, 0o600)).To(Succeed()) // the runs end during the reset
	resets.Wait()
	Expect(errors.Join(errs...)).To(Succeed())
	total := 0
	for i, s := range strategies {
		want := slices.IndexFunc(flying, func(r *v1alpha1.StrategyRun) bool { return r.Spec.StrategyRef.Name == s.Name })
		Expect(want).To(BeNumerically(">=", 0))
		n := 0
		for _, r := range flying {
			if r.Spec.StrategyRef.Name == s.Name {
				n++
			}
		}
		if i == 2 {
			n += 3
		}
		last := waitForCounted(ctx, s, n)
		total += int(last.Status.Totals.Failed)
		Expect(last.Status.Breaker.Failures).To(BeZero(), "no run that began before the reset counts after it: %s", s.Name)
		Expect(last.Status.Breaker.State).To(Equal(v1alpha1.BreakerClosed), "no breaker stays open")
		failRuns(ctx, s, s.Name+"-later", 1)
		Expect(waitForCounted(ctx, s, n+1).Status.Breaker.Failures).To(Equal(int32(1)), "a run that begins after the reset counts")
	}
	Expect(total).To(Equal(len(flying) + 3))
})

// eventlessRuntime is the runtime of a second manager. It emits no events, so that the manager learns of changes only from the API server, and it carries out
// every start twice.
type eventlessRuntime struct{ backend }

func (eventlessRuntime) Events() <-chan types.UID { return nil }

func (d eventlessRuntime) Start(ctx context.Context, p runtime.Process) error {
	return errors.Join(d.backend.Start(ctx, p), d.backend.Start(ctx, p))
}

var _ = row("R33", "each run is executed once, although responses are lost, managers come and go, and two managers act at once", func(ctx context.Context) {
	s := newStrategy("once", 1000)
	Expect(k8s.Create(ctx, s)).To(Succeed())
	lost := map[types.UID]bool{}
	var mu sync.Mutex
	env.faults.setHooks(func(w *faultInjector) {
		w.onStart = func(p runtime.Process, start func() error) error {
			err := start()
			mu.Lock()
			defer mu.Unlock()
			if err == nil && !lost[p.UID] {
				lost[p.UID] = true
				return errors.New("the response is lost")
			}
			return err
		}
	})
	another := env.runManager(runtime.NewRegistry(withOwnCapabilities{eventlessRuntime{env.rt}}, logr.Discard()))
	defer func() { another() }()
	gate := gateFile("once")
	runs := make([]*v1alpha1.StrategyRun, 30)
	for i := range runs {
		runs[i] = newRun(s, fmt.Sprintf("once-%02d", i), i%2, map[bool]string{true: gate}[i%3 == 0])
	}
	for _, part := range [][]*v1alpha1.StrategyRun{runs[:10], runs[10:20], runs[20:]} {
		inParallel(len(part), func(i int) error { return k8s.Create(ctx, part[i]) })
		another()
		env.stopManager()
		env.start()
		another = env.runManager(runtime.NewRegistry(withOwnCapabilities{eventlessRuntime{env.rt}}, logr.Discard()))
	}
	Expect(os.WriteFile(gate, nil, 0o600)).To(Succeed())
	waitForStarted(ctx, runs)
	expectExecutedOnce(runs)
	last := waitForCounted(ctx, s, len(runs))
	Expect(last.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: 15, Failed: 15}), "exactly one execution and one outcome")
	expectExecutedOnce(runs)
})
