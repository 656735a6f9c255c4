// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions/conditionstest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is a plan and its runs, with the invariants that must hold at any time.
type world struct {
	g       Gomega
	desired Desired
	status  v1alpha1.PlanStatus
	runs    map[string]Run
	now     time.Time
	events  []string
	// created counts the creations of each run.
	created map[string]int
	// approvals are the phases and attempts that a user approved while they waited.
	approvals map[string]bool
}

func newWorld(g Gomega, pinned *v1alpha1.PinnedAction) *world {
	return &world{
		g: g, now: start, runs: map[string]Run{}, created: map[string]int{}, approvals: map[string]bool{},
		desired: Desired{Name: "p", UID: "12345678-rest", Generation: 1, Target: strategize, Pinned: pinned},
	}
}

// pinnedAction returns an action with counts[i] strategies in phase i, all of which have to succeed. A phase with a count of 0 is left out.
func pinnedAction(counts ...int) *v1alpha1.PinnedAction {
	pinned := &v1alpha1.PinnedAction{ActionUID: "action", ActionGeneration: 1, MaxParallel: 4, MaxReversions: 1}
	for i, count := range counts {
		if count == 0 {
			continue
		}
		phase := v1alpha1.PinnedPhase{Name: order[i], Needed: int32(count)}
		for j := range count {
			phase.Strategies = append(phase.Strategies, v1alpha1.StrategyReference{Name: fmt.Sprintf("s%d", j), UID: types.UID(fmt.Sprintf("s%d", j))})
		}
		pinned.Phases = append(pinned.Phases, phase)
	}
	return pinned
}

func (w *world) next() Step {
	return Next(w.desired, w.status, w.observedRuns(), w.now)
}

// observedRuns returns the runs that the controller reads: those in the status, and those with the finalizer.
func (w *world) observedRuns() []Run {
	var views []Run
	for _, name := range slices.Sorted(maps.Keys(w.runs)) {
		run := w.runs[name]
		listed := slices.ContainsFunc(w.status.Runs, func(r v1alpha1.PlanRun) bool { return r.Name == name })
		if listed || run.Kept {
			views = append(views, run)
		}
	}
	return views
}

// step performs one step. If acts is false, the manager crashes after the write.
func (w *world) step(acts bool) bool {
	step := w.next()
	w.checkMove(&step)
	changed := !equality.Semantic.DeepEqual(step.Status, w.status)
	w.status = step.Status
	if changed { // events are emitted only after a write
		for _, e := range step.Events {
			w.events = append(w.events, e.Reason)
		}
	}
	if acts {
		changed = w.act(&step) || changed
	}
	w.check()
	return changed
}

func (w *world) act(step *Step) (acted bool) {
	for _, request := range step.Create {
		acted = true
		if _, exists := w.runs[request.Name]; !exists {
			w.created[request.Name]++
			w.runs[request.Name] = Run{Name: request.Name, UID: types.UID("uid-" + request.Name), Kept: true}
		}
	}
	for _, name := range step.Cancel {
		acted = true
		run := w.runs[name]
		run.Cancelling = true
		w.runs[name] = run
	}
	for _, name := range step.Release {
		acted = true
		run := w.runs[name]
		run.Kept = false
		w.runs[name] = run
	}
	return acted
}

// settle steps until nothing changes.
func (w *world) settle() *world {
	for range 100 {
		if !w.step(true) {
			w.checkAtRest()
			return w
		}
	}
	w.g.Expect(false).To(BeTrue(), "does not come to rest: %v", w.describe())
	return w
}

// checkAtRest checks the invariants of a plan that waits for an external event.
func (w *world) checkAtRest() {
	w.g.Expect(w.next().Events).To(BeEmpty(), "emits no events at rest")
}

// finishRun sets the outcome of a live run.
func (w *world) finishRun(name string, outcome v1alpha1.RunOutcome) *world {
	run, exists := w.runs[name]
	w.g.Expect(exists).To(BeTrue(), "%s does not exist: %s", name, w.describe())
	w.g.Expect(run.Outcome).To(BeEmpty(), "%s has ended", name)
	run.Outcome, run.Message = outcome, "It ended."
	w.runs[name] = run
	return w
}

// finishCancelledRuns ends every run that is being cancelled.
func (w *world) finishCancelledRuns() *world {
	for name, run := range w.runs {
		if run.Cancelling && run.Outcome == "" {
			w.finishRun(name, v1alpha1.OutcomeCancelled)
		}
	}
	return w.settle()
}

// liveRuns returns the names of the runs that have not ended.
func (w *world) liveRuns() []string {
	var live []string
	for name, run := range w.runs {
		if run.Outcome == "" {
			live = append(live, name)
		}
	}
	slices.Sort(live)
	return live
}

func runName(attempt int32, phase v1alpha1.PlanPhase, index int) string {
	return nameOfRun("p", "12345678-rest", attempt, phase, index)
}

func approvalKey(phase v1alpha1.PlanPhase, attempt int32) string { return fmt.Sprint(phase, attempt) }

