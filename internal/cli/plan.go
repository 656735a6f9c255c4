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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	plans "github.com/berth-dev/berth/internal/plan"
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
	reason, to, phase, uid string
	attempt                int32
	wait                   bool
	timeout                time.Duration
}

// addPosition adds the flags that name the phase and the attempt that the user saw.
func (f *planFlags) addPosition(command *cobra.Command, phaseUsage, attemptUsage string) {
	command.Flags().StringVar(&f.phase, "phase", "", phaseUsage)
	command.Flags().Int32Var(&f.attempt, "attempt", 0, attemptUsage)
	f.addUID(command)
}

// addUID adds the flag that names the plan that the user saw, which another plan with the same name may have replaced.
func (f *planFlags) addUID(command *cobra.Command) {
	command.Flags().StringVar(&f.uid, "uid", "", "first characters of the UID of the plan, as in berth plan status; default: any plan with this name")
}

// request returns the request that the flags describe.
func (f *planFlags) request(command *cobra.Command) (request *planRequest, err error) {
	request = &planRequest{reason: f.reason, uid: f.uid}
	for _, flag := range []struct {
		name, word string
		phase      *v1alpha1.PlanPhase
	}{{"to", f.to, &request.target}, {"phase", f.phase, &request.phase}} {
		if !command.Flags().Changed(flag.name) {
			continue
		}
		if *flag.phase, err = parsePhase(flag.word); err != nil {
			return nil, &usageError{err, command.UsageString()}
		}
	}
	if command.Flags().Changed("attempt") && f.attempt < 1 {
		return nil, &usageError{fmt.Errorf("--attempt must be at least 1, not %d", f.attempt), command.UsageString()}
	}
	request.attempt = f.attempt
	return request, nil
}

func (f *planFlags) addWait(command *cobra.Command) {
	command.Flags().BoolVar(&f.wait, "wait", false, "wait until the plan has completed all approved phases, and fail if it cannot")
	command.Flags().DurationVar(&f.timeout, "timeout", planTimeout, "how long to wait")
}

func planName(word string) string { return strings.TrimPrefix(word, "plan/") }

// plan reads a plan. If it does not exist, the error wraps errMissing and names the namespace.
func (c *connection) plan(ctx context.Context, name string) (*v1alpha1.Plan, error) {
	plan := &v1alpha1.Plan{}
	err := c.client.Get(ctx, c.key(name), plan)
	return plan, explainRequest(err, c.namespace, "plan/"+name, "read", "the plans, run berth plan status")
}

