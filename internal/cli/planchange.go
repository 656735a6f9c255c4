// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func (a *app) planApproveCommand() *cobra.Command {
	f := &planFlags{}
	command := a.planRequestCommand(f, approve, false, &cobra.Command{
		Use:   "approve NAME",
		Short: "Approve the next phase of a plan",
		Long: "Approve raises spec.targetPhase to the phase after the current one, or to the phase of --to. If two users approve the same phase, it is approved\n" +
			"once. To approve one specific phase, set --to. A phase that is already approved stays approved.",
		Example: "  # Approve the next phase\n" +
			"  berth plan approve check-greeting\n\n" +
			"  # Approve all phases and wait until the plan is applied\n" +
			"  berth plan approve check-greeting --to apply --wait",
	})
	f.addWait(command)
	command.Flags().StringVar(&f.to, "to", "", "last approved phase: execute or apply; default: the next phase")
	return command
}

func approve(plan *v1alpha1.Plan, request *planRequest) (string, error) {
	to := request.target
	s, name := &plan.Status, plan.Name
	current, target := phaseRank(s.CurrentPhase), phaseRank(plan.Spec.TargetPhase)
	switch {
	case over(plan) != "":
		return "", errors.New(over(plan))
	case s.State == v1alpha1.PlanApplied:
		return "", fmt.Errorf("is applied, so no phase remains: to start again, run berth plan revert %s", name)
	case to == "" && (s.State == v1alpha1.PlanErrored || s.State == v1alpha1.PlanConstrained):
		return "", fmt.Errorf("is %s in %s, so no phase is waiting for approval: see berth plan status %s; then run berth plan retry %s or berth plan revert %s",
			s.State, s.CurrentPhase, name, name, name)
	case to == "" && target <= current && current == len(planPhases)-1:
		return "", fmt.Errorf("is in %s, the last phase, so no phase remains to approve", s.CurrentPhase)
	case to != "" && phaseRank(to) <= target, to == "" && target > current:
		return fmt.Sprintf("is already approved up to %s", plan.Spec.TargetPhase), nil
	}
	if to == "" {
		to = planPhases[current+1]
	}
	plan.Spec.TargetPhase, request.target = to, to // a repetition after a conflict must approve the same phase, not a later one
	return fmt.Sprintf("approved up to %s", to), nil
}

// over returns why a plan accepts no more requests, or an empty string if it accepts requests.
func over(plan *v1alpha1.Plan) string {
	switch {
	case plan.Spec.State == v1alpha1.PlanCancelRequested:
		return "was cancelled, which is final: create a new plan with berth use " + plan.Spec.ActionRef.Name
	case plan.Status.DuplicateOf != nil:
		return fmt.Sprintf("never starts, because plan/%s has the same key and started first: use that plan", plan.Status.DuplicateOf.Name)
	default:
		return ""
	}
}

func (a *app) planCancelCommand() *cobra.Command {
	f := &planFlags{}
	command := a.planRequestCommand(f, cancelPlan, true, &cobra.Command{
		Use:   "cancel NAME",
		Short: "Cancel a plan",
		Long: "Cancel sets spec.state to Cancelled. Active runs of the plan are stopped; completed work stays. A cancelled plan cannot be resumed.\n" +
			"A plan that is already cancelled is not changed.",
		Example: "  berth plan cancel check-greeting --reason \"the module has moved\"",
	})
	command.Flags().StringVar(&f.reason, "reason", "", "reason, for other users")
	return command
}

func cancelPlan(plan *v1alpha1.Plan, request *planRequest) (string, error) {
	if plan.Status.State == v1alpha1.PlanApplied {
		return "", fmt.Errorf("is applied, so it cannot be cancelled: to start again, run berth plan revert %s", plan.Name)
	}
	if plan.Spec.State == v1alpha1.PlanCancelRequested {
		return "is already cancelled", nil
	}
	plan.Spec.State = v1alpha1.PlanCancelRequested
	because(plan, request.reason)
	return "cancellation requested", nil
}

