// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func (a *app) planApproveCommand() *cobra.Command {
	f := &planFlags{}
	var target v1alpha1.PlanPhase
	command := &cobra.Command{
		Use:   "approve NAME",
		Short: "Let the next phase of a plan begin",
		Long: "Approve raises spec.targetPhase to the phase after the one that the plan is in, or to that of --to. Two who approve the same phase approve\n" +
			"it once. Whoever wants to be sure which phase it is says so with --to. What is so already stays as it is.",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePlans(&f.connectionFlags),
		RunE: func(command *cobra.Command, args []string) (err error) {
			if f.to != "" {
				if target, err = parsePhase(f.to); err != nil {
					return &usageError{err, command.UsageString()}
				}
			}
			return a.request(command.Context(), f, planName(args[0]), func(plan *v1alpha1.Plan, _ string) (string, error) {
				said, err := approve(plan, target)
				// On a retry after a conflict, this phase is approved and no later one.
				target = plan.Spec.TargetPhase
				return said, err
			})
		},
	}
	f.add(command)
	f.addWait(command)
	command.Flags().StringVar(&f.to, "to", "", "the last phase that may begin: execute or apply; default: the next")
	return command
}

func approve(plan *v1alpha1.Plan, to v1alpha1.PlanPhase) (string, error) {
	s, name := &plan.Status, plan.Name
	current, target := phaseRank(s.CurrentPhase), phaseRank(plan.Spec.TargetPhase)
	switch {
	case over(plan) != "":
		return "", errors.New(over(plan))
	case s.State == v1alpha1.PlanApplied:
		return "", fmt.Errorf("is applied: no phase is left. To do it again run berth plan revert %s", name)
	case to == "" && (s.State == v1alpha1.PlanErrored || s.State == v1alpha1.PlanConstrained):
		return "", fmt.Errorf("is %s in %s, so that no phase waits for approval: see berth plan status %s; then berth plan retry %s, or berth plan revert %s",
			s.State, s.CurrentPhase, name, name, name)
	case to == "" && target <= current && current == len(planPhases)-1:
		return "", fmt.Errorf("is in %s, the last phase: nothing is left to approve", s.CurrentPhase)
	case to != "" && phaseRank(to) <= target, to == "" && target > current:
		return fmt.Sprintf("may go on to %s already", plan.Spec.TargetPhase), nil
	}
	if to == "" {
		to = planPhases[current+1]
	}
	plan.Spec.TargetPhase = to
	return fmt.Sprintf("may go on to %s", to), nil
}

// over returns why a plan accepts no more requests, or an empty string if it does.
func over(plan *v1alpha1.Plan) string {
	switch {
	case plan.Spec.State == v1alpha1.PlanCancelRequested:
		return "was cancelled, from which there is no way back: begin another with berth use " + plan.Spec.ActionRef.Name
	case plan.Status.DuplicateOf != nil:
		return fmt.Sprintf("never begins, as plan/%s has the same key and was there before: use that one", plan.Status.DuplicateOf.Name)
	default:
		return ""
	}
}

func (a *app) planCancelCommand() *cobra.Command {
	f := &planFlags{}
	command := &cobra.Command{
		Use:   "cancel NAME",
		Short: "End a plan for good",
		Long: "Cancel sets spec.state to Cancelled. What runs of the plan is ended; what it has done stays. There is no way back.\n" +
			"What is so already stays as it is.",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePlans(&f.connectionFlags),
		RunE: func(command *cobra.Command, args []string) error {
			to, err := a.connect(&f.connectionFlags)
			if err != nil {
				return err
			}
			name := planName(args[0])
			// A cancellation is valid in every state of the plan, and does not need a running manager.
			_, said, err := a.changePlan(command.Context(), to, name, readPlan, func(plan *v1alpha1.Plan) (string, error) {
				return cancelPlan(plan, f.reason)
			})
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(a.out, "plan/%s %s\n", name, said)
			return nil
		},
	}
	f.add(command)
	command.Flags().StringVar(&f.reason, "reason", "", "why, for people")
	return command
}

func cancelPlan(plan *v1alpha1.Plan, reason string) (string, error) {
	if plan.Status.State == v1alpha1.PlanApplied {
		return "", fmt.Errorf("is applied, so that nothing is left to cancel: berth plan revert %s takes it back to its beginning", plan.Name)
	}
	if plan.Spec.State == v1alpha1.PlanCancelRequested {
		return "is cancelled already", nil
	}
	plan.Spec.State = v1alpha1.PlanCancelRequested
	because(plan, reason)
	return "is to be cancelled", nil
}

