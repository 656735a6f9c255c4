// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
)

// newPlanFixture returns a command line with plans in memory, which can be listed by idempotency key.
func newPlanFixture(objects ...client.Object) *fixture {
	f := newFixture()
	f.api = fake.NewClientBuilder().WithScheme(manager.Scheme()).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Plan{}, &v1alpha1.StrategyRun{}).
		WithIndex(&v1alpha1.Plan{}, "spec.idempotencyKey", func(object client.Object) []string {
			return []string{object.(*v1alpha1.Plan).Spec.IdempotencyKey}
		}).Build()
	return f
}

// checkModule returns an action with a required and an optional argument.
func checkModule() *v1alpha1.Action {
	return &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "check-module"}, Spec: v1alpha1.ActionSpec{
		Arguments: []v1alpha1.ActionArgument{
			{Name: "module", Type: v1alpha1.ArgumentString, Presence: v1alpha1.PresenceRequired, Pattern: "/.*"},
			{Name: "depth", Type: v1alpha1.ArgumentInteger, Presence: v1alpha1.PresenceOptional},
		},
	}}
}

// newPlan returns the plan check, which waits for approval of Execute.
func newPlan(change ...func(*v1alpha1.Plan)) *v1alpha1.Plan {
	plan := &v1alpha1.Plan{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "check", UID: "uid-check"},
		Spec: v1alpha1.PlanSpec{
			ActionRef: v1alpha1.LocalReference{Name: "check-module"}, State: v1alpha1.PlanActive, TargetPhase: v1alpha1.PhaseStrategize,
		},
		Status: v1alpha1.PlanStatus{
			CurrentPhase: v1alpha1.PhaseStrategize, State: v1alpha1.PlanComplete, Attempt: 1, Waiting: "for approval of Execute",
			Completed: []v1alpha1.PlanPhase{v1alpha1.PhaseStrategize},
			Pinned: &v1alpha1.PinnedAction{MaxReversions: 1, Phases: []v1alpha1.PinnedPhase{
				{Name: v1alpha1.PhaseStrategize, Strategies: []v1alpha1.StrategyReference{{Name: "list"}}},
				{Name: v1alpha1.PhaseExecute, Strategies: []v1alpha1.StrategyReference{{Name: "search"}, {Name: "test"}}},
				{Name: v1alpha1.PhaseApply, Strategies: []v1alpha1.StrategyReference{{Name: "report"}}},
			}},
		},
	}
	for _, do := range change {
		do(plan)
	}
	return plan
}

// inState sets the phase and the state of a plan, and makes that phase its target.
func inState(phase v1alpha1.PlanPhase, state v1alpha1.PlanState) func(*v1alpha1.Plan) {
	return func(plan *v1alpha1.Plan) {
		plan.Status.CurrentPhase, plan.Status.State, plan.Status.Waiting = phase, state, ""
		plan.Spec.TargetPhase = phase
	}
}

// approved sets the approval of a plan.
func approved(phase v1alpha1.PlanPhase, attempt int32) func(*v1alpha1.Plan) {
	return func(plan *v1alpha1.Plan) {
		plan.Spec.Approval = &v1alpha1.PlanApproval{Phase: phase, Attempt: attempt}
	}
}

func readCheck(g Gomega, f *fixture) *v1alpha1.Plan {
	plan := &v1alpha1.Plan{}
	g.Expect(f.api.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: "check"}, plan)).To(Succeed())
	return plan
}