// because records the reason of a request in an annotation.
func because(plan *v1alpha1.Plan, reason string) {
	if reason == "" {
		delete(plan.Annotations, annotationReason)
		return
	}
	metav1.SetMetaDataAnnotation(&plan.ObjectMeta, annotationReason, reason)
}

func (a *app) planRetryCommand() *cobra.Command {
	f := &planFlags{}
	command := a.planRequestCommand(f, retryPlan, false, &cobra.Command{
		Use:   "retry NAME",
		Short: "Retry the current phase of a plan",
		Long: "Retry runs the current phase again by changing spec.retryToken. Active runs of the phase are stopped first.\n" +
			"After a revert that exceeded maxReversions, retry returns the plan to its state before that revert. A phase that had succeeded does not run again.",
		Example: "  # Run the failed phase again and wait for it\n" +
			"  berth plan retry check-greeting --wait",
	})
	f.addWait(command)
	command.Flags().StringVar(&f.reason, "reason", "", "reason, for other users")
	return command
}

func retryPlan(plan *v1alpha1.Plan, request *planRequest) (string, error) {
	s, name := &plan.Status, plan.Name
	switch {
	case over(plan) != "":
		return "", errors.New(over(plan))
	case s.State == v1alpha1.PlanQueued || s.State == "":
		return "", fmt.Errorf("has not started, so there is nothing to retry: see berth plan status %s", name)
	case s.State == v1alpha1.PlanApplied || s.State == v1alpha1.PlanComplete:
		return "", fmt.Errorf("has nothing to retry, because %s succeeded: to start again, run berth plan revert %s", s.CurrentPhase, name)
	}
	plan.Spec.RetryToken = request.token
	because(plan, request.reason)
	return fmt.Sprintf("retry of %s requested", s.CurrentPhase), nil
}

func (a *app) planRevertCommand() *cobra.Command {
	f := &planFlags{}
	command := a.planRequestCommand(f, revertPlan, false, &cobra.Command{
		Use:   "revert NAME",
		Short: "Revert a plan to its first phase",
		Long: "Revert returns a plan to its first phase, Strategize, by changing spec.revert. Active runs of the plan are stopped first. After Strategize the\n" +
			"plan waits for approval, unless --to sets a later phase. The field spec.maxReversions of the action limits the number of reversions.",
		Example: "  # Start over, and continue without further approval up to Execute\n" +
			"  berth plan revert check-greeting --to execute",
	})
	f.addWait(command)
	command.Flags().StringVar(&f.reason, "reason", "", "reason, for other users; it is recorded in the history")
	command.Flags().StringVar(&f.to, "to", "strategize", "last phase that starts without further approval: strategize, execute or apply")
	return command
}

func revertPlan(plan *v1alpha1.Plan, request *planRequest) (string, error) {
	s, name := &plan.Status, plan.Name
	first := s.CurrentPhase == v1alpha1.PhaseStrategize
	switch {
	case over(plan) != "":
		return "", errors.New(over(plan))
	case s.State == v1alpha1.PlanQueued || s.State == "":
		return "", fmt.Errorf("has not started, so there is nothing to revert: see berth plan status %s", name)
	case first && (s.State == v1alpha1.PlanProcessing || s.State == v1alpha1.PlanComplete):
		return "", fmt.Errorf("is in Strategize, its first phase, which can be reverted only after it failed: to end the plan, run berth plan cancel %s", name)
	case s.Pinned != nil && s.Reversions >= s.Pinned.MaxReversions:
		return "", fmt.Errorf("was reverted %d times, the limit of its action: to end the plan, run berth plan cancel %s", s.Reversions, name)
	}
	plan.Spec.Revert = &v1alpha1.PlanRevert{ToPhase: v1alpha1.PhaseStrategize, Token: request.token, Reason: request.reason}
	plan.Spec.TargetPhase = cmp.Or(request.target, v1alpha1.PhaseStrategize)
	return "revert to Strategize requested", nil
}
