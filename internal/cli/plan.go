// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// annotationReason is the annotation that records the reason of a request to change a plan. It is informational.
const annotationReason = "berth.dev/reason"

const (
	// changeTries is how often a change is attempted when the plan changes concurrently.
	changeTries = 20
	// answerTimeout bounds how long a command waits until the manager has processed the previous change.
	answerTimeout = 10 * time.Second
	// planTimeout is the default timeout of --wait.
	planTimeout = time.Hour
)

// planPhases lists the phases in the order of execution.
var planPhases = []v1alpha1.PlanPhase{v1alpha1.PhaseStrategize, v1alpha1.PhaseExecute, v1alpha1.PhaseApply}

// phaseRank returns the position of a phase. It returns 0, the rank of the first phase, for a plan that has not started.
func phaseRank(phase v1alpha1.PlanPhase) int { return max(slices.Index(planPhases, phase), 0) }

func parsePhase(word string) (v1alpha1.PlanPhase, error) {
	for _, phase := range planPhases {
		if strings.EqualFold(word, string(phase)) {
			return phase, nil
		}
	}
	return "", fmt.Errorf("unknown phase %q: use strategize, execute or apply", word)
}

func (a *app) planCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "plan",
		Short: "Show, approve, retry, revert and cancel plans",
		Long: "A plan is one use of an action; berth use creates a plan. After each phase, a plan waits until the next phase is approved.\n\n" +
			"NAME is the name of a Plan, with or without the prefix plan/.",
		Example: "  # Show a plan, then approve its next phase and wait for it\n" +
			"  berth plan status check-greeting\n" +
			"  berth plan approve check-greeting --wait",
	}
	group(command)
	command.AddCommand(a.planStatusCommand(), a.planApproveCommand(), a.planCancelCommand(), a.planRetryCommand(), a.planRevertCommand())
	return command
}

// planFlags holds the values of the flags of the commands that change a plan.
type planFlags struct {
	connectionFlags
	reason, to string
	wait       bool
	timeout    time.Duration
}

func (f *planFlags) addWait(command *cobra.Command) {
	command.Flags().BoolVar(&f.wait, "wait", false, "wait until the plan has completed all approved phases, and fail if it cannot")
	command.Flags().DurationVar(&f.timeout, "timeout", planTimeout, "how long to wait")
}

func planName(word string) string { return strings.TrimPrefix(word, "plan/") }

// plan reads a plan. If it does not exist, the error wraps errMissing and names the namespace.
func (c *connection) plan(ctx context.Context, name string) (*v1alpha1.Plan, error) {
	plan := &v1alpha1.Plan{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, plan)
	return plan, explainRequest(err, c.namespace, "plan/"+name, "read", "the plans, run berth plan status")
}

// planReader reads the plan that a decision applies to.
type planReader func(context.Context, *connection, string) (*v1alpha1.Plan, error)

// readPlan reads the current plan without waiting for the manager.
func readPlan(ctx context.Context, to *connection, name string) (*v1alpha1.Plan, error) {
	return to.plan(ctx, name)
}

// answeredPlan reads a plan and waits until its status reflects its current spec, because no decision may be based on an older status. It returns an error
// after answerTimeout.
func answeredPlan(ctx context.Context, to *connection, name string) (plan *v1alpha1.Plan, err error) {
	err = wait.PollUntilContextTimeout(ctx, pollEvery, answerTimeout, true, func(ctx context.Context) (bool, error) {
		plan, err = to.plan(ctx, name)
		return err == nil && plan.Status.ObservedGeneration >= plan.Generation, err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("plan/%s: the manager has not processed an earlier request yet: is a manager running? Start one with berth up or berth manager", name)
	}
	return plan, err
}

// decision changes a plan in memory and returns a description of the result. It returns an error if the plan must not be changed that way.
type decision func(*v1alpha1.Plan) (string, error)

// changePlan applies a decision to the newest version of a plan. If the write conflicts with another change, changePlan reads the plan and decides again, up to
// changeTries times. Therefore, if two users approve the same phase, the second request does not approve a later phase.
func (a *app) changePlan(
	ctx context.Context, to *connection, name string, read planReader, decide decision,
) (*v1alpha1.Plan, string, error) {
	for range changeTries {
		plan, err := read(ctx, to, name)
		if err != nil {
			return nil, "", err
		}
		base := plan.DeepCopy()
		said, err := decide(plan)
		if err != nil {
			return nil, "", fmt.Errorf("plan/%s %w", name, err)
		}
		if equality.Semantic.DeepEqual(base.Spec, plan.Spec) {
			return plan, said, nil
		}
		err = to.client.Patch(ctx, plan, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldOwner))
		if err == nil || !apierrors.IsConflict(err) {
			if err != nil {
				err = fmt.Errorf("change plan/%s: %w", name, err)
			}
			return plan, said, err
		}
	}
	return nil, "", fmt.Errorf("plan/%s changes too often: try again", name)
}

// request applies a decision to one plan and prints the result. With --wait it then waits for the plan.
func (a *app) request(ctx context.Context, flags *planFlags, name string, decide func(*v1alpha1.Plan, string) (string, error)) error {
	to, err := a.connect(&flags.connectionFlags)
	if err != nil {
		return err
	}
	token := newToken(a.clock.Now())
	plan, said, err := a.changePlan(ctx, to, name, answeredPlan, func(plan *v1alpha1.Plan) (string, error) { return decide(plan, token) })
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(a.out, "plan/%s %s\n", name, said)
	if !flags.wait {
		return nil
	}
	return a.awaitPlan(ctx, to, plan, flags.timeout)
}

// awaitPlan shows the plan until the plan has completed all approved phases. It returns an error if the plan cannot complete them, or has not completed them
// when the duration patience has passed.
func (a *app) awaitPlan(ctx context.Context, to *connection, plan *v1alpha1.Plan, patience time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := a.followPlan(limited, to, plan.Name, func(now *v1alpha1.Plan) (bool, error) {
		if now.UID != plan.UID {
			return false, fmt.Errorf("plan/%s was deleted and recreated", plan.Name)
		}
		return arrived(now, plan.Generation)
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("%w: plan/%s was not complete after %s: see berth plan status %s", errTimeout, plan.Name, patience, plan.Name)
	}
	return err
}

// arrived reports whether the plan has completed all approved phases. It returns an error if the plan is stalled.
func arrived(plan *v1alpha1.Plan, generation int64) (bool, error) {
	s := &plan.Status
	if s.ObservedGeneration < generation || meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReconciling) {
		return false, nil
	}
	stalled := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionStalled)
	switch {
	case s.State == v1alpha1.PlanApplied:
		return true, nil
	case s.State == v1alpha1.PlanComplete:
		return phaseRank(plan.Spec.TargetPhase) <= phaseRank(s.CurrentPhase), nil
	case stalled != nil && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionStalled):
		return false, fmt.Errorf("plan/%s is %s: %s: %s", plan.Name, s.State, stalled.Reason, clean(stalled.Message))
	default:
		return false, nil
	}
}

// completePlans completes the names of existing plans.
func (a *app) completePlans(flags *connectionFlags) cobra.CompletionFunc {
	return a.completeNames(flags, planKind.list)
}