func TestPlanCommands_OutputAndApproval(t *testing.T) {
	const (
		strategize, execute, apply = v1alpha1.PhaseStrategize, v1alpha1.PhaseExecute, v1alpha1.PhaseApply
	)
	for name, test := range map[string]struct {
		plan *v1alpha1.Plan
		args string
		code int
		says string
		// covers is the last phase that spec.approval covers after the command.
		covers v1alpha1.PlanPhase
	}{
		"approve the phase that waits":     {newPlan(), "approve check", 0, "plan/check approved: Execute of attempt 1\n", execute},
		"approve by its full name":         {newPlan(), "approve plan/check", 0, "plan/check approved: Execute of attempt 1", execute},
		"approve what the status shows":    {newPlan(), "approve check --phase execute --attempt 1 --uid uid-chec", 0, "plan/check approved: Execute of attempt 1", execute},
		"approve all":                      {newPlan(), "approve check --to Apply", 0, "approved: Execute of attempt 1, up to Apply", apply},
		"approve up to the phase":          {newPlan(), "approve check --to execute", 0, "approved: Execute of attempt 1\n", execute},
		"approve no phase":                 {newPlan(), "approve check --phase deploy", 2, "unknown phase \"deploy\": use strategize, execute or apply", ""},
		"approve attempt 0":                {newPlan(), "approve check --attempt 0", 2, "--attempt must be at least 1, not 0", ""},
		"approve without a name":           {newPlan(), "approve", 2, "berth plan approve NAME", ""},
		"approve a recreated plan":         {newPlan(), "approve check --attempt 1 --phase execute --uid 5c0f1e2a", 1, "plan/check was deleted and recreated, and the new plan is unchanged", ""},
		"cancel a recreated plan":          {newPlan(), "cancel check --uid 5c0f1e2a", 1, "plan/check was deleted and recreated, and the new plan is unchanged", ""},
		"approve while it runs":            {newPlan(inState(strategize, v1alpha1.PlanProcessing)), "approve check", 1, "is Strategize Processing, attempt 1, so no phase is waiting for approval", ""},
		"approve again":                    {newPlan(inState(execute, v1alpha1.PlanProcessing), approved(execute, 1)), "approve check --phase execute --attempt 1", 0, "is already approved: Execute of attempt 1", execute},
		"approve again, without a phase":   {newPlan(inState(execute, v1alpha1.PlanProcessing), approved(execute, 1)), "approve check", 1, "is Execute Processing, attempt 1, so no phase is waiting for approval", execute},
		"approve another phase":            {newPlan(), "approve check --phase apply --attempt 1", 1, "waits for approval of Execute in attempt 1, not of Apply in attempt 1: see berth plan status check", ""},
		"approve another attempt":          {newPlan(func(p *v1alpha1.Plan) { p.Status.Attempt = 2 }, approved(execute, 1)), "approve check --attempt 1", 1, "waits for approval of Execute in attempt 2, not of Execute in attempt 1", execute},
		"approve less than waits":          {newPlan(inState(execute, v1alpha1.PlanComplete)), "approve check --to execute", 1, "waits for approval of Apply, which is after Execute", ""},
		"approve after a failure":          {newPlan(inState(execute, v1alpha1.PlanErrored)), "approve check", 1, "is Errored in Execute, so no phase is waiting for approval: see berth plan status check", ""},
		"approve after the last":           {newPlan(inState(apply, v1alpha1.PlanProcessing)), "approve check", 1, "so no phase is waiting for approval", ""},
		"approve an applied plan":          {newPlan(inState(apply, v1alpha1.PlanApplied)), "approve check", 1, "is applied, so no phase remains", ""},
		"approve a cancelled plan":         {newPlan(func(p *v1alpha1.Plan) { p.Spec.State = v1alpha1.PlanCancelRequested }), "approve check", 1, "was cancelled, which is final", ""},
		"approve a duplicate":              {newPlan(inState("", v1alpha1.PlanQueued), func(p *v1alpha1.Plan) { p.Status.DuplicateOf = &v1alpha1.PlanReference{Name: "first"} }), "approve check", 1, "plan/first has the same key", ""},
		"approve a missing plan":           {newPlan(), "approve nope", 3, "plan/nope does not exist in namespace \"default\": to list the plans, run berth plan status", ""},
		"cancel":                           {newPlan(), "cancel check --reason enough", 0, "plan/check cancellation requested", ""},
		"cancel an applied plan":           {newPlan(inState(apply, v1alpha1.PlanApplied)), "cancel check", 1, "so it cannot be cancelled: to start again, run berth plan revert check", ""},
		"cancel twice":                     {newPlan(func(p *v1alpha1.Plan) { p.Spec.State = v1alpha1.PlanCancelRequested }), "cancel check", 0, "is already cancelled", ""},
		"retry":                            {newPlan(inState(execute, v1alpha1.PlanErrored)), "retry check", 0, "retry of Execute of attempt 1 requested", ""},
		"retry after a success":            {newPlan(), "retry check", 1, "has nothing to retry, because Strategize succeeded", ""},
		"retry before the start":           {newPlan(inState("", v1alpha1.PlanQueued)), "retry check", 1, "has not started", ""},
		"revert":                           {newPlan(inState(execute, v1alpha1.PlanComplete)), "revert check --reason again", 0, "revert from Execute of attempt 1 to Strategize requested", ""},
		"revert with a target":             {newPlan(inState(apply, v1alpha1.PlanApplied)), "revert check --to execute --attempt 1", 0, "revert from Apply of attempt 1 to Strategize requested", ""},
		"retry another attempt":            {newPlan(inState(execute, v1alpha1.PlanErrored)), "retry check --attempt 2", 1, "is in attempt 1: Execute Errored, not in attempt 2 of Execute: see berth plan status check", ""},
		"retry runs that are active":       {newPlan(inState(execute, v1alpha1.PlanProcessing)), "retry check", 1, "is Execute Processing: to stop the runs of Execute in attempt 1, run berth plan retry check --attempt 1 --phase execute --uid uid-chec", ""},
		"retry the runs of an attempt":     {newPlan(inState(execute, v1alpha1.PlanProcessing)), "retry check --phase execute --attempt 1", 0, "retry of Execute of attempt 1 requested", ""},
		"revert another attempt":           {newPlan(inState(apply, v1alpha1.PlanApplied)), "revert check --attempt 3", 1, "is in attempt 1: Apply Applied, not in attempt 3 of Apply", ""},
		"revert runs that are active":      {newPlan(inState(execute, v1alpha1.PlanProcessing)), "revert check", 1, "to stop the runs of Execute in attempt 1, run berth plan revert check --attempt 1 --phase execute --uid uid-chec", ""},
		"revert the first phase":           {newPlan(), "revert check", 1, "its first phase, which can be reverted only after it failed", ""},
		"revert the first after a failure": {newPlan(inState(strategize, v1alpha1.PlanErrored)), "revert check", 0, "revert from Strategize of attempt 1 to Strategize requested", ""},
		"revert too often":                 {newPlan(inState(execute, v1alpha1.PlanErrored), func(p *v1alpha1.Plan) { p.Status.Reversions = 1 }), "revert check", 1, "was reverted 1 times, the limit of its action", ""},
		"status of all":                    {newPlan(), "status", 0, "check   check-module   Strategize   Complete   for approval of Execute", ""},
		"status of one":                    {newPlan(), "status check", 0, "to continue: berth plan approve check --attempt 1 --phase execute --uid uid-chec", ""},
		"status without plans":             {newPlan(), "status -n empty", 0, "no plan in namespace empty: to create one, run berth use ACTION", ""},
		"status, watch all":                {newPlan(), "status -w", 2, "-w needs the NAME of a plan", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newPlanFixture(test.plan)
			g.Expect(f.run(t.Context(), append([]string{"plan"}, strings.Fields(test.args)...)...)).To(Equal(test.code), f.err.String())
			g.Expect(f.out.String() + f.err.String()).To(ContainSubstring(test.says))
			approval := readCheck(g, f).Spec.Approval
			g.Expect(approval != nil).To(Equal(test.covers != ""))
			if approval != nil {
				g.Expect(cmp.Or(approval.ToPhase, approval.Phase)).To(Equal(test.covers))
			}
		})
	}
}

