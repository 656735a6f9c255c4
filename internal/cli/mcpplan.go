// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// planSummary describes a plan in the results of tools.
type planSummary struct {
	Name    string `json:"name"`
	Action  string `json:"action"`
	Phase   string `json:"phase,omitempty"`
	State   string `json:"state,omitempty"`
	Waiting string `json:"waiting,omitempty"`
	Message string `json:"message,omitempty"` // why the plan cannot continue
	Result  string `json:"result,omitempty"`  // the effect of the call
}

func summarizePlan(plan *v1alpha1.Plan) planSummary {
	s := &plan.Status
	summary := planSummary{
		Name: plan.Name, Action: plan.Spec.ActionRef.Name, Phase: string(s.CurrentPhase), State: string(s.State), Waiting: clean(s.Waiting),
	}
	if stalled := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionStalled); stalled != nil && meta.IsStatusConditionTrue(s.Conditions, stalled.Type) {
		summary.Message = stalled.Reason + ": " + clean(stalled.Message)
	}
	return summary
}

// runSummary describes a run of a plan.
type runSummary struct {
	Run      string `json:"run"` // the name for get and logs
	Strategy string `json:"strategy"`
	Phase    string `json:"phase"`
	Attempt  int32  `json:"attempt,omitempty"`
	State    string `json:"state"` // the outcome, or the state before the end
	Message  string `json:"message,omitempty"`
	Result   string `json:"result,omitempty"` // the summary that the run wrote
}

type planStatusInput struct {
	Name string `json:"name,omitempty" jsonschema:"default: all plans, without runs"`
}

type planStatusOutput struct {
	Plans []planSummary `json:"plans"`
	Runs  []runSummary  `json:"runs,omitempty"`
}

type useInput struct {
	Action    string            `json:"action"`
	Arguments map[string]string `json:"arguments,omitempty"`
	Key       string            `json:"key,omitempty" jsonschema:"equal keys return the same plan"`
	To        string            `json:"to,omitempty" jsonschema:"default strategize"`
	waiting
}

type approveInput struct {
	Name string `json:"name"`
	To   string `json:"to,omitempty" jsonschema:"phase; default: the next"`
	waiting
}

type planInput struct {
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"`
	waiting
}

func (t *toolContext) addPlanTools(box *toolbox) {
	addTool(box, "plan_status", reads, "Show plans, or one plan with its runs and results.", t.planStatus)
	addTool(box, "use", changes, "Create a plan from an action. Each of its phases strategize, execute and apply needs approval, except up to the phase to.", t.use)
	addTool(box, "approve", changes, "Approve the next phase of a plan.", t.approve)
	addTool(box, "retry", changes, "Run the failed phase of a plan again.", t.retry)
	addTool(box, "revert", destroys, "Stop the runs of a plan and return it to its first phase.", t.revert)
	addTool(box, "cancel", destroys, "Stop the runs of a plan and end it for good.", t.cancel)
}

func (t *toolContext) planStatus(ctx context.Context, _ *mcp.CallToolRequest, input planStatusInput) (planStatusOutput, error) {
	output := planStatusOutput{Plans: []planSummary{}}
	if input.Name == "" {
		list := &v1alpha1.PlanList{}
		if err := t.to.client.List(ctx, list, client.InNamespace(t.to.namespace), client.Limit(listLimit)); err != nil {
			return output, fmt.Errorf("list plans: %w", err)
		}
		slices.SortFunc(list.Items, func(a, b v1alpha1.Plan) int { return strings.Compare(a.Name, b.Name) })
		for i := range list.Items {
			output.Plans = append(output.Plans, summarizePlan(&list.Items[i]))
		}
		return output, nil
	}
	plan, err := t.to.plan(ctx, planName(input.Name))
	if err != nil {
		return output, err
	}
	runs, err := t.to.runsOf(ctx, plan)
	if err != nil {
		return output, err
	}
	output.Plans = append(output.Plans, summarizePlan(plan))
	for _, run := range newTree(plan, runs).runs {
		output.Runs = append(output.Runs, runSummary{
			Run: "strategyrun/" + run.name, Strategy: run.strategy, Phase: string(run.phase), Attempt: run.attempt, State: run.word,
			Message: clean(run.message), Result: clean(run.result),
		})
	}
	slices.SortFunc(output.Runs, func(a, b runSummary) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(phaseRank(v1alpha1.PlanPhase(a.Phase)), phaseRank(v1alpha1.PlanPhase(b.Phase))), cmp.Compare(a.Run, b.Run))
	})
	return output, nil
}

