// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	plans "github.com/berth-dev/berth/internal/plan"
)

func (a *app) planApproveCommand() *cobra.Command {
	f := &planFlags{}
	command := a.planRequestCommand(f, approve, false, &cobra.Command{
		Use:   "approve NAME",
		Short: "Approve the phase of a plan that waits for approval",
		Long: "Approve reads the plan once, sets spec.approval to the phase and the attempt that wait for approval, and prints them. With --phase and --attempt,\n" +
			"approve fails if the plan waits for another phase or in another attempt; berth plan status prints the command with these flags. The API server refuses\n" +
			"an approval of a phase that no longer waits. An approval has no effect on other attempts: after a retry or a revert, each later phase waits again.",
		Example: "  # Approve the phase that waits, and print it\n" +
			"  berth plan approve check-greeting\n\n" +
			"  # Approve the phase Apply only if it waits in the first attempt, and wait until the plan is applied\n" +
			"  berth plan approve check-greeting --phase apply --attempt 1 --wait\n\n" +
			"  # Approve all phases that remain in this attempt\n" +
			"  berth plan approve check-greeting --to apply",
	})
	f.addWait(command)
	command.Flags().StringVar(&f.to, "to", "", "last approved phase: execute or apply; default: only the phase that waits")
	f.addPosition(command, "phase that must wait for approval: execute or apply; default: the phase that waits", "attempt that must wait for approval; default: the current attempt")
	return command
}

func approve(plan *v1alpha1.Plan, request *planRequest) (string, error) {
	s := &plan.Status
	waits := plans.Awaited(&plan.Spec, s)
	switch given := plan.Spec.Approval; {
	case over(plan) != "":
		return "", errors.New(over(plan))
	case given != nil && given.Phase == request.phase && given.Attempt == request.attempt && request.target == given.ToPhase:
		return fmt.Sprintf("is already approved: %s of attempt %d", given.Phase, given.Attempt), nil
	case waits == "":
		return "", errors.New(noneWaits(plan))
	case request.phase != "" && request.phase != waits, request.attempt != 0 && request.attempt != s.Attempt:
		return "", fmt.Errorf("waits for approval of %s in attempt %d, not of %s in attempt %d: see berth plan status %s",
			waits, s.Attempt, cmp.Or(request.phase, waits), cmp.Or(request.attempt, s.Attempt), plan.Name)
	case request.target != "" && phaseRank(request.target) < phaseRank(waits):
		return "", fmt.Errorf("waits for approval of %s, which is after %s", waits, request.target)
	}
	request.phase, request.attempt = waits, s.Attempt // a repetition after a conflict approves the same phase and attempt, or fails
	plan.Spec.Approval = &v1alpha1.PlanApproval{Phase: waits, Attempt: s.Attempt, ToPhase: request.target}
	return fmt.Sprintf("approved: %s of attempt %d%s", waits, s.Attempt, upTo(waits, request.target)), nil
}

func upTo(phase, target v1alpha1.PlanPhase) string {
	if target == "" || target == phase {
		return ""
	}
	return ", up to " + string(target)
}

// noneWaits returns why no phase of a plan waits for approval.
func noneWaits(plan *v1alpha1.Plan) string {
	s, name := &plan.Status, plan.Name
	switch s.State {
	case v1alpha1.PlanApplied:
		return fmt.Sprintf("is applied, so no phase remains: to start again, run berth plan revert %s", name)
	case v1alpha1.PlanErrored, v1alpha1.PlanConstrained:
		return fmt.Sprintf("is %s in %s, so no phase is waiting for approval: see berth plan status %s; then run berth plan retry %s or berth plan revert %s",
			s.State, s.CurrentPhase, name, name, name)
	default:
		return fmt.Sprintf("is %s, attempt %d, so no phase is waiting for approval: see berth plan status %s", brief(plan), s.Attempt, name)
	}
}

