// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	plans "github.com/berth-dev/berth/internal/plan"
)

// followEvery is how often a followed plan is polled.
const followEvery = 500 * time.Millisecond

func (a *app) planStatusCommand() *cobra.Command {
	flags := &connectionFlags{}
	format := &outputFormat{}
	var watch bool
	command := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show a plan with its phases and runs, or list all plans",
		Long: "Status shows the phases of a plan and its attempts and runs, with their outcomes and durations.\n" +
			"With -w it shows changes until the plan is applied or cancelled. Without NAME it lists the plans.",
		Example: "  # List the plans\n" +
			"  berth plan status\n\n" +
			"  # Watch one plan\n" +
			"  berth plan status -w check-greeting",
		Args:              needs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completeNames(flags, planKind),
		RunE: func(command *cobra.Command, args []string) error {
			if watch && !format.table() {
				return &usageError{errors.New("-w prints text: omit -o or -w"), command.UsageString()}
			}
			if watch && len(args) == 0 {
				return &usageError{errors.New("-w needs the NAME of a plan; to watch all plans, run kubectl get plans -w"), command.UsageString()}
			}
			printer, err := format.printer(command)
			if err != nil {
				return err
			}
			to, err := a.connect(flags)
			switch {
			case err != nil:
				return err
			case printer != nil:
				return a.printPlans(command.Context(), to, args, printer)
			case len(args) == 0:
				return a.listPlans(command.Context(), to)
			case watch:
				return a.followPlan(command.Context(), to, planName(args[0]), finished)
			}
			return a.showPlan(command.Context(), to, planName(args[0]))
		},
	}
	flags.add(command)
	format.add(command)
	command.Flags().BoolVarP(&watch, "watch", "w", false, "watch for changes and show them")
	return command
}

// printPlans prints the plan that args names, or all plans of the namespace.
func (a *app) printPlans(ctx context.Context, to *connection, args []string, printer printers.ResourcePrinter) error {
	wanted := reference{kind: planKind}
	if len(args) > 0 {
		wanted.name = planName(args[0])
	}
	found, err := to.objects(ctx, []reference{wanted})
	if err != nil {
		return err
	}
	return printObjects(printer, a.out, found, wanted.name != "")
}

// finished reports whether a plan is applied or cancelled. Nothing more happens to such a plan, unless an applied plan is reverted.
func finished(plan *v1alpha1.Plan) (bool, error) {
	return plan.Status.State == v1alpha1.PlanApplied || plan.Status.State == v1alpha1.PlanCancelled, nil
}

func (a *app) listPlans(ctx context.Context, to *connection) error {
	plans, err := to.plans(ctx)
	if err != nil {
		return err
	}
	if len(plans) == 0 {
		a.say("no plan in namespace %s: to create one, run berth use ACTION", to.namespace)
		return nil
	}
	cells := [][]string{{"NAME", "ACTION", "PHASE", "STATE", "WAITING", "AGE"}}
	for i := range plans {
		plan := &plans[i]
		age := ageOf(plan.CreationTimestamp.Time, a.clock.Now())
		cells = append(cells, []string{
			plan.Name, plan.Spec.ActionRef.Name, string(plan.Status.CurrentPhase), string(plan.Status.State), clean(plan.Status.Waiting), age,
		})
	}
	return a.print(align(cells))
}

