// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/plan"
)

// planStep is one event in the life of a plan. After each step the plan must come to rest.
type planStep struct {
	name string
	do   func(*planWorld)
}

func changePlanSpec(do func(*v1alpha1.PlanSpec)) func(*planWorld) {
	return func(w *planWorld) { w.changeSpec(do) }
}

func endRuns(suffix string, outcome v1alpha1.RunOutcome) func(*planWorld) {
	return func(w *planWorld) { w.endRuns(suffix, outcome) }
}

// planScenario is the life of one plan.
var planScenario = []planStep{
	{"create", func(w *planWorld) {
		object := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: uid, Generation: 1}}
		object.Spec.ActionRef.Name, object.Spec.TargetPhase = "release", v1alpha1.PhaseStrategize
		w.Expect(w.api.Create(w.ctx, object)).To(Succeed())
		w.recordSnapshot(&v1alpha1.Plan{})
	}},
	{"one run ends, the third begins", endRuns("-1-strategize-0", v1alpha1.OutcomeSucceeded)},
	{"all runs have ended", endRuns("", v1alpha1.OutcomeSucceeded)},
	{"approved", changePlanSpec(func(s *v1alpha1.PlanSpec) {
		s.Approval = &v1alpha1.PlanApproval{Phase: v1alpha1.PhaseExecute, Attempt: 1}
	})},
	{"the run fails", endRuns("-1-execute-0", v1alpha1.OutcomeFailed)},
	{"retried", changePlanSpec(func(s *v1alpha1.PlanSpec) { s.RetryToken = "a" })},
	{"retried while a run is active", changePlanSpec(func(s *v1alpha1.PlanSpec) { s.RetryToken = "b" })},
	{"the run succeeds", endRuns("-3-execute-0", v1alpha1.OutcomeSucceeded)},
	{"reverted", changePlanSpec(func(s *v1alpha1.PlanSpec) { s.Revert = &v1alpha1.PlanRevert{Token: "c"} })},
	{"one run fails, another is cancelled", endRuns("-4-strategize-1", v1alpha1.OutcomeFailed)},
	{"retried", changePlanSpec(func(s *v1alpha1.PlanSpec) { s.RetryToken = "d" })},
	{"two runs end", endRuns("", v1alpha1.OutcomeSucceeded)},
	{"the third run ends", endRuns("-5-strategize-2", v1alpha1.OutcomeSucceeded)},
	{"approved up to Apply", changePlanSpec(func(s *v1alpha1.PlanSpec) {
		s.Approval = &v1alpha1.PlanApproval{Phase: v1alpha1.PhaseExecute, Attempt: 5, ToPhase: v1alpha1.PhaseApply}
	})},
	{"executed", endRuns("-5-execute-0", v1alpha1.OutcomeSucceeded)},
	{"applied", endRuns("-5-apply-0", v1alpha1.OutcomeSucceeded)},
	{"reverted from apply", changePlanSpec(func(s *v1alpha1.PlanSpec) {
		s.Revert, s.TargetPhase = &v1alpha1.PlanRevert{Token: "e"}, v1alpha1.PhaseStrategize
	})},
	{"cancelled", changePlanSpec(func(s *v1alpha1.PlanSpec) { s.State = v1alpha1.PlanCancelRequested })},
	{"deleted", func(w *planWorld) {
		w.Expect(w.api.Delete(w.ctx, w.plan())).To(Succeed())
		w.recordSnapshot(&v1alpha1.Plan{})
	}},
}

// planOutcome is the part of the state after a step that must be the same with and without faults.
type planOutcome struct {
	Step, Plan string
	Runs       []string
}

func (w *planWorld) outcome(step string) planOutcome {
	o := planOutcome{Step: step, Plan: "gone"}
	if object := w.plan(); object != nil {
		s := object.Status
		o.Plan = fmt.Sprintf("%s %s, attempt %d, reversions %d, tokens %q %q, completed %v, waiting %q, generation %d, finished %t\n",
			s.CurrentPhase, s.State, s.Attempt, s.Reversions, s.ObservedRetryToken, s.ObservedRevertToken, s.Completed, s.Waiting,
			s.ObservedGeneration, s.FinishTime != nil)
		for _, run := range s.Runs {
			o.Plan += fmt.Sprintf("run %s %s\n", run.Name, run.Outcome)
		}
		for _, r := range s.Results {
			o.Plan += fmt.Sprintf("result %s %s\n", r.Run, r.Outcome)
		}
		for _, h := range s.History {
			o.Plan += fmt.Sprintf("history %s %d %s %s\n", h.Phase, h.Attempt, h.State, h.Reason)
		}
		for _, c := range s.Conditions {
			o.Plan += fmt.Sprintf("%s=%s %s\n", c.Type, c.Status, c.Reason)
		}
	}
	for _, run := range w.latest().runs {
		o.Runs = append(o.Runs, fmt.Sprintf("%s %s %s kept %t, created %d times", run.Name, run.Spec.State, run.Status.Outcome,
			controllerutil.ContainsFinalizer(&run, v1alpha1.FinalizerPlan), w.created[run.Name]))
	}
	return o
}