// positioned returns the name of a plan with the flags that name a phase of its current attempt and its UID. A copied command with these flags fails once the
// plan is in another phase or attempt, or was recreated.
func positioned(plan *v1alpha1.Plan, phase v1alpha1.PlanPhase) string {
	return fmt.Sprintf("%s --attempt %d --phase %s --uid %.8s", plan.Name, plan.Status.Attempt, strings.ToLower(string(phase)), plan.UID)
}

// sees checks that a plan is in the phase and the attempt that the user of a request saw. It returns an error if not, or if the request would stop active runs
// of a phase and an attempt that the user did not name.
func sees(plan *v1alpha1.Plan, request *planRequest, verb string) error {
	s, name := &plan.Status, plan.Name
	switch {
	case request.phase != "" && request.phase != s.CurrentPhase, request.attempt != 0 && request.attempt != s.Attempt:
		return fmt.Errorf("is in attempt %d: %s, not in attempt %d of %s: see berth plan status %s",
			s.Attempt, brief(plan), cmp.Or(request.attempt, s.Attempt), cmp.Or(request.phase, s.CurrentPhase), name)
	case s.State == v1alpha1.PlanProcessing && (request.phase == "" || request.attempt == 0):
		return fmt.Errorf("is %s: to stop the runs of %s in attempt %d, run berth plan %s %s", brief(plan), s.CurrentPhase, s.Attempt, verb, positioned(plan, s.CurrentPhase))
	}
	request.phase, request.attempt = s.CurrentPhase, s.Attempt
	return nil
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
	f.addUID(command)
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
		Long: "Retry runs the current phase again by changing spec.retryToken. Active runs of the phase are stopped first, if --phase and --attempt name them. With\n" +
			"--phase and --attempt, retry fails if the plan is in another phase or attempt; berth plan status prints the command with these flags.\n" +
			"After a revert that exceeded maxReversions, retry returns the plan to its state before that revert. A phase that had succeeded does not run again.",
		Example: "  # Run the failed phase again and wait for it\n" +
			"  berth plan retry check-greeting --phase execute --attempt 1 --wait",
	})
	f.addWait(command)
	f.addPosition(command, "phase that must be the current one; required while its runs are active", "attempt that must be the current one; required while its runs are active")
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
	if err := sees(plan, request, "retry"); err != nil {
		return "", err
	}
	plan.Spec.RetryToken, plan.Spec.RetryFrom = request.token, &v1alpha1.PlanPosition{Phase: s.CurrentPhase, Attempt: s.Attempt}
	because(plan, request.reason)
	return fmt.Sprintf("retry of %s of attempt %d requested", s.CurrentPhase, s.Attempt), nil
}

func (a *app) planRevertCommand() *cobra.Command {
	f := &planFlags{}
	command := a.planRequestCommand(f, revertPlan, false, &cobra.Command{
		Use:   "revert NAME",
		Short: "Revert a plan to its first phase",
		Long: "Revert returns a plan to its first phase, Strategize, by changing spec.revert. Active runs of the plan are stopped first, if --phase and --attempt name\n" +
			"them. With --phase and --attempt, revert fails if the plan is in another phase or attempt. After Strategize the plan waits for approval, unless --to\n" +
			"sets a later phase. The field spec.maxReversions of the action limits the number of reversions.",
		Example: "  # Start over, and continue without further approval up to Execute\n" +
			"  berth plan revert check-greeting --to execute",
	})
	f.addWait(command)
	f.addPosition(command, "phase that must be the current one; required while its runs are active", "attempt that must be the current one; required while its runs are active")
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
	if err := sees(plan, request, "revert"); err != nil {
		return "", err
	}
	plan.Spec.Revert = &v1alpha1.PlanRevert{
		ToPhase: v1alpha1.PhaseStrategize, Token: request.token, Reason: request.reason, From: &v1alpha1.PlanPosition{Phase: s.CurrentPhase, Attempt: s.Attempt},
	}
	plan.Spec.TargetPhase = cmp.Or(request.target, v1alpha1.PhaseStrategize)
	return fmt.Sprintf("revert from %s of attempt %d to Strategize requested", s.CurrentPhase, s.Attempt), nil
}
