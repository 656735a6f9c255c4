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

// TestTallyTwoLeaders lets two managers reconcile the strategy and its runs. Before each API call, a random choice decides which manager continues,
// so that one can pause between any two calls while the other completes several runs. The subtest name contains the seed.
func TestTallyTwoLeaders(t *testing.T) {
	want, _ := undisturbedTale(t)
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			compareTales(t, want, taleOfTwo(t, rand.New(rand.NewPCG(seed, 5))))
		})
	}
}

// rival is a manager that pauses before each API call until the test lets it continue. In each round it reconciles all objects that may still change.
type rival struct {
	manager *tallier
	forward chan struct{}
	reports chan round
	// busy means that the rival is within a round; quiet means that nothing has changed since the current or last round of the rival began.
	busy, quiet bool
	soonest     time.Duration
}

// round is the message that a rival sends when it pauses within or after a round.
type round struct {
	done    bool
	soonest time.Duration
	err     error
}

func (r *rival) run(w *tallyWorld) {
	for range r.forward {
		said := round{done: true}
		for _, name := range w.awake() {
			result, err := r.manager.reconcile(w.ctx, name)
			if err != nil {
				said.err = err
				break
			}
			if wait := result.RequeueAfter; wait > 0 && (said.soonest == 0 || wait < said.soonest) {
				said.soonest = wait
			}
		}
		r.reports <- said
	}
}

func (r *rival) turn() {
	r.reports <- round{}
	<-r.forward
}

func taleOfTwo(t *testing.T, random *rand.Rand) []telling {
	rivals := make([]*rival, 2)
	for i := range rivals {
		rivals[i] = &rival{forward: make(chan struct{}), reports: make(chan round)}
	}
	w := newTallyWorld(t, faults{
		turn: func(number int) { rivals[number].turn() },
		lag:  func(int) int { return max(0, random.IntN(33)-30) },
	})
	for i, r := range rivals {
		r.manager = w.newTallier(i)
		go r.run(w)
		t.Cleanup(func() { close(r.forward) })
	}
	return w.readTale(func(p page) { w.interleaveRivals(p, rivals, random) })
}

// interleaveRivals lets the rivals take turns until the page is complete and a round of either rival would change nothing.
func (w *tallyWorld) interleaveRivals(p page, rivals []*rival, random *rand.Rand) {
	w.t.Helper()
	for _, r := range rivals {
		r.quiet = false
	}
	for range 50_000 {
		i := random.IntN(len(rivals))
		r := rivals[i]
		writes, acts := w.writes, w.acts
		if !r.busy {
			r.busy, r.quiet, w.lagged[i] = true, true, false
		}
		r.forward <- struct{}{}
		said := <-r.reports
		if w.writes != writes || w.acts != acts {
			for _, other := range rivals {
				other.quiet = false
			}
		}
		if !said.done {
			continue
		}
		w.Expect(said.err).NotTo(HaveOccurred(), p.name)
		r.busy, r.soonest = false, said.soonest
		r.quiet = r.quiet && !w.lagged[i]
		if rivals[0].busy || rivals[1].busy || !rivals[0].quiet || !rivals[1].quiet {
			continue
		}
		if !w.letEnd() {
			if p.done(w) {
				return
			}
			w.clock.SetTime(w.clock.Now().Add(rivals[random.IntN(len(rivals))].soonest))
		}
		rivals[0].quiet, rivals[1].quiet = false, false
	}
	w.t.Fatalf("%s: did not come to rest: %+v", p.name, w.telling(p.name))
}