// runPlanScenario runs the scenario with one manager at a time. Every fault crashes the manager, and a newly started manager replaces it.
func (w *planWorld) runPlanScenario() []planOutcome {
	w.t.Helper()
	manager := w.newPlanReconciler(0)
	return w.runPlanScenarioWith(func(step string) { manager = w.reconcilePlanToRest(step, manager) })
}

func (w *planWorld) runPlanScenarioWith(toRest func(step string)) []planOutcome {
	w.t.Helper()
	outcomes := make([]planOutcome, 0, len(planScenario))
	before := 0 // steps that were complete before the fault
	for i, step := range planScenario {
		if w.faultOccurred && i > before+1 {
			break // the step of the fault and the next step are complete; the remaining steps would not differ
		}
		step.do(w)
		toRest(step.name)
		outcomes = append(outcomes, w.outcome(step.name))
		w.expectNoPlanWrites(step.name)
		if !w.faultOccurred {
			before = i + 1
		}
	}
	return outcomes
}

// reconcilePlanToRest reconciles until the plan is at rest, and returns the current manager.
func (w *planWorld) reconcilePlanToRest(step string, manager *plan.Reconciler) *plan.Reconciler {
	w.t.Helper()
	for range 1000 {
		writes := w.writes
		w.lagged[0] = false
		result, err := manager.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		switch {
		case err != nil:
			w.Expect(err).To(MatchError(errFault), step)
			manager = w.newPlanReconciler(0)
		case w.writes != writes || w.lagged[0] || w.endCancelledRuns():
			// An object has changed, or a stale cache becomes current. Either event triggers another reconcile.
		case result.RequeueAfter == 0:
			return manager
		default:
			w.clock.SetTime(w.clock.Now().Add(result.RequeueAfter))
		}
		if w.faults.newLeaderPerReconcile {
			manager = w.newPlanReconciler(0)
		}
	}
	w.t.Fatalf("%s: did not come to rest: %+v", step, w.outcome(step))
	return nil
}

// expectNoPlanWrites checks that a newly started manager with a current cache writes nothing.
func (w *planWorld) expectNoPlanWrites(step string) {
	w.t.Helper()
	savedFaults, writes, reads := w.faults, w.writes, w.reads
	w.faults = faults{}
	defer func() { w.faults, w.reads = savedFaults, reads }()
	_, err := w.newPlanReconciler(0).Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
	w.Expect(err).NotTo(HaveOccurred(), step)
	w.Expect(w.writes).To(Equal(writes), "%s: a second reconcile must not write", step)
}

// planWithoutFaults runs the scenario without faults and returns its outcomes and the numbers of writes and cache reads.
func planWithoutFaults(t *testing.T) (outcomes []planOutcome, writes, reads int) {
	t.Helper()
	w := newPlanWorld(t, faults{})
	outcomes = w.runPlanScenario()
	w.Expect(w.writes).To(BeNumerically(">", 50), "the scenario must be complete")
	applied := outcomes[slices.IndexFunc(outcomes, func(o planOutcome) bool { return o.Step == "applied" })]
	w.Expect(applied.Plan).To(HavePrefix("Apply Applied, attempt 5"))
	w.Expect(outcomes[len(outcomes)-2].Plan).To(HavePrefix("Strategize Cancelled, attempt 6"))
	w.Expect(outcomes[len(outcomes)-2].Runs).NotTo(ContainElement(ContainSubstring("kept true")), "no run may keep a finalizer of the plan")
	for name, count := range w.created {
		w.Expect(count).To(Equal(1), name)
	}
	return outcomes, w.writes, w.reads
}

func comparePlans(t *testing.T, want, got []planOutcome) {
	t.Helper()
	if diff := cmp.Diff(want[:len(got)], got); diff != "" {
		t.Errorf("differs from the run without faults (-without +with):\n%s", diff)
	}
}

