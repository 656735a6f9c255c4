// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/plan"
)

// actionKind is the kind Action, whose names only berth use completes.
var actionKind = &kind{plural: "actions", list: &v1alpha1.ActionList{}}

// useFlags holds the values of the flags of berth use.
type useFlags struct {
	planFlags
	arguments []string
	key, name string
	format    outputFormat
}

func (a *app) useCommand() *cobra.Command {
	f := &useFlags{}
	command := &cobra.Command{
		Use:   "use ACTION [--arg NAME=VALUE...]",
		Short: "Create a plan from an action",
		Long: "Use creates a Plan from an Action. The plan runs its phases up to --to, then waits for berth plan approve.\n" +
			"With --key, repeated calls with the same key return the same plan.",
		Example: "  # Create a plan, and wait until it has completed the phase Execute\n" +
			"  berth use check-module --arg module=/src/web --arg reports=/tmp/reports --to execute --wait\n\n" +
			"  # Create at most one plan for a change, even if the command is repeated\n" +
			"  berth use check-module --arg module=/src/web --arg reports=/tmp/reports --key change-42",
		Args: needs(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			wanted, err := f.plan(strings.TrimPrefix(args[0], "action/"))
			if err != nil {
				return &usageError{err, command.UsageString()}
			}
			printer, err := f.format.createdPrinter(command, f.wait)
			if err != nil {
				return err
			}
			return a.use(command.Context(), f, wanted, printer)
		},
		ValidArgsFunction: a.completeNames(&f.connectionFlags, actionKind),
	}
	f.add(command)
	f.addWait(command)
	f.format.add(command)
	flags := command.Flags()
	flags.StringArrayVar(&f.arguments, "arg", nil, "argument of the action, NAME=VALUE; can be repeated")
	flags.StringVar(&f.to, "to", "strategize", "last phase that starts without further approval: strategize, execute or apply")
	flags.StringVar(&f.key, "key", "", "idempotency key: a second call with the same key returns the same plan")
	flags.StringVar(&f.name, "name", "", "name of the plan; default: generated from the name of the action")
	return command
}

// plan returns the Plan that the flags describe.
func (f *useFlags) plan(action string) (*v1alpha1.Plan, error) {
	target, err := parsePhase(f.to)
	if err != nil {
		return nil, err
	}
	wanted := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: f.name}, Spec: v1alpha1.PlanSpec{
		ActionRef: v1alpha1.LocalReference{Name: action}, TargetPhase: target, State: v1alpha1.PlanActive, IdempotencyKey: f.key,
	}}
	if wanted.Spec.Arguments, err = parseArguments(f.arguments); err != nil {
		return nil, err
	}
	switch {
	case f.name != "":
	case f.key != "":
		wanted.Name = keyedName(action, f.key)
	default:
		wanted.GenerateName = shorten(action, longestPlanName-6) + "-"
	}
	return wanted, nil
}

// longestPlanName is the maximum length of the name of a Plan, in characters, as the API enforces it.
const longestPlanName = 63

// keyedName returns the name of the Plan for an action and a key. Equal arguments result in the same name for all callers.
func keyedName(action, key string) string {
	sum := sha256.Sum256([]byte(action + "\x00" + key))
	return shorten(action, longestPlanName-11) + "-" + hex.EncodeToString(sum[:5])
}

func shorten(name string, longest int) string {
	return strings.TrimRight(name[:min(len(name), longest)], "-.")
}

func (a *app) use(ctx context.Context, f *useFlags, wanted *v1alpha1.Plan, printer printers.ResourcePrinter) error {
	to, err := a.connect(&f.connectionFlags)
	if err != nil {
		return err
	}
	wanted.Namespace = to.namespace
	plan, existed, err := to.begin(ctx, wanted)
	if err != nil {
		return err
	}
	if printer != nil {
		return printObjects(printer, a.out, []client.Object{plan}, true)
	}
	said := "created"
	if existed {
		said = "already exists: " + brief(plan)
	}
	_, _ = fmt.Fprintf(a.out, "plan/%s %s\n", plan.Name, said)
	if !f.wait {
		return nil
	}
	return a.awaitPlan(ctx, to, plan, f.timeout)
}

