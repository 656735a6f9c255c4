// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// describedEvents is the maximum number of events that berth describe prints.
const describedEvents = 10

func (a *app) describeCommand() *cobra.Command {
	flags := &connectionFlags{}
	var objects selection
	command := &cobra.Command{
		Use:   "describe KIND/NAME...",
		Short: "Show everything about objects: state, conditions, last exit, events and output",
		Long: "Describe prints the state of an object, its conditions, the exit of its previous process, its recent events, the last lines of its output (if you have\n" +
			"permission to read the log) and what you can do next.",
		Example:           "  berth describe devserver/web",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			to, references, err := objects.open(command.Context(), a, flags, args)
			if err != nil {
				return err
			}
			for i, ref := range references {
				if i > 0 {
					_, _ = fmt.Fprintln(a.out)
				}
				if err := a.describe(command.Context(), to, ref); err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags.add(command)
	flags.addEndpoint(command)
	objects.add(command)
	return command
}

func (a *app) describe(ctx context.Context, to *connection, ref reference) error {
	object, err := to.get(ctx, ref)
	if err != nil {
		return err
	}
	now, r := a.clock.Now(), ref.kind.show(object)
	shown := append([]string{fmt.Sprintf("%s in namespace %s", ref, object.GetNamespace())}, factTable(object, r, now)...)
	shown = append(shown, "Conditions:")
	for _, line := range conditionTable(object.GetProcessStatus().Conditions, now) {
		shown = append(shown, "  "+line)
	}
	shown = append(shown, a.describeEvents(ctx, to, object, now)...)
	for _, line := range a.lastOutput(ctx, to, ref) {
		shown = append(shown, strings.TrimPrefix(line, "  "))
	}
	if next := nextStep(object, r, commandNames(ref)); next != "" {
		shown = append(shown, "Next: "+next)
	}
	return a.print(shown)
}

// factTable returns a line for each fact about an object that is known.
func factTable(object process.Object, r row, now time.Time) []string {
	spec, status := object.GetProcessSpec(), object.GetProcessStatus()
	running := ""
	if status.Process != nil {
		running = fmt.Sprintf("incarnation %d", status.Process.Incarnation)
		if r.pid != "" {
			running += ", process " + r.pid
		}
		if status.Process.StartTime != nil {
			running += ", started " + ageOf(status.Process.StartTime.Time, now) + " ago"
		}
	}
	var cells [][]string
	for _, fact := range [][2]string{
		{"Ready", strings.TrimSuffix(r.ready+", "+r.reason+": "+r.message, ": ")},
		{"State", string(cmp.Or(spec.State, v1alpha1.StateRunning))},
		{"Address", r.address},
		{"Command", strings.Join(spec.Process.Command, " ")},
		{"Directory", spec.Process.WorkingDir},
		{"Runtime", r.runtime},
		{"Host", r.host},
		{"Process", running},
		{"Restarts", r.restarts},
		{"Last exit", describeExit(status.LastExit)},
		{"Session", spec.Session},
		{"Created", ageOf(object.GetCreationTimestamp().Time, now) + " ago"},
	} {
		if fact[1] != "" {
			cells = append(cells, []string{"  " + fact[0], clean(fact[1])})
		}
	}
	return align(cells)
}

func ageOf(at, now time.Time) string { return duration.HumanDuration(max(0, now.Sub(at))) }

func conditionTable(conditions []metav1.Condition, now time.Time) []string {
	cells := [][]string{{"TYPE", "STATUS", "REASON", "AGE", "MESSAGE"}}
	for _, c := range conditions {
		cells = append(cells, []string{clean(c.Type), string(c.Status), clean(c.Reason), ageOf(c.LastTransitionTime.Time, now), clean(c.Message)})
	}
	return align(cells)
}

func (a *app) describeEvents(ctx context.Context, to *connection, object process.Object, now time.Time) []string {
	found, err := to.events(ctx, client.InNamespace(object.GetNamespace()), client.MatchingFields{eventUID: string(object.GetUID())})
	switch {
	case err != nil:
		return []string{"Events: " + clean(err.Error())}
	case len(found) == 0:
		return []string{"Events: none in the last hour"}
	}
	shown := []string{"Events:"}
	for _, line := range eventTable(found[max(0, len(found)-describedEvents):], now, false) {
		shown = append(shown, "  "+line)
	}
	return shown
}
