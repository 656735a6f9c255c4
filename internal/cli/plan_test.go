// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
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

func readCheck(g Gomega, f *fixture) *v1alpha1.Plan {
	plan := &v1alpha1.Plan{}
	g.Expect(f.api.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: "check"}, plan)).To(Succeed())
	return plan
}

func TestPlanCommands_OutputAndTargetPhase(t *testing.T) {
	const (
		strategize, execute, apply = v1alpha1.PhaseStrategize, v1alpha1.PhaseExecute, v1alpha1.PhaseApply
	)
	for name, test := range map[string]struct {
		plan *v1alpha1.Plan
		args string
		code int
		says string
		// target is spec.targetPhase after the command.
		target v1alpha1.PlanPhase
	}{
		"approve the next":                 {newPlan(), "approve check", 0, "plan/check approved up to Execute", execute},
		"approve by its full name":         {newPlan(), "approve plan/check", 0, "plan/check approved up to Execute", execute},
		"approve all":                      {newPlan(), "approve check --to Apply", 0, "approved up to Apply", apply},
		"approve no phase":                 {newPlan(), "approve check --to deploy", 2, "unknown phase \"deploy\": use strategize, execute or apply", strategize},
		"approve without a name":           {newPlan(), "approve", 2, "berth plan approve NAME", strategize},
		"approve while it runs":            {newPlan(inState(strategize, v1alpha1.PlanProcessing)), "approve check", 0, "approved up to Execute", execute},
		"approve again":                    {newPlan(func(p *v1alpha1.Plan) { p.Spec.TargetPhase = execute }), "approve check", 0, "is already approved up to Execute", execute},
		"approve less":                     {newPlan(func(p *v1alpha1.Plan) { p.Spec.TargetPhase = apply }), "approve check --to execute", 0, "is already approved up to Apply", apply},
		"approve after a failure":          {newPlan(inState(execute, v1alpha1.PlanErrored)), "approve check", 1, "is Errored in Execute, so no phase is waiting for approval: see berth plan status check", execute},
		"approve after the last":           {newPlan(inState(apply, v1alpha1.PlanProcessing)), "approve check", 1, "the last phase, so no phase remains to approve", apply},
		"approve an applied plan":          {newPlan(inState(apply, v1alpha1.PlanApplied)), "approve check", 1, "is applied, so no phase remains", apply},
		"approve a cancelled plan":         {newPlan(func(p *v1alpha1.Plan) { p.Spec.State = v1alpha1.PlanCancelRequested }), "approve check", 1, "was cancelled, which is final", strategize},
		"approve a duplicate":              {newPlan(inState("", v1alpha1.PlanQueued), func(p *v1alpha1.Plan) { p.Status.DuplicateOf = &v1alpha1.PlanReference{Name: "first"} }), "approve check", 1, "plan/first has the same key", ""},
		"approve a missing plan":           {newPlan(), "approve nope", 3, "plan/nope does not exist in namespace \"default\": to list the plans, run berth plan status", strategize},
		"cancel":                           {newPlan(), "cancel check --reason enough", 0, "plan/check cancellation requested", strategize},
		"cancel an applied plan":           {newPlan(inState(apply, v1alpha1.PlanApplied)), "cancel check", 1, "so it cannot be cancelled: to start again, run berth plan revert check", apply},
		"cancel twice":                     {newPlan(func(p *v1alpha1.Plan) { p.Spec.State = v1alpha1.PlanCancelRequested }), "cancel check", 0, "is already cancelled", strategize},
		"retry":                            {newPlan(inState(execute, v1alpha1.PlanErrored)), "retry check", 0, "retry of Execute requested", execute},
		"retry after a success":            {newPlan(), "retry check", 1, "has nothing to retry, because Strategize succeeded", strategize},
		"retry before the start":           {newPlan(inState("", v1alpha1.PlanQueued)), "retry check", 1, "has not started", ""},
		"revert":                           {newPlan(inState(execute, v1alpha1.PlanComplete)), "revert check --reason again", 0, "revert to Strategize requested", strategize},
		"revert with a target":             {newPlan(inState(apply, v1alpha1.PlanApplied)), "revert check --to execute", 0, "revert to Strategize requested", execute},
		"revert the first phase":           {newPlan(), "revert check", 1, "its first phase, which can be reverted only after it failed", strategize},
		"revert the first after a failure": {newPlan(inState(strategize, v1alpha1.PlanErrored)), "revert check", 0, "revert to Strategize requested", strategize},
		"revert too often":                 {newPlan(inState(execute, v1alpha1.PlanErrored), func(p *v1alpha1.Plan) { p.Status.Reversions = 1 }), "revert check", 1, "was reverted 1 times, the limit of its action", execute},
		"status of all":                    {newPlan(), "status", 0, "check   check-module   Strategize   Complete   for approval of Execute", strategize},
		"status of one":                    {newPlan(), "status check", 0, "to continue: berth plan approve check", strategize},
		"status without plans":             {newPlan(), "status -n empty", 0, "no plan in namespace empty: to create one, run berth use ACTION", strategize},
		"status, watch all":                {newPlan(), "status -w", 2, "-w needs the NAME of a plan", strategize},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newPlanFixture(test.plan)
			g.Expect(f.run(t.Context(), append([]string{"plan"}, strings.Fields(test.args)...)...)).To(Equal(test.code), f.err.String())
			g.Expect(f.out.String() + f.err.String()).To(ContainSubstring(test.says))
			g.Expect(readCheck(g, f).Spec.TargetPhase).To(Equal(test.target))
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

// Another user approves the same phase at the same time, and the phase succeeds immediately. The next phase must not be approved.
func TestPlanApprove_ConcurrentApprovalsAdvanceOnePhase(t *testing.T) {
	g := NewWithT(t)
	f := newPlanFixture(newPlan())
	var once sync.Once
	f.api = interceptor.NewClient(f.api, interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			once.Do(func() {
				other := &v1alpha1.Plan{}
				g.Expect(api.Get(ctx, client.ObjectKeyFromObject(object), other)).To(Succeed())
				other.Spec.TargetPhase = v1alpha1.PhaseExecute
				g.Expect(api.Update(ctx, other)).To(Succeed())
				inState(v1alpha1.PhaseExecute, v1alpha1.PlanComplete)(other)
				g.Expect(api.Status().Update(ctx, other)).To(Succeed())
			})
			return api.Patch(ctx, object, patch, opts...)
		},
	})
	g.Expect(f.run(t.Context(), "plan", "approve", "check")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(ContainSubstring("is already approved up to Execute"))
	g.Expect(readCheck(g, f).Spec.TargetPhase).To(Equal(v1alpha1.PhaseExecute))
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
	g.Expect(readCheck(g, f).Spec.TargetPhase).To(Equal(v1alpha1.PhaseExecute))
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
		"until the next gate": {args: "retry check --wait", then: []func(*v1alpha1.Plan){inState(v1alpha1.PhaseExecute, v1alpha1.PlanComplete)}, says: "plan/check Execute Complete"},
		"until it fails":      {args: "retry check --wait", then: []func(*v1alpha1.Plan){inState(v1alpha1.PhaseExecute, v1alpha1.PlanErrored), stalled}, code: 1, says: "plan/check is Errored: PhaseFailed: test Failed"},
		"until the timeout":   {args: "retry check --wait --timeout 300ms", code: 4, says: "plan/check was not complete after 300ms: see berth plan status check"},
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
