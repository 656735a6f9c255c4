// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// page is one event in the life of a strategy and its runs. done reports whether the page is complete.
type page struct {
	name string
	do   func(*tallyWorld)
	done func(*tallyWorld) bool
}

// tale is the life of a strategy whose breaker opens after three failures, with runs of every outcome.
var tale = []page{
	{"a strategy", (*tallyWorld).createStrategy, func(w *tallyWorld) bool { return w.strategyNow().Status.Breaker != nil }},
	{"a run succeeds", ends("good", 0), counted("good")},
	{"a run fails", ends("bad-1", 1), counted("bad-1")},
	{"two runs begin", func(w *tallyWorld) { w.createRun("flying"); w.createRun("cancelled") }, run("flying", "cancelled")},
	{"one is cancelled", func(w *tallyWorld) {
		w.changeRun("cancelled", func(r *v1alpha1.StrategyRun) { r.Spec.State = v1alpha1.RunCancelled })
	}, counted("cancelled")},
	{"a program that does not exist", func(w *tallyWorld) {
		w.rt.Program("broken", fake.Program{StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program"}})
		w.changeStrategy(func(s *v1alpha1.Strategy) { s.Spec.Process.Command = []string{"broken"} })
		w.createRun("missing")
	}, counted("missing")},
	{"the third failure is a timeout", func(w *tallyWorld) {
		w.changeStrategy(func(s *v1alpha1.Strategy) {
			s.Spec.Process.Command, s.Spec.TimeoutSeconds = []string{"serve"}, ptr.To[int32](30)
		})
		w.createRun("slow")
	}, counted("slow")},
	{"an open breaker skips", func(w *tallyWorld) { w.createRun("skipped") }, counted("skipped")},
	{"a reset; then a run from before the reset fails", func(w *tallyWorld) {
		w.changeStrategy(func(s *v1alpha1.Strategy) {
			s.Spec.ResetToken, s.Spec.TTLSecondsAfterFinished = "again", ptr.To[int32](60)
		})
		w.exit("flying", 1)
	}, counted("flying")},
	{"a run is deleted after its TTL", ends("passing", 0), gone("passing")},
	{"a run is deleted while it runs", func(w *tallyWorld) { w.createRun("deleted") }, run("deleted")},
	{"the deleted run is counted", func(w *tallyWorld) { w.deleteRun("deleted") }, gone("deleted")},
	{"a run waits while the strategy is disabled", func(w *tallyWorld) {
		w.changeStrategy(func(s *v1alpha1.Strategy) { s.Spec.State = v1alpha1.StrategyDisabled })
		w.createRun("waiting")
	}, func(w *tallyWorld) bool { return len(w.runNow("waiting").Status.Conditions) > 0 }},
	{"the run starts and fails", func(w *tallyWorld) {
		w.changeStrategy(func(s *v1alpha1.Strategy) { s.Spec.State = v1alpha1.StrategyEnabled })
		w.soon("waiting", 1)
	}, gone("waiting")},
}

// ends returns a function that creates a run whose process exits with the code as soon as the status of the run shows the process.
func ends(name string, code int32) func(*tallyWorld) {
	return func(w *tallyWorld) {
		w.createRun(name)
		w.soon(name, code)
	}
}

func run(names ...string) func(*tallyWorld) bool {
	return func(w *tallyWorld) bool {
		for _, name := range names {
			if w.runNow(name).Status.Process == nil {
				return false
			}
		}
		return true
	}
}

// counted returns a function that reports whether a run has an outcome and is counted.
func counted(name string) func(*tallyWorld) bool {
	return func(w *tallyWorld) bool {
		r := w.runNow(name)
		return r.Status.Outcome != "" && len(r.Finalizers) == 1 && len(w.strategyNow().Status.Counted) == 0
	}
}

func gone(name string) func(*tallyWorld) bool {
	return func(w *tallyWorld) bool { return w.runNow(name) == nil && len(w.strategyNow().Status.Counted) == 0 }
}

func uidOf(name string) types.UID { return types.UID("uid-of-" + name) }

func (w *tallyWorld) createStrategy() {
	s := &v1alpha1.Strategy{}
	s.Namespace, s.Name, s.UID, s.Generation = key.Namespace, strategyName, uidOf(strategyName), 1
	s.Spec.Process.Command = []string{"serve"}
	s.Spec.Breaker.FailureThreshold = ptr.To[int32](3)
	w.Expect(w.api.Create(w.ctx, s)).To(Succeed())
	w.note(strategyName)
}

func (w *tallyWorld) createRun(name string, finalizers ...string) {
	r := &v1alpha1.StrategyRun{}
	r.Finalizers = finalizers
	r.Namespace, r.Name, r.UID, r.Generation = key.Namespace, name, uidOf(name), 1
	r.Spec.StrategyRef.Name, r.Spec.State = strategyName, v1alpha1.RunActive
	w.names = append(w.names, name)
	w.Expect(w.api.Create(w.ctx, r)).To(Succeed())
	w.note(name)
}

func (w *tallyWorld) changeStrategy(do func(*v1alpha1.Strategy)) {
	s := w.strategyNow()
	do(s)
	s.Generation++
	w.Expect(w.api.Update(w.ctx, s)).To(Succeed())
	w.note(strategyName)
}

func (w *tallyWorld) changeRun(name string, do func(*v1alpha1.StrategyRun)) {
	r := w.runNow(name)
	do(r)
	r.Generation++
	w.Expect(w.api.Update(w.ctx, r)).To(Succeed())
	w.note(name)
}

func (w *tallyWorld) deleteRun(name string) {
	w.Expect(w.api.Delete(w.ctx, w.runNow(name))).To(Succeed())
	w.note(name)
}

func (w *tallyWorld) exit(name string, code int32) {
	w.rt.Exit(uidOf(name), facts.Exit{Known: true, Code: code})
}

// soon makes the process of a run exit as soon as the status of the run shows the process.
func (w *tallyWorld) soon(name string, code int32) { w.soonEnds, w.soonCode = name, code }

// telling is the part of the state after a page that must be the same with and without faults.
type telling struct {
	Chapter, Strategy string
	Runs              []string
}

func (w *tallyWorld) telling(chapter string) telling {
	t := telling{Chapter: chapter}
	s := w.strategyNow()
	t.Strategy = fmt.Sprintf("generation %d of %d, token %q, epoch %d, breaker %s after %d failures, totals %+v, counted %v",
		s.Status.ObservedGeneration, s.Generation, s.Status.ObservedResetToken, s.Status.Epoch, s.Status.Breaker.State, s.Status.Breaker.Failures,
		s.Status.Totals, s.Status.Counted)
	for _, c := range s.Status.Conditions {
		t.Strategy += fmt.Sprintf("\n%s=%s %s", c.Type, c.Status, c.Reason)
	}
	for _, name := range w.names {
		text := fmt.Sprintf("%s: started %d times, alive %v", name, w.rt.Count(uidOf(name), fake.Start), w.rt.Live(uidOf(name)))
		if r := w.runNow(name); r != nil {
			text += fmt.Sprintf(", %q %s", r.Status.Outcome, describe(r))
		}
		t.Runs = append(t.Runs, text)
	}
	return t
}

// readTale runs the tale. After the event of each page it calls toRest, which reconciles until the page is complete. If the only fault of this run has
// occurred, readTale completes the page of the fault and the next page, and skips the others, because they would not differ.
func (w *tallyWorld) readTale(toRest func(page)) []telling {
	w.t.Helper()
	var told []telling
	after := 0
	for _, p := range tale {
		if after == 2 {
			break
		}
		w.soonEnds = ""
		p.do(w)
		toRest(p)
		told = append(told, w.telling(p.name))
		if w.struck {
			after++
		}
		if w.struck || len(told) == len(tale) {
			w.restsIn(p.name)
		}
	}
	w.Expect(w.rt.Violations()).To(BeEmpty())
	return told
}

// restsIn checks that a newly started manager with a current cache writes nothing and changes nothing in the runtime.
func (w *tallyWorld) restsIn(chapter string) {
	w.t.Helper()
	disturbances := w.faults
	w.faults = faults{}
	writes, acts := w.writes, w.acts
	for range 2 {
		another := w.newTallier(0)
		for _, name := range w.everything() {
			_, err := another.reconcile(w.ctx, name)
			w.Expect(err).NotTo(HaveOccurred(), chapter)
		}
	}
	w.Expect(w.acts).To(Equal(acts), "%s: a second reconcile of %s must not act", chapter, w.everything())
	w.Expect(w.writes).To(Equal(writes), "%s: a second reconcile must not write", chapter)
	w.writes, w.acts, w.faults = writes, acts, disturbances
}

// settle reconciles all objects that may still change until the page is complete and a round changes nothing. Every fault crashes the manager. It
// returns the current manager.
func (w *tallyWorld) settle(p page, manager *tallier) *tallier {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		writes, acts := w.writes, w.acts
		w.lagged[0] = false
		var soonest time.Duration
		for _, name := range w.awake() {
			result, err := manager.reconcile(w.ctx, name)
			if err != nil {
				w.Expect(err).To(MatchError(errFault), p.name)
				manager = w.newTallier(0)
			}
			if wait := result.RequeueAfter; wait > 0 && (soonest == 0 || wait < soonest) {
				soonest = wait
			}
			if w.faults.forgetful {
				manager = w.newTallier(0)
			}
		}
		if w.letEnd() || w.writes != writes || w.acts != acts || w.lagged[0] {
			continue
		}
		if p.done(w) {
			return manager
		}
		w.clock.SetTime(w.clock.Now().Add(soonest))
	}
	w.t.Fatalf("%s: did not come to rest: %+v", p.name, w.telling(p.name))
	return nil
}

// letEnd makes the process of the run soonEnds exit if the status of the run shows the process. It reports whether it made a process exit.
func (w *tallyWorld) letEnd() bool {
	if w.soonEnds == "" {
		return false
	}
	r := w.runNow(w.soonEnds)
	if r == nil || r.Status.Process == nil {
		return false
	}
	w.exit(w.soonEnds, w.soonCode)
	w.soonEnds = ""
	return true
}

// undisturbedTale runs the tale without faults and returns its tellings and the numbers of calls.
func undisturbedTale(t *testing.T) (told []telling, calls reference) {
	t.Helper()
	w := newTallyWorld(t, faults{lag: func(int) int { return 0 }})
	told = w.alone()
	s := w.strategyNow()
	w.Expect(s.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: 2, Failed: 4, TimedOut: 1, Cancelled: 2, SkippedCircuitOpen: 1}))
	w.Expect(s.Status.Breaker.Failures).To(BeEquivalentTo(1))
	w.Expect(s.Status.Epoch).To(BeEquivalentTo(1))
	return told, reference{writes: w.writes, acts: w.acts, reads: w.reads}
}

// alone runs the tale with one manager at a time.
func (w *tallyWorld) alone() []telling {
	w.t.Helper()
	manager := w.newTallier(0)
	return w.readTale(func(p page) { manager = w.settle(p, manager) })
}
