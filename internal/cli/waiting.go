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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// waitingFlags are the flags of berth waiting.
type waitingFlags struct {
	selection
	watch  bool
	output string
}

func (a *app) waitingCommand() *cobra.Command {
	flags := &waitingFlags{}
	command := &cobra.Command{
		Use:   "waiting",
		Short: "Show what waits for a person: questions of agents, and plans to approve",
		Long: "Waiting lists the Instances whose program waits for an answer and the Plans that wait for approval, the longest wait first, and the command that\n" +
			"answers. The text of the question is on the screen: berth logs --screen KIND/NAME.",
		Example: "  # What waits in the namespace\n" +
			"  berth waiting\n\n" +
			"  # Watch all namespaces\n" +
			"  berth waiting -A -w\n\n" +
			"  # For a script\n" +
			"  berth waiting -o json",
		Args: needs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			switch {
			case !slices.Contains([]string{"", "json", "yaml"}, flags.output):
				return &usageError{fmt.Errorf("-o %q is not supported: use json or yaml", flags.output), command.UsageString()}
			case flags.output != "" && flags.watch:
				return &usageError{errors.New("-w shows a table: omit -o or -w"), command.UsageString()}
			}
			return a.waiting(command.Context(), flags)
		},
	}
	flags.connectionFlags.add(command)
	flags.addLabels(command)
	command.Flags().BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "show what waits in all namespaces")
	command.Flags().BoolVarP(&flags.watch, "watch", "w", false, "watch for changes and show them")
	command.Flags().StringVarP(&flags.output, "output", "o", "", "output format: json or yaml")
	return command
}

func (a *app) waiting(ctx context.Context, flags *waitingFlags) error {
	opts, err := flags.option()
	if err != nil {
		return err
	}
	to, err := a.connect(&flags.connectionFlags)
	if err != nil {
		return err
	}
	where := "namespace " + to.namespace
	if flags.allNamespaces {
		to.namespace, where = "", "any namespace"
	}
	if flags.watch {
		return a.watchWaiting(ctx, to, opts)
	}
	waiters, err := a.waiters(ctx, to, opts...)
	switch {
	case err != nil:
		return err
	case flags.output != "":
		return a.printValue(flags.output, waiters)
	case len(waiters) == 0:
		a.say("nothing waits for a person in %s", where)
		return nil
	default:
		return a.print(waitingLines(waiters, a.clock.Now(), flags.allNamespaces))
	}
}

// watchWaiting shows what waits until the context is done. It retries like statusWatch.
func (a *app) watchWaiting(ctx context.Context, to *connection, opts []client.ListOption) error {
	board := newBoard(a.raw, to.namespace == "")
	opts = append(opts, fromCache)
	var waiters []waiter
	read := func() (err error) {
		waiters, err = a.waiters(ctx, to, opts...)
		return err
	}
	return a.follow(ctx, watchEvery, nil, read, func() (bool, error) {
		now := a.clock.Now()
		if board.size != nil {
			board.draw(waitingLines(waiters, now, board.namespaces))
			return false, nil
		}
		entries := make([]entry, 0, len(waiters))
		for _, w := range waiters {
			entries = append(entries, entry{w.Namespace + " " + w.Name, strings.Join([]string{w.Name, w.Reason, "since " + w.Since.Local().Format(time.TimeOnly) + ":", clean(w.Message), "(" + w.Answer + ")"}, " ")})
		}
		board.tellChanges(entries, "no longer waits", now)
		return false, nil
	})
}

// waiters reads the objects that wait for a person, the longest wait first.
func (a *app) waiters(ctx context.Context, to *connection, opts ...client.ListOption) ([]waiter, error) {
	found, err := to.objects(ctx, waitingKinds, opts...)
	for _, omitted := range to.omitted.take() {
		a.say("warning: %v", omitted)
	}
	return waitersOf(found), err
}

// waitingKinds are the kinds whose objects can wait for a person.
var waitingKinds = []reference{{kind: kindNamed(kinds, "instance")}, {kind: planKind}}

// waiter is an object that waits for a person.
type waiter struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"` // KIND/NAME
	// Reason is the reason of the condition, such as AwaitingInput or AwaitingApproval.
	Reason string      `json:"reason"`
	Since  metav1.Time `json:"since"`
	// Message describes the question. It contains no text of a terminal.
	Message string `json:"message"`
	// Question is the kind of the question of an Instance, and Source how Berth knows of it, such as Hook, Terminal or Screen.
	Question string `json:"question,omitempty"`
	Source   string `json:"source,omitempty"`
	Answer   string `json:"answer"` // the command that answers
	id       string // see questionID
}

// waiterOf returns what an object waits for, and false if it does not wait for a person. Every list and notification of what waits uses it, so this is the place
// for more about a question.
func waiterOf(object client.Object) (waiter, bool) {
	w := waiter{Namespace: object.GetNamespace(), Name: nameOf(object)}
	var condition *metav1.Condition
	switch object := object.(type) {
	case *v1alpha1.Instance:
		condition = meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionAwaitingInput)
		w.Answer = "berth send " + w.Name + " TEXT"
		if agent := object.Status.Agent; agent != nil && agent.State == v1alpha1.AgentWaiting {
			w.Question, w.Source = agent.Question, string(agent.Source)
		}
	case *v1alpha1.Plan:
		condition = meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionAwaitingApproval)
		w.Answer = "berth plan approve " + object.Name
	}
	if condition == nil || condition.Status != metav1.ConditionTrue || !object.GetDeletionTimestamp().IsZero() {
		return waiter{}, false
	}
	if w.Namespace != metav1.NamespaceDefault {
		w.Answer += " -n " + w.Namespace
	}
	w.Reason, w.Since, w.Message = condition.Reason, condition.LastTransitionTime, condition.Message
	w.id = questionID(object, w.Since.Time)
	return w, true
}

// waitersOf returns the objects that wait for a person, the longest wait first.
func waitersOf(objects []client.Object) []waiter {
	waiters := []waiter{}
	for _, object := range objects {
		if w, waits := waiterOf(object); waits {
			waiters = append(waiters, w)
		}
	}
	slices.SortStableFunc(waiters, func(a, b waiter) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return waiters
}

// waitingLines formats the waiters as a table.
func waitingLines(waiters []waiter, now time.Time, namespaces bool) []string {
	if len(waiters) == 0 {
		return []string{"nothing waits for a person"}
	}
	cells := [][]string{{"NAME", "WAITS", "FOR", "ANSWER"}}
	for _, w := range waiters {
		cells = append(cells, []string{clean(w.Name), ageOf(w.Since.Time, now), clean(w.Message), clean(w.Answer)})
	}
	if namespaces {
		cells[0] = slices.Insert(cells[0], 0, "NAMESPACE")
		for i, w := range waiters {
			cells[i+1] = slices.Insert(cells[i+1], 0, clean(w.Namespace))
		}
	}
	return align(cells)
}
