// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// strategyStep is one event in the life of a strategy and its runs. done reports whether the step is complete.
type strategyStep struct {
	name string
	do   func(*strategyWorld)
	done func(*strategyWorld) bool
}

// strategyScenario is the life of a strategy whose breaker opens after three failures, with runs of every outcome.
var strategyScenario = []strategyStep{
	{"a strategy", (*strategyWorld).createStrategy, func(w *strategyWorld) bool { return w.strategyNow().Status.Breaker != nil }},
	{"a run succeeds", runThatExits("good", 0), isCounted("good")},
	{"a run fails", runThatExits("bad-1", 1), isCounted("bad-1")},
	{"two runs begin", func(w *strategyWorld) { w.createRun("flying"); w.createRun("cancelled") }, processRecorded("flying", "cancelled")},
	{"one is cancelled", func(w *strategyWorld) {
		w.changeRun("cancelled", func(r *v1alpha1.StrategyRun) { r.Spec.State = v1alpha1.RunCancelled })
	}, isCounted("cancelled")},
	{"a program that does not exist", func(w *strategyWorld) {
		w.rt.Program("broken", fake.Program{StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program"}})
		w.changeStrategy(func(s *v1alpha1.Strategy) { s.Spec.Process.Command = []string{"broken"} })
		w.createRun("missing")
	}, isCounted("missing")},
	{"the third failure is a timeout", func(w *strategyWorld) {
		w.changeStrategy(func(s *v1alpha1.Strategy) {
			s.Spec.Process.Command, s.Spec.TimeoutSeconds = []string{"serve"}, ptr.To[int32](30)
		})
		w.createRun("slow")
	}, isCounted("slow")},
	{"an open breaker skips a run", func(w *strategyWorld) { w.createRun("skipped") }, isCounted("skipped")},
	{"a reset; then a run from before the reset fails", func(w *strategyWorld) {
		w.changeStrategy(func(s *v1alpha1.Strategy) {
			s.Spec.ResetToken, s.Spec.TTLSecondsAfterFinished = "again", ptr.To[int32](60)
		})
		w.exit("flying", 1)
	}, isCounted("flying")},
	{"a run is deleted after its TTL", runThatExits("passing", 0), isGone("passing")},
	{"a run is deleted while it runs", func(w *strategyWorld) { w.createRun("deleted") }, processRecorded("deleted")},
	{"the deleted run is counted", func(w *strategyWorld) { w.deleteRun("deleted") }, isGone("deleted")},
	{"a run waits while the strategy is disabled", func(w *strategyWorld) {
		w.changeStrategy(func(s *v1alpha1.Strategy) { s.Spec.State = v1alpha1.StrategyDisabled })
		w.createRun("waiting")
	}, func(w *strategyWorld) bool { return len(w.runNow("waiting").Status.Conditions) > 0 }},
	{"the run starts and fails", func(w *strategyWorld) {
		w.changeStrategy(func(s *v1alpha1.Strategy) { s.Spec.State = v1alpha1.StrategyEnabled })
		w.exitSoon("waiting", 1)
	}, isGone("waiting")},
}

// runThatExits returns a function that creates a run whose process exits with the code as soon as the status of the run shows the process.
func runThatExits(name string, code int32) func(*strategyWorld) {
	return func(w *strategyWorld) {
		w.createRun(name)
		w.exitSoon(name, code)
	}
}

func processRecorded(names ...string) func(*strategyWorld) bool {
	return func(w *strategyWorld) bool {
		for _, name := range names {
			if w.runNow(name).Status.Process == nil {
				return false
			}
		}
		return true
	}
}

// isCounted returns a function that reports whether a run has an outcome and is counted.
func isCounted(name string) func(*strategyWorld) bool {
	return func(w *strategyWorld) bool {
		r := w.runNow(name)
		return r.Status.Outcome != "" && len(r.Finalizers) == 1 && len(w.strategyNow().Status.Counted) == 0
	}
}

func isGone(name string) func(*strategyWorld) bool {
	return func(w *strategyWorld) bool { return w.runNow(name) == nil && len(w.strategyNow().Status.Counted) == 0 }
}

func uidOf(name string) types.UID { return types.UID("uid-of-" + name) }

func (w *strategyWorld) createStrategy() {
	s := &v1alpha1.Strategy{}
	s.Namespace, s.Name, s.UID, s.Generation = key.Namespace, strategyName, uidOf(strategyName), 1
	s.Spec.Process.Command = []string{"serve"}
	s.Spec.Breaker.FailureThreshold = ptr.To[int32](3)
	w.Expect(w.api.Create(w.ctx, s)).To(Succeed())
	w.recordObject(strategyName)
}

func (w *strategyWorld) createRun(name string, finalizers ...string) {
	w.createRunOf(nil, name, finalizers...)
}

// createRunOf creates a run that a plan owns, unless plan is nil.
func (w *strategyWorld) createRunOf(plan *v1alpha1.Plan, name string, finalizers ...string) {
	r := &v1alpha1.StrategyRun{}
	if plan != nil {
		r.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Plan", Name: plan.Name, UID: plan.UID, Controller: ptr.To(true)}}
	}
	r.Finalizers = finalizers
	r.Namespace, r.Name, r.UID, r.Generation = key.Namespace, name, uidOf(name), 1
	r.Spec.StrategyRef.Name, r.Spec.State = strategyName, v1alpha1.RunActive
	w.names = append(w.names, name)
	w.Expect(w.api.Create(w.ctx, r)).To(Succeed())
	w.recordObject(name)
}

func (w *strategyWorld) changeStrategy(do func(*v1alpha1.Strategy)) {
	s := w.strategyNow()
	do(s)
	s.Generation++
	w.Expect(w.api.Update(w.ctx, s)).To(Succeed())
	w.recordObject(strategyName)
}

func (w *strategyWorld) changeRun(name string, do func(*v1alpha1.StrategyRun)) {
	r := w.runNow(name)
	do(r)
	r.Generation++
	w.Expect(w.api.Update(w.ctx, r)).To(Succeed())
	w.recordObject(name)
}

func (w *strategyWorld) deleteRun(name string) {
	w.Expect(w.api.Delete(w.ctx, w.runNow(name))).To(Succeed())
	w.recordObject(name)
}

func (w *strategyWorld) exit(name string, code int32) {
	w.rt.Exit(uidOf(name), facts.Exit{Known: true, Code: code})
}

// exitSoon makes the process of a run exit as soon as the status of the run shows the process.
func (w *strategyWorld) exitSoon(name string, code int32) {
	w.pendingExitRun, w.pendingExitCode = name, code
}

// strategyOutcome is the part of the state after a step that must be the same with and without faults.
type strategyOutcome struct {
	Step, Strategy string
	Runs           []string
}

func (w *strategyWorld) currentOutcome(step string) strategyOutcome {
	t := strategyOutcome{Step: step}
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

// runStrategyScenarioWith runs the scenario. After the event of each step it calls toRest, which reconciles until the step is complete. If the only
// fault of this run has occurred, runStrategyScenarioWith completes the step of the fault and the next step, and skips the others, because they would not
// differ.
func (w *strategyWorld) runStrategyScenarioWith(toRest func(strategyStep)) []strategyOutcome {
	w.t.Helper()
	var outcomes []strategyOutcome
	after := 0
	for _, step := range strategyScenario {
		if after == 2 {
			break
		}
		w.pendingExitRun = ""
		step.do(w)
		toRest(step)
		outcomes = append(outcomes, w.currentOutcome(step.name))
		if w.faultOccurred {
			after++
		}
		if w.faultOccurred || len(outcomes) == len(strategyScenario) {
			w.expectNoStrategyWrites(step.name)
		}
	}
	w.Expect(w.rt.Violations()).To(BeEmpty())
	return outcomes
}

// expectNoStrategyWrites checks that a newly started manager with a current cache writes nothing and changes nothing in the runtime.
func (w *strategyWorld) expectNoStrategyWrites(step string) {
	w.t.Helper()
	saved := w.faults
	w.faults = faults{}
	writes, acts := w.writes, w.acts
	for range 2 {
		another := w.newStrategyManager(0)
		for _, name := range w.allNames() {
			_, err := another.reconcile(w.ctx, name)
			w.Expect(err).NotTo(HaveOccurred(), step)
		}
	}
	w.Expect(w.acts).To(Equal(acts), "%s: a second reconcile of %s must not act", step, w.allNames())
	w.Expect(w.writes).To(Equal(writes), "%s: a second reconcile must not write", step)
	w.writes, w.acts, w.faults = writes, acts, saved
}

// reconcileStrategyToRest reconciles all objects that may still change until the step is complete and a round changes nothing. Every fault crashes the manager.
// It returns the current manager.
func (w *strategyWorld) reconcileStrategyToRest(step strategyStep, manager *strategyManager) *strategyManager {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		writes, acts := w.writes, w.acts
		w.lagged[0] = false
		var soonest time.Duration
		for _, name := range w.activeNames() {
			result, err := manager.reconcile(w.ctx, name)
			if err != nil {
				w.Expect(err).To(MatchError(errFault), step.name)
				manager = w.newStrategyManager(0)
			}
			if wait := result.RequeueAfter; wait > 0 && (soonest == 0 || wait < soonest) {
				soonest = wait
			}
			if w.faults.newLeaderPerReconcile {
				manager = w.newStrategyManager(0)
			}
		}
		if w.exitPendingRun() || w.writes != writes || w.acts != acts || w.lagged[0] {
			continue
		}
		if step.done(w) {
			return manager
		}
		w.clock.SetTime(w.clock.Now().Add(soonest))
	}
	w.t.Fatalf("%s: did not come to rest: %+v", step.name, w.currentOutcome(step.name))
	return nil
}

// exitPendingRun makes the process of the run pendingExitRun exit if the status of the run shows the process. It reports whether it made a process exit.
func (w *strategyWorld) exitPendingRun() bool {
	if w.pendingExitRun == "" {
		return false
	}
	r := w.runNow(w.pendingExitRun)
	if r == nil || r.Status.Process == nil {
		return false
	}
	w.exit(w.pendingExitRun, w.pendingExitCode)
	w.pendingExitRun = ""
	return true
}

// strategyWithoutFaults runs the scenario without faults and returns its outcomes and the numbers of calls.
func strategyWithoutFaults(t *testing.T) (outcomes []strategyOutcome, calls baseline) {
	t.Helper()
	w := newStrategyWorld(t, faults{lag: func(int) int { return 0 }})
	outcomes = w.runStrategyScenario()
	s := w.strategyNow()
	w.Expect(s.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: 2, Failed: 4, TimedOut: 1, Cancelled: 2, SkippedCircuitOpen: 1}))
	w.Expect(s.Status.Breaker.Failures).To(BeEquivalentTo(1))
	w.Expect(s.Status.Epoch).To(BeEquivalentTo(1))
	return outcomes, baseline{writes: w.writes, acts: w.acts, reads: w.reads}
}

// runStrategyScenario runs the scenario with one manager at a time.
func (w *strategyWorld) runStrategyScenario() []strategyOutcome {
	w.t.Helper()
	manager := w.newStrategyManager(0)
	return w.runStrategyScenarioWith(func(step strategyStep) { manager = w.reconcileStrategyToRest(step, manager) })
}