func (t *toolContext) use(ctx context.Context, call *mcp.CallToolRequest, input useInput) (planSummary, error) {
	f := &useFlags{key: input.Key}
	f.to = input.To
	if f.to == "" {
		f.to = string(v1alpha1.PhaseStrategize)
	}
	for _, name := range slices.Sorted(maps.Keys(input.Arguments)) {
		f.arguments = append(f.arguments, name+"="+input.Arguments[name])
	}
	wanted, err := f.plan(strings.TrimPrefix(input.Action, "action/"))
	if err != nil {
		return planSummary{}, err
	}
	wanted.Namespace = t.to.namespace
	created, err := t.to.begin(ctx, wanted)
	if err != nil {
		return planSummary{}, err
	}
	said := "created"
	if created.there {
		said = "already exists"
	}
	return t.settlePlan(ctx, call, created.plan, said, input.waiting)
}

func (t *toolContext) approve(ctx context.Context, call *mcp.CallToolRequest, input approveInput) (planSummary, error) {
	var target v1alpha1.PlanPhase
	var err error
	if input.To != "" {
		if target, err = parsePhase(input.To); err != nil {
			return planSummary{}, err
		}
	}
	return t.changePlan(ctx, call, input.Name, input.waiting, func(plan *v1alpha1.Plan) (string, error) {
		said, err := approve(plan, target)
		target = plan.Spec.TargetPhase // a repetition after a conflict approves the same phase
		return said, err
	})
}

func (t *toolContext) retry(ctx context.Context, call *mcp.CallToolRequest, input planInput) (planSummary, error) {
	token := newToken(t.app.clock.Now())
	return t.changePlan(ctx, call, input.Name, input.waiting, func(plan *v1alpha1.Plan) (string, error) { return retryPlan(plan, token, input.Reason) })
}

func (t *toolContext) revert(ctx context.Context, call *mcp.CallToolRequest, input planInput) (planSummary, error) {
	token := newToken(t.app.clock.Now())
	return t.changePlan(ctx, call, input.Name, input.waiting, func(plan *v1alpha1.Plan) (string, error) {
		return revertPlan(plan, token, input.Reason, v1alpha1.PhaseStrategize)
	})
}

func (t *toolContext) cancel(ctx context.Context, call *mcp.CallToolRequest, input planInput) (planSummary, error) {
	name := planName(input.Name)
	plan, said, err := t.app.changePlan(ctx, t.to, name, readPlan, func(plan *v1alpha1.Plan) (string, error) { return cancelPlan(plan, input.Reason) })
	if err != nil {
		return planSummary{}, err
	}
	return t.settlePlan(ctx, call, plan, said, waiting{})
}

func (t *toolContext) changePlan(ctx context.Context, call *mcp.CallToolRequest, name string, wait waiting, decide decision) (planSummary, error) {
	plan, said, err := t.app.changePlan(ctx, t.to, planName(name), answeredPlan, decide)
	if err != nil {
		return planSummary{}, err
	}
	return t.settlePlan(ctx, call, plan, said, wait)
}

// settlePlan waits until a plan has completed all approved phases, if that is wanted, and returns its summary.
func (t *toolContext) settlePlan(ctx context.Context, call *mcp.CallToolRequest, plan *v1alpha1.Plan, said string, wanted waiting) (planSummary, error) {
	summary := summarizePlan(plan)
	summary.Result = said
	if !wanted.Wait {
		return summary, nil
	}
	progress := progressOf(ctx, call)
	err := wait.PollUntilContextTimeout(ctx, pollEvery, wanted.timeout(), true, func(ctx context.Context) (bool, error) {
		now, err := t.to.plan(ctx, plan.Name)
		if err != nil {
			return false, err
		}
		if now.UID != plan.UID {
			return false, fmt.Errorf("plan/%s was deleted and recreated", plan.Name)
		}
		summary = summarizePlan(now)
		summary.Result = said
		progress(strings.TrimSpace(strings.Join([]string{"plan/" + summary.Name, summary.Phase, summary.State, summary.Waiting}, " ")))
		return arrived(now, plan.Generation)
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("plan/%s was not complete after %s: call plan_status, or wait longer with timeoutSeconds", plan.Name, wanted.timeout())
	}
	return summary, err
}