// answeredPlan reads a plan and waits until its status reflects its current spec, because no decision may be based on an older status. It returns an error
// after answerTimeout.
func (c *connection) answeredPlan(ctx context.Context, name string) (plan *v1alpha1.Plan, err error) {
	err = wait.PollUntilContextTimeout(ctx, pollEvery, answerTimeout, true, func(ctx context.Context) (bool, error) {
		plan, err = c.plan(ctx, name)
		return err == nil && plan.Status.ObservedGeneration >= plan.Generation, err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("plan/%s: the manager has not processed an earlier request yet: is a manager running? Start one with berth up or berth manager", name)
	}
	return plan, err
}

// planRequest is what a user requests of a plan, besides the decision itself.
type planRequest struct {
	token, reason string
	// uid is the beginning of the UID of the plan that the user saw. Empty selects any plan with the name.
	uid string
	// target is the last phase that needs no further approval. Empty selects the default of the decision.
	target v1alpha1.PlanPhase
	// phase and attempt are what the user saw: the phase that waits for approval, or the current phase, and the attempt. Unset, a decision sets them to those
	// of the first plan that it reads, so that a repetition after a conflict cannot apply to another phase or attempt.
	phase   v1alpha1.PlanPhase
	attempt int32
	// immediate is true for a request that is valid in every state of the plan, and therefore needs no running manager.
	immediate bool
}

// decision changes a plan in memory and returns a description of the result. It returns an error if the plan must not be changed that way.
type decision func(*v1alpha1.Plan, *planRequest) (string, error)

// changePlan applies a decision to the newest version of a plan. If the write conflicts with another change, changePlan reads the plan and decides again, up to
// changeTries times. The request keeps the phase and the attempt of the first decision, so a later decision fails if the plan has another one then, or was
// recreated.
func (c *connection) changePlan(ctx context.Context, name string, decide decision, request *planRequest) (*v1alpha1.Plan, string, error) {
	read := c.answeredPlan
	if request.immediate {
		read = c.plan
	}
	var uid types.UID
	for range changeTries {
		plan, err := read(ctx, name)
		if err != nil {
			return nil, "", err
		}
		if uid != "" && plan.UID != uid || !strings.HasPrefix(string(plan.UID), request.uid) {
			return nil, "", fmt.Errorf("plan/%s was deleted and recreated, and the new plan is unchanged: see berth plan status %s", name, name)
		}
		uid = plan.UID
		base := plan.DeepCopy()
		said, err := decide(plan, request)
		if err != nil {
			return nil, "", fmt.Errorf("plan/%s %w", name, err)
		}
		if equality.Semantic.DeepEqual(base.Spec, plan.Spec) {
			return plan, said, nil
		}
		err = c.client.Patch(ctx, plan, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldOwner))
		if err == nil || !apierrors.IsConflict(err) {
			if err != nil {
				err = fmt.Errorf("change plan/%s: %w", name, err)
			}
			return plan, said, err
		}
	}
	return nil, "", fmt.Errorf("plan/%s changes too often: try again", name)
}

// planRequestCommand completes a command that applies a decision to the plan that its argument names.
func (a *app) planRequestCommand(f *planFlags, decide decision, immediate bool, command *cobra.Command) *cobra.Command {
	command.Args, command.ValidArgsFunction = needs(cobra.ExactArgs(1)), a.completeNames(&f.connectionFlags, planKind)
	command.RunE = func(command *cobra.Command, args []string) error {
		request, err := f.request(command)
		if err != nil {
			return err
		}
		request.token, request.immediate = newToken(a.clock.Now()), immediate
		to, err := a.connect(&f.connectionFlags)
		if err != nil {
			return err
		}
		plan, said, err := to.changePlan(command.Context(), planName(args[0]), decide, request)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(a.out, "plan/%s %s\n", plan.Name, said)
		if !f.wait {
			return nil
		}
		return a.awaitPlan(command.Context(), to, plan, f.timeout)
	}
	f.add(command)
	return command
}

// awaitPlan shows the plan until the plan has completed all approved phases. It returns an error if the plan cannot complete them, or has not completed them
// when the duration patience has passed.
func (a *app) awaitPlan(ctx context.Context, to *connection, plan *v1alpha1.Plan, patience time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := a.followPlan(limited, to, plan.Name, func(now *v1alpha1.Plan) (bool, error) { return arrived(now, plan) })
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("%w: plan/%s was not complete after %s: see berth plan status %s", errTimeout, plan.Name, patience, plan.Name)
	}
	return err
}

// arrived reports whether the plan has completed all approved phases since it was changed. It returns an error if the plan is stalled or was recreated.
func arrived(plan, changed *v1alpha1.Plan) (bool, error) {
	s := &plan.Status
	if plan.UID != changed.UID {
		return false, fmt.Errorf("plan/%s was deleted and recreated", plan.Name)
	}
	if s.ObservedGeneration < changed.Generation || meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReconciling) {
		return false, nil
	}
	stalled := stalledBy(s.Conditions)
	switch {
	case s.State == v1alpha1.PlanApplied:
		return true, nil
	case s.State == v1alpha1.PlanComplete:
		return plans.Awaited(&plan.Spec, s) != "", nil
	case stalled != nil:
		return false, fmt.Errorf("plan/%s is %s: %s: %s", plan.Name, s.State, stalled.Reason, clean(stalled.Message))
	default:
		return false, nil
	}
}