func TestPlan_EachRequestSetsNewToken(t *testing.T) {
	g := NewWithT(t)
	f := newPlanFixture(newPlan(inState(v1alpha1.PhaseExecute, v1alpha1.PlanErrored)))
	tokens := map[string]bool{}
	for range 3 {
		g.Expect(f.run(t.Context(), "plan", "retry", "check", "--reason", "the disk is there again")).To(BeZero())
		tokens[readCheck(g, f).Spec.RetryToken] = true
	}
	g.Expect(f.run(t.Context(), "plan", "revert", "check", "--reason", "wrong folder")).To(BeZero())
	plan := readCheck(g, f)
	g.Expect(plan.Spec.Revert.Reason).To(Equal("wrong folder"))
	tokens[plan.Spec.Revert.Token] = true
	g.Expect(tokens).To(HaveLen(4))
	g.Expect(plan.Annotations).To(HaveKeyWithValue(annotationReason, "the disk is there again"))

	g.Expect(f.run(t.Context(), "plan", "cancel", "check", "--reason", "enough")).To(BeZero())
	plan = readCheck(g, f)
	g.Expect(plan.Spec.State).To(Equal(v1alpha1.PlanCancelRequested))
	g.Expect(plan.Annotations).To(HaveKeyWithValue(annotationReason, "enough"))
}

