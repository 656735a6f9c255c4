// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestStrategy_TwoLeaders lets two managers reconcile the strategy and its runs. Before each API call, a random choice decides which manager continues,
// so that one can pause between any two calls while the other completes several runs. The subtest name contains the seed.
func TestStrategy_TwoLeaders(t *testing.T) {
	want, _ := strategyWithoutFaults(t)
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			compareStrategyOutcomes(t, want, runStrategyScenarioWithTwoLeaders(t, rand.New(rand.NewPCG(seed, 5))))
		})
	}
}

// strategyLeader is a manager that pauses before each API call until the test lets it continue. In each round it reconciles all objects that may still change.
type strategyLeader struct {
	manager *strategyManager
	proceed chan struct{}
	reports chan strategyReport
	// busy means that the leader is within a round; quiet means that nothing has changed since the current or last round of the leader began.
	busy, quiet bool
	soonest     time.Duration
}

// strategyReport is the message that a leader sends when it pauses within or after a round.
type strategyReport struct {
	done    bool
	soonest time.Duration
	err     error
}

func (r *strategyLeader) run(w *strategyWorld) {
	for range r.proceed {
		message := strategyReport{done: true}
		for _, name := range w.activeNames() {
			result, err := r.manager.reconcile(w.ctx, name)
			if err != nil {
				message.err = err
				break
			}
			if wait := result.RequeueAfter; wait > 0 && (message.soonest == 0 || wait < message.soonest) {
				message.soonest = wait
			}
		}
		r.reports <- message
	}
}

func (r *strategyLeader) waitForTurn() {
	r.reports <- strategyReport{}
	<-r.proceed
}

func runStrategyScenarioWithTwoLeaders(t *testing.T, random *rand.Rand) []strategyOutcome {
	leaders := make([]*strategyLeader, 2)
	for i := range leaders {
		leaders[i] = &strategyLeader{proceed: make(chan struct{}), reports: make(chan strategyReport)}
	}
	w := newStrategyWorld(t, faults{
		turn: func(number int) { leaders[number].waitForTurn() },
		lag:  func(int) int { return max(0, random.IntN(33)-30) },
	})
	for i, r := range leaders {
		r.manager = w.newStrategyManager(i)
		go r.run(w)
		t.Cleanup(func() { close(r.proceed) })
	}
	return w.runStrategyScenarioWith(func(step strategyStep) { w.interleaveStrategyLeaders(step, leaders, random) })
}

// interleaveStrategyLeaders lets the leaders take turns until the step is complete and a round of either leader would change nothing.
func (w *strategyWorld) interleaveStrategyLeaders(step strategyStep, leaders []*strategyLeader, random *rand.Rand) {
	w.t.Helper()
	for _, r := range leaders {
		r.quiet = false
	}
	for range 50_000 {
		i := random.IntN(len(leaders))
		r := leaders[i]
		writes, acts := w.writes, w.acts
		if !r.busy {
			r.busy, r.quiet, w.lagged[i] = true, true, false
		}
		r.proceed <- struct{}{}
		message := <-r.reports
		if w.writes != writes || w.acts != acts {
			for _, other := range leaders {
				other.quiet = false
			}
		}
		if !message.done {
			continue
		}
		w.Expect(message.err).NotTo(HaveOccurred(), step.name)
		r.busy, r.soonest = false, message.soonest
		r.quiet = r.quiet && !w.lagged[i]
		if leaders[0].busy || leaders[1].busy || !leaders[0].quiet || !leaders[1].quiet {
			continue
		}
		if !w.exitPendingRun() {
			if step.done(w) {
				return
			}
			w.clock.SetTime(w.clock.Now().Add(leaders[random.IntN(len(leaders))].soonest))
		}
		leaders[0].quiet, leaders[1].quiet = false, false
	}
	w.t.Fatalf("%s: did not come to rest: %+v", step.name, w.currentOutcome(step.name))
}
