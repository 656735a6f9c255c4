// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// world models an API server with one strategy and its runs, random events, and two managers that count the runs with caches of any age.
type world struct {
	random  *rand.Rand
	broken  guard
	now     time.Time
	clock   int // number of steps so far, which orders the events
	desired Desired
	// tokenAt is the value of clock at the last change of the reset token.
	tokenAt int
	// past contains all versions of the status; the last one is the stored one.
	past []v1alpha1.StrategyStatus
	runs []*worldRun
	// counters are the managers.
	counters  [2]*counter
	reference sequentialCounter
}

// worldRun is a run on the API server.
type worldRun struct {
	Run
	// read is the status that the run found when it checked whether it may start.
	read    *v1alpha1.StrategyStatus
	started bool
	startAt int
	counted int
}

// counter is a manager during a reconcile. Each of its API calls is one step of the world.
type counter struct {
	phase   int
	version int
	status  v1alpha1.StrategyStatus
	runs    []Run
	step    Step
}

func newWorld(seed uint64, broken guard) *world {
	random := rand.New(rand.NewPCG(seed, 7))
	breaker := lifecycle.Breaker{Threshold: 1 + random.IntN(4)}
	if random.IntN(2) == 0 {
		breaker.CoolDown = time.Duration(1+random.IntN(20)) * time.Second
	}
	w := &world{random: random, broken: broken, now: start, desired: Desired{Breaker: breaker}, past: make([]v1alpha1.StrategyStatus, 1)}
	w.counters = [2]*counter{{}, {}}
	return w
}

func (w *world) status() v1alpha1.StrategyStatus { return w.past[len(w.past)-1] }

// performRandomEvent performs one random event.
func (w *world) performRandomEvent() error {
	w.clock++
	switch w.random.IntN(20) {
	case 0, 1:
		w.runs = append(w.runs, &worldRun{Run: Run{
			UID: types.UID(fmt.Sprintf("run-%03d", len(w.runs))), Kept: true, Waits: true, CreatedAt: w.now, Epoch: w.status().Epoch,
		}})
	case 2:
		w.now = w.now.Add(time.Duration(w.random.IntN(5000)) * time.Millisecond)
	case 3:
		if w.random.IntN(8) == 0 {
			w.desired.ResetToken, w.tokenAt = fmt.Sprint(w.clock), w.clock
		}
	case 4, 5, 6, 7:
		w.advanceRun()
	default:
		i := w.random.IntN(2)
		if w.random.IntN(25) == 0 {
			w.counters[i] = &counter{} // the manager crashes, and a new one replaces it
		}
		return w.advanceCounter(w.counters[i])
	}
	return nil
}

// advanceRun advances one run by one step: it checks whether it may start, starts, or finishes.
func (w *world) advanceRun() {
	if len(w.runs) == 0 {
		return
	}
	run := w.runs[w.random.IntN(len(w.runs))]
	switch {
	case run.Outcome != "":
	case run.started:
		outcomes := []v1alpha1.RunOutcome{v1alpha1.OutcomeSucceeded, v1alpha1.OutcomeFailed, v1alpha1.OutcomeFailed, v1alpha1.OutcomeTimedOut, v1alpha1.OutcomeCancelled}
		w.finish(run, outcomes[w.random.IntN(len(outcomes))])
	case w.random.IntN(15) == 0:
		w.finish(run, v1alpha1.OutcomeCancelled)
	case run.read == nil:
		read := w.status()
		run.read = read.DeepCopy()
	default:
		defer func() { run.read = nil }()
		w.admit(run)
	}
}

// admit decides from the status of the strategy, as the run read it, whether the run keeps waiting, is skipped or starts.
func (w *world) admit(run *worldRun) {
	breaker := run.read.Breaker
	switch {
	case breaker == nil:
	case breaker.State == v1alpha1.BreakerOpen:
		w.finish(run, v1alpha1.OutcomeSkipped)
	case breaker.State == v1alpha1.BreakerHalfOpen && breaker.Trial != run.UID:
	default:
		run.started, run.Started, run.Waits, run.startAt, run.Epoch = true, true, false, w.clock, run.read.Epoch
	}
}

func (w *world) finish(run *worldRun, outcome v1alpha1.RunOutcome) {
	run.Outcome, run.Waits, run.FinishedAt = outcome, false, w.now
}

// advanceCounter advances one manager by one API call.
func (w *world) advanceCounter(c *counter) error {
	c.phase++
	switch c.phase - 1 {
	case 0:
		c.version = len(w.past) - 1
		if w.random.IntN(3) == 0 { // a stale cache
			c.version = max(0, c.version-w.random.IntN(4))
		}
		c.status = *w.past[c.version].DeepCopy()
		c.runs = w.listRuns() // used only without the guard orderOfReads; otherwise the next call reads the runs again, after the status
	case 1:
		if w.broken == orderOfReads {
			c.version = len(w.past) - 1
			c.status = *w.past[c.version].DeepCopy()
		} else {
			c.runs = w.listRuns()
		}
		c.step = w.next(c)
	case 2:
		return w.write(c)
	default:
		w.release(c)
	}
	return nil
}

// listRuns reads all runs with a finalizer. The reconciler reads finished runs from the API server instead of its cache, so only waiting
// runs can be stale.
func (w *world) listRuns() []Run {
	var runs []Run
	for _, run := range w.runs {
		if run.Kept {
			runs = append(runs, run.Run)
		}
	}
	return runs
}

// next calls Next as if the guard w.broken did not exist.
func (w *world) next(c *counter) Step {
	record, runs := *c.status.DeepCopy(), slices.Clone(c.runs)
	switch w.broken {
	case listOfCounted:
		record.Counted = nil
	case epochs:
		for i := range runs {
			runs[i].Epoch = record.Epoch
		}
	}
	desired := w.desired
	if w.broken == exactThreshold {
		desired.Breaker.Threshold++
	}
	step := Next(desired, record, runs, w.now)
	if w.broken == keptOnList {
		step.Status.Counted = nil
	}
	return step
}

// write stores the status unless another write came first. Sometimes the manager crashes before the write, or the response is lost.
func (w *world) write(c *counter) error {
	if w.broken != lockedWrites && c.version != len(w.past)-1 && !apiequality.Semantic.DeepEqual(c.step.Status, c.status) {
		*c = counter{}
		return nil
	}
	if apiequality.Semantic.DeepEqual(c.step.Status, c.status) {
		return nil
	}
	if w.random.IntN(12) == 0 {
		*c = counter{} // the manager crashes before the write
		return nil
	}
	before := w.status()
	w.past = append(w.past, *c.step.Status.DeepCopy())
	if w.random.IntN(12) == 0 {
		*c = counter{} // the response is lost
	}
	return w.reference.recordWrite(w, before)
}

// release removes the finalizer of the next counted run.
func (w *world) release(c *counter) {
	if len(c.step.Release) == 0 {
		*c = counter{}
		return
	}
	uid := c.step.Release[0]
	c.step.Release = c.step.Release[1:]
	for _, run := range w.runs {
		if run.UID == uid {
			run.Kept = false
		}
	}
}