// begin creates the plan, or finds the existing plan with the same key.
func (c *connection) begin(ctx context.Context, wanted *v1alpha1.Plan) (plan *v1alpha1.Plan, existed bool, err error) {
	if key := wanted.Spec.IdempotencyKey; key != "" {
		there, err := c.planWithKey(ctx, key)
		if err != nil {
			return nil, false, err
		}
		if there != nil {
			return there, true, differs(there, wanted)
		}
	}
	if err := c.checkAction(ctx, wanted); err != nil {
		return nil, false, err
	}
	err = c.client.Create(ctx, wanted, client.FieldOwner(fieldOwner))
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			err = fmt.Errorf("create a plan: %w", err)
		}
		return wanted, false, err
	}
	there, err := c.plan(ctx, wanted.Name)
	if err != nil {
		return nil, false, err
	}
	if wanted.Spec.IdempotencyKey == "" || there.Spec.IdempotencyKey != wanted.Spec.IdempotencyKey {
		return nil, false, fmt.Errorf("plan/%s already exists (%s): choose another --name, or use --key to get one plan per key", there.Name, brief(there))
	}
	return there, true, differs(there, wanted)
}

// planWithKey returns the plan with the key, or nil. If there are several, it returns the one that has started, or else the oldest.
func (c *connection) planWithKey(ctx context.Context, key string) (*v1alpha1.Plan, error) {
	list := &v1alpha1.PlanList{}
	if err := c.client.List(ctx, list, client.InNamespace(c.namespace), client.MatchingFields{"spec.idempotencyKey": key}); err != nil {
		return nil, fmt.Errorf("list the plans with the idempotency key: %w", err)
	}
	found := slices.DeleteFunc(list.Items, func(p v1alpha1.Plan) bool { return p.Status.DuplicateOf != nil })
	if len(found) == 0 {
		return nil, nil //nolint:nilnil // no plan has the key
	}
	rank := func(p v1alpha1.Plan) int {
		if p.Status.Pinned != nil {
			return 0
		}
		return 1
	}
	best := slices.MinFunc(found, func(a, b v1alpha1.Plan) int {
		return cmp.Or(rank(a)-rank(b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return &best, nil
}

// differs returns an error if the existing plan has another action or other arguments than the wanted one.
func differs(there, wanted *v1alpha1.Plan) error {
	const remedy = "choose another --key"
	if there.Spec.ActionRef != wanted.Spec.ActionRef {
		return fmt.Errorf("plan/%s has the key %q and uses action %s: %s", there.Name, wanted.Spec.IdempotencyKey, there.Spec.ActionRef.Name, remedy)
	}
	for _, argument := range slices.Concat(wanted.Spec.Arguments, there.Spec.Arguments) {
		if !slices.Contains(there.Spec.Arguments, argument) || !slices.Contains(wanted.Spec.Arguments, argument) {
			return fmt.Errorf("plan/%s already uses the key %q, with a different value of argument %s: %s", there.Name, wanted.Spec.IdempotencyKey, argument.Name, remedy)
		}
	}
	return nil
}

// checkAction returns the errors of the action and its arguments that the plan would otherwise report only in a condition.
func (c *connection) checkAction(ctx context.Context, wanted *v1alpha1.Plan) error {
	name := wanted.Spec.ActionRef.Name
	action := &v1alpha1.Action{}
	err := c.client.Get(ctx, c.key(name), action)
	if err := explainRequest(err, c.namespace, "action "+name, "read", "all actions, run kubectl get actions -A"); err != nil {
		return err
	}
	if action.Spec.State == v1alpha1.ActionArchived {
		return fmt.Errorf("action %s is archived: set its spec.state to Active, or use another action", name)
	}
	if problem := plan.CheckPatterns(action); problem != "" {
		return errors.New(strings.TrimSuffix(problem, "."))
	}
	if problem := plan.CheckArguments(action, wanted.Spec.Arguments); problem != "" {
		return errors.New("action " + name + ": " + strings.TrimSuffix(problem, ".") + ": set it with --arg; " + takes(action))
	}
	return nil
}

// takes describes the arguments of an action, for error messages.
func takes(action *v1alpha1.Action) string {
	if len(action.Spec.Arguments) == 0 {
		return "the action takes no arguments"
	}
	var words []string
	for i := range action.Spec.Arguments {
		argument := &action.Spec.Arguments[i]
		word := argument.Name
		if argument.Presence == v1alpha1.PresenceRequired {
			word += " (required)"
		}
		words = append(words, word)
	}
	return "the action takes " + strings.Join(words, ", ")
}