// Another user changes the plan between the read and the write of a command. The command must not act on what its user did not see.
func TestPlanChange_FailsIfPlanChangedMeanwhile(t *testing.T) {
	const (
		execute, apply = v1alpha1.PhaseExecute, v1alpha1.PhaseApply
	)
	nextAttempt := func(p *v1alpha1.Plan) { p.Status.Attempt++ }
	for name, test := range map[string]struct {
		plan *v1alpha1.Plan
		args string
		// other is what the other user did, and its effect.
		other []func(*v1alpha1.Plan)
		says  string
	}{
		"the next phase waits": {newPlan(), "approve check", []func(*v1alpha1.Plan){inState(execute, v1alpha1.PlanComplete)},
			"plan/check waits for approval of Apply in attempt 1, not of Execute in attempt 1"},
		"the phase runs": {newPlan(), "approve check --to apply", []func(*v1alpha1.Plan){approved(execute, 1), inState(execute, v1alpha1.PlanProcessing)},
			"plan/check is Execute Processing, attempt 1, so no phase is waiting for approval"},
		"it waits in another attempt": {newPlan(), "approve check", []func(*v1alpha1.Plan){nextAttempt},
			"plan/check waits for approval of Execute in attempt 2, not of Execute in attempt 1"},
		"it was retried": {newPlan(inState(execute, v1alpha1.PlanErrored)), "retry check", []func(*v1alpha1.Plan){inState(execute, v1alpha1.PlanProcessing), nextAttempt},
			"plan/check is in attempt 2: Execute Processing (attempt 2), not in attempt 1 of Execute"},
		"it continues": {newPlan(inState(execute, v1alpha1.PlanComplete)), "revert check", []func(*v1alpha1.Plan){inState(apply, v1alpha1.PlanProcessing)},
			"plan/check is in attempt 1: Apply Processing, not in attempt 1 of Execute"},
		"it was recreated": {newPlan(), "cancel check", []func(*v1alpha1.Plan){func(p *v1alpha1.Plan) { p.UID = "uid-new" }},
			"plan/check was deleted and recreated, and the new plan is unchanged"},
		"it was recreated, and waits": {newPlan(), "approve check", []func(*v1alpha1.Plan){func(p *v1alpha1.Plan) { p.UID = "uid-new" }},
			"plan/check was deleted and recreated, and the new plan is unchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newPlanFixture(test.plan)
			var once sync.Once
			var after *v1alpha1.Plan
			f.api = interceptor.NewClient(f.api, interceptor.Funcs{
				Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
					once.Do(func() {
						other := &v1alpha1.Plan{}
						g.Expect(api.Get(ctx, client.ObjectKeyFromObject(object), other)).To(Succeed())
						g.Expect(api.Delete(ctx, other.DeepCopy())).To(Succeed())
						for _, do := range test.other {
							do(other)
						}
						status := other.Status
						other.ResourceVersion = ""
						g.Expect(api.Create(ctx, other)).To(Succeed())
						other.Status = status
						other.Annotations = map[string]string{"changed": "twice"} // so that the version differs from the first one
						g.Expect(api.Update(ctx, other)).To(Succeed())
						other.Status = status
						g.Expect(api.Status().Update(ctx, other)).To(Succeed())
						after = readCheck(g, f)
					})
					return api.Patch(ctx, object, patch, opts...)
				},
			})
			g.Expect(f.run(t.Context(), append([]string{"plan"}, strings.Fields(test.args)...)...)).To(Equal(1), f.out.String())
			g.Expect(f.err.String()).To(ContainSubstring(test.says))
			g.Expect(readCheck(g, f)).To(Equal(after), "the plan is unchanged")
		})
	}
}

// Two users approve what both have seen, at the same time.
func TestPlanApprove_SameApprovalSucceedsTwice(t *testing.T) {
	g := NewWithT(t)
	f := newPlanFixture(newPlan())
	var once sync.Once
	f.api = interceptor.NewClient(f.api, interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			once.Do(func() {
				other := readCheck(g, f)
				approved(v1alpha1.PhaseExecute, 1)(other)
				g.Expect(api.Update(ctx, other)).To(Succeed())
			})
			return api.Patch(ctx, object, patch, opts...)
		},
	})
	g.Expect(f.run(t.Context(), "plan", "approve", "check")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(Equal("plan/check is already approved: Execute of attempt 1\n"))
}