// approveWaiting approves the phase that waits, and the phases after it up to the phase to. Like the API server, it does nothing while no phase waits.
func (w *world) approveWaiting(to v1alpha1.PlanPhase) *world {
	next := after(w.status.CurrentPhase)
	if w.status.State != complete || next == "" {
		return w
	}
	w.desired.Approval = &v1alpha1.PlanApproval{Phase: next, Attempt: w.status.Attempt, ToPhase: to}
	w.approvals[approvalKey(next, w.status.Attempt)] = true
	w.approvals[approvalKey(cmp.Or(to, next), w.status.Attempt)] = true
	return w
}

// checkMove checks that every change of state matches a row of the table.
func (w *world) checkMove(step *Step) {
	from := w.status
	if from.State == "" {
		from.State = queued
	}
	entries := step.Status.History
	old := from.History
	if len(entries) > 0 && len(old) > 0 { // the list is bounded: its oldest entries may have been dropped
		at := slices.IndexFunc(entries, func(e v1alpha1.PlanHistoryEntry) bool { return equality.Semantic.DeepEqual(e, old[len(old)-1]) })
		for i := len(entries) - 1; i > at; i-- {
			if equality.Semantic.DeepEqual(entries[i], old[len(old)-1]) {
				at = i
			}
		}
		entries = entries[at+1:]
	}
	state, phase := from.State, from.CurrentPhase
	for _, e := range entries {
		known := slices.ContainsFunc(table, func(r row) bool {
			return r.to == e.State && r.reason == e.Reason && slices.Contains(r.states, state) && (len(r.phases) == 0 || slices.Contains(r.phases, phase))
		})
		w.g.Expect(known).To(BeTrue(), "%s of %s became %s of %s for %s: no row allows it", state, phase, e.State, e.Phase, e.Reason)
		if e.Phase != phase && e.Phase != strategize {
			w.g.Expect(rank(e.Phase)).To(Equal(rank(phase)+1), "a phase was skipped")
			w.g.Expect(rank(w.desired.Target) >= rank(e.Phase) || w.approvals[approvalKey(e.Phase, e.Attempt)]).To(BeTrue(), "entered %s in attempt %d without approval", e.Phase, e.Attempt)
		}
		state, phase = e.State, e.Phase
	}
	w.g.Expect(step.Status.State).To(Equal(state), "the history does not contain the change")
	w.g.Expect(step.Status.CurrentPhase).To(Equal(phase), "the history does not contain the change")
}

// check checks the invariants that must hold at any time.
func (w *world) check() {
	s := &w.status
	for name, count := range w.created {
		w.g.Expect(count).To(Equal(1), "%s was created twice", name)
	}
	if s.Pinned != nil {
		w.g.Expect(len(w.liveRuns())).To(BeNumerically("<=", int(s.Pinned.MaxParallel)), "too many live runs: %v", w.liveRuns())
		w.g.Expect(s.Reversions).To(BeNumerically("<=", s.Pinned.MaxReversions))
	}
	if s.State == cancelled || s.State == applied || s.State == complete {
		w.g.Expect(w.liveRuns()).To(BeEmpty(), "%s with live runs", s.State)
	}
	for _, name := range w.liveRuns() {
		listed := slices.ContainsFunc(s.Runs, func(r v1alpha1.PlanRun) bool { return r.Name == name })
		w.g.Expect(listed).To(BeTrue(), "%s is live but not listed in the status", name)
		w.g.Expect(w.runs[name].Kept).To(BeTrue(), "%s is live but was released", name)
	}
	w.g.Expect(slices.Contains(s.Completed, apply)).To(Equal(meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionApplied)))
	w.g.Expect(len(s.History)).To(BeNumerically("<=", longestHistory))
	var are []string
	for _, c := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if meta.IsStatusConditionTrue(s.Conditions, c) {
			are = append(are, c)
		}
	}
	w.g.Expect(are).To(HaveLen(1), "exactly one condition is True: %v", s.Conditions)
	for _, c := range s.Conditions {
		w.g.Expect(c.Reason).NotTo(BeEmpty())
	}
	w.g.Expect(conditionstest.Faulty(s.Conditions)).To(BeEmpty(), "%v", s.Conditions)
}

func (w *world) describe() string {
	s := w.status
	return fmt.Sprintf("%s %s attempt %d, %v live", s.CurrentPhase, s.State, s.Attempt, strings.Join(w.liveRuns(), ", "))
}

// expectState checks the phase, the state and the attempt of the plan.
func (w *world) expectState(phase v1alpha1.PlanPhase, state v1alpha1.PlanState, attempt int) *world {
	w.g.Expect(w.status.CurrentPhase).To(Equal(phase), w.describe())
	w.g.Expect(w.status.State).To(Equal(state), w.describe())
	w.g.Expect(w.status.Attempt).To(BeEquivalentTo(attempt), w.describe())
	return w
}

// condition returns a condition; one that is left out has the status False.
func (w *world) condition(conditionType string) metav1.Condition {
	if found := meta.FindStatusCondition(w.status.Conditions, conditionType); found != nil {
		return *found
	}
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse}
}

func gomega(t *testing.T) *WithT {
	t.Helper()
	return NewWithT(t)
}