// because records the reason of a request in an annotation.
func because(plan *v1alpha1.Plan, reason string) {
	if reason == "" {
		delete(plan.Annotations, annotationReason)
		return
	}
	if plan.Annotations == nil {
		plan.Annotations = map[string]string{}
	}
	plan.Annotations[annotationReason] = reason
}

func (a *app) planRetryCommand() *cobra.Command {
	f := &planFlags{}
	command := &cobra.Command{
		Use:   "retry NAME",
		Short: "Run the current phase of a plan once more",
		Long: "Retry runs the phase that has failed once more, by changing spec.retryToken. What still runs of it is ended before.\n" +
			"A plan that was reverted too often goes on from where it is.",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePlans(&f.connectionFlags),
		RunE: func(command *cobra.Command, args []string) error {
			return a.request(command.Context(), f, planName(args[0]), func(plan *v1alpha1.Plan, token string) (string, error) {
				return retryPlan(plan, token, f.reason)
			})
		},
	}
	f.add(command)
	f.addWait(command)
	command.Flags().StringVar(&f.reason, "reason", "", "why, for people")
	return command
}

func retryPlan(plan *v1alpha1.Plan, token, reason string) (string, error) {
	s, name := &plan.Status, plan.Name
	switch {
	case over(plan) != "":
		return "", errors.New(over(plan))
	case s.State == v1alpha1.PlanQueued || s.State == "":
		return "", fmt.Errorf("has not begun, so that there is nothing to retry: berth plan status %s says what it waits for", name)
	case s.State == v1alpha1.PlanApplied || s.State == v1alpha1.PlanComplete:
		return "", fmt.Errorf("has nothing to retry, as %s has succeeded: berth plan revert %s begins anew", s.CurrentPhase, name)
	}
	plan.Spec.RetryToken = token
	because(plan, reason)
	return fmt.Sprintf("is to run %s once more", s.CurrentPhase), nil
}

func (a *app) planRevertCommand() *cobra.Command {
	f := &planFlags{}
	command := &cobra.Command{
		Use:   "revert NAME",
		Short: "Let a plan begin again at its first phase",
		Long: "Revert takes a plan back to Strategize, by changing spec.revert. What still runs of it is ended before. The plan waits after Strategize for\n" +
			"approval, unless --to says how far it may go. How often a plan may be reverted is spec.maxReversions of its action.",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePlans(&f.connectionFlags),
		RunE: func(command *cobra.Command, args []string) error {
			target, err := parsePhase(f.to)
			if err != nil {
				return &usageError{err, command.UsageString()}
			}
			return a.request(command.Context(), f, planName(args[0]), func(plan *v1alpha1.Plan, token string) (string, error) {
				return revertPlan(plan, token, f.reason, target)
			})
		},
	}
	f.add(command)
	f.addWait(command)
	command.Flags().StringVar(&f.reason, "reason", "", "why, for people; it is kept in the history")
	command.Flags().StringVar(&f.to, "to", "strategize", "the last phase that may begin without approval: strategize, execute or apply")
	return command
}

func revertPlan(plan *v1alpha1.Plan, token, reason string, target v1alpha1.PlanPhase) (string, error) {
	s, name := &plan.Status, plan.Name
	first := s.CurrentPhase == v1alpha1.PhaseStrategize
	switch {
	case over(plan) != "":
		return "", errors.New(over(plan))
	case s.State == v1alpha1.PlanQueued || s.State == "":
		return "", fmt.Errorf("has not begun, so that there is nothing to revert: berth plan status %s says what it waits for", name)
	case first && (s.State == v1alpha1.PlanProcessing || s.State == v1alpha1.PlanComplete):
		return "", fmt.Errorf("is in Strategize, its first phase, which can be reverted only when it has failed: berth plan cancel %s ends it", name)
	case s.Pinned != nil && s.Reversions >= s.Pinned.MaxReversions:
		return "", fmt.Errorf("was reverted %d times, which is as often as its action allows: berth plan cancel %s ends it", s.Reversions, name)
	}
	plan.Spec.Revert = &v1alpha1.PlanRevert{ToPhase: v1alpha1.PhaseStrategize, Token: token, Reason: reason}
	plan.Spec.TargetPhase = target
	return "is to begin again at Strategize", nil
}