// plans returns the plans of the namespace, sorted by name.
func (c *connection) plans(ctx context.Context, opts ...client.ListOption) ([]v1alpha1.Plan, error) {
	list := &v1alpha1.PlanList{}
	if err := c.client.List(ctx, list, append(opts, client.InNamespace(c.namespace))...); err != nil {
		return nil, fmt.Errorf("list plans: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.Plan) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

func (a *app) print(lines []string) error {
	_, err := fmt.Fprintln(a.out, strings.Join(lines, "\n"))
	return err
}

func (a *app) showPlan(ctx context.Context, to *connection, name string) error {
	tree, err := to.planTree(ctx, name)
	if err != nil {
		return err
	}
	return a.print(tree.lines(a.clock.Now()))
}

// runsOf returns the existing runs of the plan, including those of earlier attempts.
func (c *connection) runsOf(ctx context.Context, plan *v1alpha1.Plan) ([]v1alpha1.StrategyRun, error) {
	list := &v1alpha1.StrategyRunList{}
	if err := c.client.List(ctx, list, client.InNamespace(c.namespace), client.MatchingLabels{v1alpha1.LabelPlan: plan.Name}); err != nil {
		return nil, fmt.Errorf("list the runs of plan/%s: %w", plan.Name, err)
	}
	return slices.DeleteFunc(list.Items, func(run v1alpha1.StrategyRun) bool {
		owner := metav1.GetControllerOf(&run)
		return owner == nil || owner.UID != plan.UID
	}), nil
}

// followPlan shows a plan until the function enough returns true or an error. On a terminal it redraws the plan in place; otherwise it prints a line for each
// change. Once it has read the plan, it retries when the API server is temporarily unavailable.
func (a *app) followPlan(ctx context.Context, to *connection, name string, enough func(*v1alpha1.Plan) (bool, error)) error {
	board := newBoard(a.raw, false)
	var tree *tree
	read := func() (err error) {
		tree, err = to.planTree(ctx, name)
		return err
	}
	return a.follow(ctx, followEvery, errMissing, read, func() (bool, error) {
		now := a.clock.Now()
		if board.size != nil {
			board.draw(tree.lines(now))
		} else {
			tree.tell(board, now)
		}
		return enough(tree.plan)
	})
}

// follow calls the function read at each interval and, after each successful read, the function show, until show returns true or an error. An error of the first
// read ends it, as does one that wraps the error fatal. follow prints any other error of a read and retries.
func (a *app) follow(ctx context.Context, interval time.Duration, fatal error, read func() error, show func() (done bool, err error)) error {
	seen, failed := false, false
	return wait.PollUntilContextCancel(ctx, interval, true, func(context.Context) (bool, error) {
		err := read()
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err == nil:
			seen, failed = true, false
			return show()
		case !seen || errors.Is(err, fatal):
			return false, err
		case !failed:
			failed = true
			a.say("%v; retrying", explain(err))
		}
		return false, nil
	})
}

// planTree reads a plan and its runs.
func (c *connection) planTree(ctx context.Context, name string) (*tree, error) {
	plan, err := c.plan(ctx, name)
	if err != nil {
		return nil, err
	}
	runs, err := c.runsOf(ctx, plan)
	if err != nil {
		return nil, err
	}
	return newTree(plan, runs), nil
}

// brief returns a short description of the state of a plan.
func brief(plan *v1alpha1.Plan) string {
	s := &plan.Status
	words := []string{string(cmp.Or(s.State, v1alpha1.PlanQueued))}
	if s.CurrentPhase != "" {
		words = []string{string(s.CurrentPhase), string(s.State)}
	}
	if s.Attempt > 1 {
		words = append(words, fmt.Sprintf("(attempt %d)", s.Attempt))
	}
	if s.Waiting != "" {
		words = append(words, "waiting "+clean(s.Waiting))
	}
	return strings.Join(words, " ")
}

// remarks returns why a plan does not continue, and what the user can do about it.
func remarks(plan *v1alpha1.Plan) []string {
	s, name := &plan.Status, plan.Name
	named := positioned(plan, s.CurrentPhase)
	var said []string
	if reason := plan.Annotations[annotationReason]; reason != "" {
		said = append(said, "reason: "+reason)
	}
	if stalled := stalledBy(s.Conditions); stalled != nil {
		said = append(said, stalled.Reason+": "+stalled.Message)
	}
	switch {
	case plan.Spec.State == v1alpha1.PlanCancelRequested && s.State != v1alpha1.PlanCancelled && s.State != v1alpha1.PlanApplied:
		said = append(said, "cancellation in progress")
	case plans.Awaited(&plan.Spec, s) != "":
		said = append(said, "to continue: berth plan approve "+positioned(plan, plans.Awaited(&plan.Spec, s)))
	case s.State == v1alpha1.PlanErrored:
		said = append(said, fmt.Sprintf("to run %s again: berth plan retry %s; to start over: berth plan revert %s", s.CurrentPhase, named, named))
	case s.State == v1alpha1.PlanConstrained && skipped(s) != "":
		said = append(said, fmt.Sprintf("to continue: berth reset strategies %s, then berth plan retry %s", skipped(s), named))
	case s.State == v1alpha1.PlanConstrained:
		said = append(said, fmt.Sprintf("to continue from here: berth plan retry %s; to end the plan: berth plan cancel %s", named, name))
	}
	return said
}

// skipped returns the names of the strategies of the current phase that were skipped because their breaker was open, separated by spaces.
func skipped(s *v1alpha1.PlanStatus) string {
	var names []string
	for _, run := range s.Runs {
		if run.Outcome == v1alpha1.OutcomeSkipped {
			names = append(names, run.Strategy)
		}
	}
	return strings.Join(names, " ")
}