// TestPlan_CrashAtEveryWrite crashes the manager at each write for a plan: once before the write reaches the API, and once after the write took effect
// but before the manager received the response.
func TestPlan_CrashAtEveryWrite(t *testing.T) {
	t.Parallel()
	want, writes, _ := planWithoutFaults(t)
	for n := 1; n <= writes; n++ {
		for when, after := range map[string]bool{"before": false, "after": true} {
			t.Run(fmt.Sprintf("%s %d", when, n), func(t *testing.T) {
				w := newPlanWorld(t, faults{})
				w.faults.write = faultAtCall(n, after, func() { w.faultOccurred = true })
				comparePlans(t, want, w.runPlanScenario())
				w.Expect(w.faultOccurred).To(BeTrue())
			})
		}
	}
}

// TestPlan_StaleReadAtEveryRead runs the scenario once for every second cache read, with a new manager for every reconcile. In each run, that
// one read returns the state of one to four writes ago.
func TestPlan_StaleReadAtEveryRead(t *testing.T) {
	t.Parallel()
	want, _, reads := planWithoutFaults(t)
	for n := 1; n <= reads; n += 2 {
		lag := 1 + n/2%4
		t.Run(fmt.Sprintf("read %d is %d writes old", n, lag), func(t *testing.T) {
			w := newPlanWorld(t, faults{newLeaderPerReconcile: true})
			w.faults.lag = func(read int) int {
				if read != n {
					return 0
				}
				w.faultOccurred = true
				return lag
			}
			comparePlans(t, want, w.runPlanScenario())
		})
	}
}

// TestPlan_RandomFaults combines all faults at random. The subtest name contains the seed.
func TestPlan_RandomFaults(t *testing.T) {
	t.Parallel()
	want, _, _ := planWithoutFaults(t)
	for seed := range uint64(5) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 6))
			w := newPlanWorld(t, faults{newLeaderPerReconcile: seed%2 == 0})
			w.faults.lag = func(int) int { return max(0, random.IntN(12)-6) }
			w.faults.write = func(int, bool) error {
				if random.IntN(5) == 0 {
					return errFault
				}
				return nil
			}
			comparePlans(t, want, w.runPlanScenario())
		})
	}
}

// TestPlan_TwoLeaders lets two managers reconcile one plan. Before each API call, a random choice decides which manager continues. The subtest name
// contains the seed.
func TestPlan_TwoLeaders(t *testing.T) {
	t.Parallel()
	want, _, _ := planWithoutFaults(t)
	for seed := range uint64(5) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			comparePlans(t, want, runPlanScenarioWithTwoLeaders(t, rand.New(rand.NewPCG(seed, 7))))
		})
	}
}

func runPlanScenarioWithTwoLeaders(t *testing.T, random *rand.Rand) []planOutcome {
	leaders := []*leader{{}, {}}
	w := newPlanWorld(t, faults{
		turn: func(number int) { leaders[number].waitForTurn() },
		lag:  func(int) int { return max(0, random.IntN(8)-5) },
	})
	for i, l := range leaders {
		l.proceed, l.reports = make(chan struct{}), make(chan report)
		manager := w.newPlanReconciler(i)
		go func() {
			for range l.proceed {
				result, err := manager.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
				l.reports <- report{done: true, result: result, err: err}
			}
		}()
		t.Cleanup(func() { close(l.proceed) })
	}
	return w.runPlanScenarioWith(func(step string) { w.interleavePlanLeaders(step, leaders, random) })
}

// interleavePlanLeaders lets the leaders take turns until the plan is at rest and a reconcile of either leader would change nothing.
func (w *planWorld) interleavePlanLeaders(step string, leaders []*leader, random *rand.Rand) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		i := random.IntN(len(leaders))
		l := leaders[i]
		if !l.busy {
			l.busy, l.quiet, w.lagged[i] = true, true, false
		}
		writes := w.writes
		l.proceed <- struct{}{}
		message := <-l.reports
		if w.writes != writes {
			leaders[0].quiet, leaders[1].quiet = false, false
		}
		if !message.done {
			continue
		}
		w.Expect(message.err).NotTo(HaveOccurred(), step)
		l.busy = false
		w.clock.SetTime(w.clock.Now().Add(message.result.RequeueAfter))
		l.quiet = l.quiet && !w.lagged[i] && message.result.RequeueAfter == 0
		if leaders[0].busy || leaders[1].busy || !leaders[0].quiet || !leaders[1].quiet {
			continue
		}
		leaders[0].quiet, leaders[1].quiet = false, false
		if !w.endCancelledRuns() {
			return
		}
	}
	w.t.Fatalf("%s: did not come to rest: %+v", step, w.outcome(step))
}