// No decision is based on the status of an older generation, because a revert may be pending.
func TestPlanApprove_WaitsForObservedGeneration(t *testing.T) {
	g := NewWithT(t)
	f := newPlanFixture(newPlan(inState(v1alpha1.PhaseExecute, v1alpha1.PlanComplete), func(p *v1alpha1.Plan) {
		p.Generation, p.Status.ObservedGeneration = 2, 1
		p.Spec.TargetPhase = v1alpha1.PhaseStrategize
	}))
	code := make(chan int, 1)
	go func() { code <- f.run(t.Context(), "plan", "approve", "check") }()
	g.Consistently(code, 300*time.Millisecond).ShouldNot(Receive())
	plan := readCheck(g, f)
	plan.Status.CurrentPhase, plan.Status.ObservedGeneration = v1alpha1.PhaseStrategize, 2
	g.Expect(f.api.Status().Update(t.Context(), plan)).To(Succeed())
	g.Eventually(code, timeout).Should(Receive(BeZero()))
	g.Expect(readCheck(g, f).Spec.Approval).To(Equal(&v1alpha1.PlanApproval{Phase: v1alpha1.PhaseExecute, Attempt: 1}))
}

func TestPlanWait_EndsAtExpectedState(t *testing.T) {
	stalled := func(p *v1alpha1.Plan) {
		p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: "PhaseFailed", Message: "test Failed"}}
	}
	for name, test := range map[string]struct {
		args   string
		then   []func(*v1alpha1.Plan)
		code   int
		says   string
		delete bool
	}{
		"until it is applied": {args: "status -w check", then: []func(*v1alpha1.Plan){inState(v1alpha1.PhaseApply, v1alpha1.PlanApplied)}, says: "plan/check Apply Applied"},
		"until it is deleted": {args: "status -w check", delete: true, code: 3, says: "plan/check does not exist"},
		"until the next gate": {args: "retry check --phase execute --attempt 1 --wait", then: []func(*v1alpha1.Plan){inState(v1alpha1.PhaseExecute, v1alpha1.PlanComplete)}, says: "plan/check Execute Complete"},
		"until it fails":      {args: "retry check --phase execute --attempt 1 --wait", then: []func(*v1alpha1.Plan){inState(v1alpha1.PhaseExecute, v1alpha1.PlanErrored), stalled}, code: 1, says: "plan/check is Errored: PhaseFailed: test Failed"},
		"until the timeout":   {args: "retry check --phase execute --attempt 1 --wait --timeout 300ms", code: 4, says: "plan/check was not complete after 300ms: see berth plan status check"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newPlanFixture(newPlan(inState(v1alpha1.PhaseExecute, v1alpha1.PlanProcessing)))
			code := make(chan int, 1)
			go func() { code <- f.run(t.Context(), append([]string{"plan"}, strings.Fields(test.args)...)...) }()
			g.Eventually(f.out.String, timeout).Should(ContainSubstring("plan/check Execute Processing"))
			for len(test.then) > 0 {
				plan := readCheck(g, f)
				for _, do := range test.then {
					do(plan)
				}
				if err := f.api.Status().Update(t.Context(), plan); !apierrors.IsConflict(err) {
					g.Expect(err).NotTo(HaveOccurred())
					break
				}
			}
			if test.delete {
				g.Expect(f.api.Delete(t.Context(), newPlan())).To(Succeed())
			}
			g.Eventually(code, timeout).Should(Receive(Equal(test.code)))
			g.Expect(f.out.String() + f.err.String()).To(ContainSubstring(test.says))
		})
	}
}

func TestStatusShowsPlans(t *testing.T) {
	g := NewWithT(t)
	f := newPlanFixture(newPlan(func(p *v1alpha1.Plan) {
		p.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAwaitingApproval, Message: "for approval of Execute",
		}}
		p.Status.Attempt = 2
	}))
	g.Expect(f.run(t.Context(), "status")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(MatchRegexp(`(?m)^plan/check +True +AwaitingApproval +action/check-module Strategize +1 `))
	g.Expect(f.run(t.Context(), "reset", "plans", "check")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring("berth reset strategies NAME"))
}
