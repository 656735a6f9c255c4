// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// planSummary describes a plan in the results of tools.
type planSummary struct {
	Name    string `json:"name"`
	UID     string `json:"uid,omitempty"`
	Action  string `json:"action"`
	Phase   string `json:"phase,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	State   string `json:"state,omitempty"`
	Waiting string `json:"waiting,omitempty"`
	Message string `json:"message,omitempty"` // why the plan cannot continue
	Result  string `json:"result,omitempty"`  // the effect of the call
}

func summarizePlan(plan *v1alpha1.Plan) planSummary {
	s := &plan.Status
	summary := planSummary{
		Name: plan.Name, UID: string(plan.UID), Action: plan.Spec.ActionRef.Name, Phase: string(s.CurrentPhase), Attempt: int(s.Attempt), State: string(s.State), Waiting: clean(s.Waiting),
	}
	if stalled := stalledBy(s.Conditions); stalled != nil {
		summary.Message = stalled.Reason + ": " + clean(stalled.Message)
	}
	return summary
}

// runSummary describes a run of a plan.
type runSummary struct {
	Run      string `json:"run"` // the name for get and logs
	Strategy string `json:"strategy"`
	Phase    string `json:"phase"`
	Attempt  int    `json:"attempt,omitempty"`
	State    string `json:"state"` // the outcome, or the state before the end
	Message  string `json:"message,omitempty"`
	// UntrustedResult is the summary that the run wrote.
	UntrustedResult string `json:"untrustedResult,omitempty"`
}

type planStatusInput struct {
	Name string `json:"name,omitempty" jsonschema:"default: all, without runs"`
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
	Name    string `json:"name"`
	UID     string `json:"uid,omitempty"`
	Phase   string `json:"phase" jsonschema:"as in plan_status"`
	Attempt int    `json:"attempt" jsonschema:"as in plan_status"`
	To      string `json:"to,omitempty" jsonschema:"last approved phase"`
	waiting
}

type cancelInput struct {
	Name   string `json:"name"`
	UID    string `json:"uid,omitempty"`
	Reason string `json:"reason,omitempty"`
}

type planInput struct {
	Name    string `json:"name"`
	UID     string `json:"uid,omitempty"`
	Phase   string `json:"phase"`
	Attempt int    `json:"attempt"`
	Reason  string `json:"reason,omitempty"`
	waiting
}

func (t *toolContext) addPlanTools(box *toolbox) {
	addTool(box, "plan_status", reads, "Show plans, or one plan with its runs and results.", t.planStatus)
	use := "Create a plan from an action. The user approves execute and apply."
	if t.mayApprove {
		use = "Create a plan from an action. Each of its phases strategize, execute and apply needs approval, except up to the phase to."
	}
	addTool(box, "use", changes, use, t.use)
	if t.mayApprove {
		addTool(box, "approve", changes, "Approve the phase of a plan that waits for approval.", t.approve)
	}
	addTool(box, "retry", changes, "Run a plan's failed phase again.", t.planTool(retryPlan))
	addTool(box, "revert", destroys, "Stop a plan's runs and return it to its first phase.", t.planTool(revertPlan))
	addTool(box, "cancel", destroys, "Stop a plan's runs and end it for good.", t.cancel)
}

func (t *toolContext) planStatus(ctx context.Context, _ *mcp.CallToolRequest, input planStatusInput) (planStatusOutput, error) {
	output := planStatusOutput{Plans: []planSummary{}}
	if input.Name == "" {
		plans, err := t.to.plans(ctx, client.Limit(listLimit))
		for i := range plans {
			output.Plans = append(output.Plans, summarizePlan(&plans[i]))
		}
		return output, err
	}
	tree, err := t.to.planTree(ctx, planName(input.Name))
	if err != nil {
		return output, err
	}
	output.Plans = append(output.Plans, summarizePlan(tree.plan))
	for _, run := range tree.runs {
		output.Runs = append(output.Runs, runSummary{
			Run: "strategyrun/" + run.name, Strategy: run.strategy, Phase: string(run.phase), Attempt: int(run.attempt), State: run.word,
			Message: clean(run.message), UntrustedResult: clean(run.result),
		})
	}
	slices.SortFunc(output.Runs, func(a, b runSummary) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(phaseRank(v1alpha1.PlanPhase(a.Phase)), phaseRank(v1alpha1.PlanPhase(b.Phase))), cmp.Compare(a.Run, b.Run))
	})
	return output, nil
}

// errApproval is the error for a call that would approve a phase of a plan without permission.
var errApproval = errors.New("this server may not approve phases of plans: create the plan for the phase strategize, and ask the user to run berth plan approve NAME, or to start " +
	"berth mcp with --allow-approve")

// seenAttempt returns the attempt that a call names.
func seenAttempt(attempt int) (int32, error) {
	if attempt < 1 || attempt > math.MaxInt32 {
		return 0, fmt.Errorf("attempt %d: pass the attempt that plan_status shows", attempt)
	}
	return int32(attempt), nil
}

func (t *toolContext) use(ctx context.Context, call *mcp.CallToolRequest, input useInput) (planSummary, error) {
	f := &useFlags{key: input.Key}
	f.to = input.To
	if f.to == "" {
		f.to = string(v1alpha1.PhaseStrategize)
	}
	if target, err := parsePhase(f.to); err == nil && target != v1alpha1.PhaseStrategize && !t.mayApprove {
		return planSummary{}, fmt.Errorf("to: %s: %w", f.to, errApproval)
	}
	for _, name := range slices.Sorted(maps.Keys(input.Arguments)) {
		f.arguments = append(f.arguments, name+"="+input.Arguments[name])
	}
	wanted, err := f.plan(strings.TrimPrefix(input.Action, "action/"))
	if err != nil {
		return planSummary{}, err
	}
	wanted.Namespace = t.to.namespace
	plan, existed, err := t.to.begin(ctx, wanted)
	if err != nil {
		return planSummary{}, err
	}
	said := "created"
	if existed {
		said = "already exists"
	}
	return t.settlePlan(ctx, call, plan, said, input.waiting)
}

func (t *toolContext) approve(ctx context.Context, call *mcp.CallToolRequest, input approveInput) (planSummary, error) {
	attempt, err := seenAttempt(input.Attempt)
	if err != nil {
		return planSummary{}, err
	}
	request := &planRequest{uid: input.UID, attempt: attempt}
	if request.phase, err = parsePhase(input.Phase); err != nil {
		return planSummary{}, err
	}
	if input.To != "" {
		if request.target, err = parsePhase(input.To); err != nil {
			return planSummary{}, err
		}
	}
	return t.changePlan(ctx, call, input.Name, approve, request, input.waiting)
}

// planTool returns the function of a tool that applies a decision to a plan.
func (t *toolContext) planTool(decide decision) func(context.Context, *mcp.CallToolRequest, planInput) (planSummary, error) {
	return func(ctx context.Context, call *mcp.CallToolRequest, input planInput) (planSummary, error) {
		attempt, err := seenAttempt(input.Attempt)
		if err != nil {
			return planSummary{}, err
		}
		phase, err := parsePhase(input.Phase)
		if err != nil {
			return planSummary{}, err
		}
		request := &planRequest{uid: input.UID, token: newToken(t.app.clock.Now()), reason: input.Reason, phase: phase, attempt: attempt}
		return t.changePlan(ctx, call, input.Name, decide, request, input.waiting)
	}
}

// cancel does not wait, because a cancelled plan completes no phase.
func (t *toolContext) cancel(ctx context.Context, call *mcp.CallToolRequest, input cancelInput) (planSummary, error) {
	return t.changePlan(ctx, call, input.Name, cancelPlan, &planRequest{uid: input.UID, reason: input.Reason, immediate: true}, waiting{})
}

func (t *toolContext) changePlan(
	ctx context.Context, call *mcp.CallToolRequest, name string, decide decision, request *planRequest, wait waiting,
) (planSummary, error) {
	plan, said, err := t.to.changePlan(ctx, planName(name), decide, request)
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
		summary = summarizePlan(now)
		summary.Result = said
		progress(strings.TrimSpace(strings.Join([]string{"plan/" + summary.Name, summary.Phase, summary.State, summary.Waiting}, " ")))
		return arrived(now, plan)
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("plan/%s was not complete after %s: call plan_status, or wait longer with timeoutSeconds", plan.Name, wanted.timeout())
	}
	return summary, err
}
