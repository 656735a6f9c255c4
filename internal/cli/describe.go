// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/printable"
)

// describedEvents is the maximum number of events that berth describe prints.
const describedEvents = 10

func (a *app) describeCommand() *cobra.Command {
	objects, described := &selection{}, false
	command := &cobra.Command{
		Use:   "describe KIND/NAME...",
		Short: "Show everything about objects: state, conditions, last exit, events and output",
		Long: "Describe prints the state of an object, its conditions, the exit of its previous process, its recent events, the last lines of its output (if you have\n" +
			"permission to read the log) and what you can do next.",
		Example: "  berth describe devserver/web",
		RunE: func(command *cobra.Command, args []string) error {
			return objects.each(command.Context(), a, args, func(to *connection, ref reference) error {
				if described {
					_, _ = fmt.Fprintln(a.out)
				}
				err := a.describe(command.Context(), to, ref)
				described = described || err == nil
				return err
			})
		},
	}
	objects.addTo(a, command)
	objects.addEndpoint(command)
	return command
}

func (a *app) describe(ctx context.Context, to *connection, ref reference) error {
	object, err := to.get(ctx, ref)
	if err != nil {
		return err
	}
	now, r := a.clock.Now(), rowOf(object)
	shown := append([]string{fmt.Sprintf("%s in namespace %s", ref, object.GetNamespace())}, factTable(object, r, now)...)
	shown = append(shown, "Conditions:")
	shown = append(shown, indented(conditionTable(object.GetProcessStatus().Conditions, now))...)
	shown = append(shown, a.describeEvents(ctx, to, object, now)...)
	shown = append(shown, a.lastOutput(ctx, to, ref)...)
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
		{"Resume with", strings.Join(spec.Process.ResumeCommand, " ")},
		{"Directory", spec.Process.WorkingDir},
		{"Runtime", r.runtime},
		{"Host", r.host},
		{"Process", running},
		{"Started", describeStart(status.Resume)},
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

// indented returns indented lines.
func indented(lines []string) []string {
	all := make([]string, 0, len(lines))
	for _, line := range lines {
		all = append(all, "  "+line)
	}
	return all
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
	return append([]string{"Events:"}, indented(eventTable(found[max(0, len(found)-describedEvents):], now, false))...)
}

// describeStart describes how the session of an Instance was started, and how it will be started next, in one line.
func describeStart(resume *v1alpha1.ResumeStatus) string {
	if resume == nil {
		return ""
	}
	return fmt.Sprintf("%s; next start: %s", resume.Start, resume.Next)
}

// describeExit describes the exit of the previous process in one line.
func describeExit(exit *v1alpha1.ProcessExit) string {
	if exit == nil {
		return ""
	}
	words := []string{exit.Reason}
	switch {
	case exit.Signal != "":
		words = append(words, "signal "+exit.Signal)
	case exit.ExitCode != nil:
		words = append(words, fmt.Sprintf("exit code %d", *exit.ExitCode))
	}
	if exit.FinishTime != nil {
		words = append(words, "at "+exit.FinishTime.UTC().Format("2006-01-02T15:04:05Z"))
	}
	if exit.Message != "" {
		words = append(words, clean(exit.Message))
	}
	return strings.Join(words, ", ")
}

// actions are the instructions in which nextStep expresses what to do, such as "call start".
type actions struct{ gone, wait, start, restart, logs, apply string }

// toolNames are the instructions for users of the MCP server.
var toolNames = actions{
	gone: "list no longer returns it", wait: "call get again, or call start or restart with wait", start: "call start",
	restart: "call restart", logs: "with logs", apply: "with apply",
}

// commandNames returns the instructions for users of the command line.
func commandNames(ref reference) actions {
	name := ref.String()
	return actions{
		gone: "berth wait " + name + " --for deleted returns", wait: "run berth wait " + name, start: "run berth start " + name,
		restart: "run berth restart " + name, logs: "with berth logs " + name, apply: "with berth apply",
	}
}

// nextStep returns what a person or an agent can do about the state of an object; empty if nothing is necessary.
func nextStep(object process.Object, r row, do actions) string {
	stalled := stalledBy(object.GetProcessStatus().Conditions)
	switch {
	case object.GetDeletionTimestamp() != nil:
		return "The object is being deleted: wait until " + do.gone + "."
	case object.GetProcessSpec().State == v1alpha1.StateStopped:
		return "The object is stopped: " + do.start + " to run it."
	case r.ready == "True":
		return ""
	case stalled != nil && r.explains:
		return "Berth does not retry: find the cause in the output or " + do.logs + ", correct it, then " + do.restart + "."
	case stalled != nil:
		return "Berth cannot proceed: correct the cause in the message, " + do.apply + " if it is in the spec, then " + do.restart + "."
	case r.explains && object.GetProcessStatus().LastExit != nil:
		return "The previous process failed and Berth retries: if that does not help, find the cause in the output or " + do.logs + "."
	default:
		return "Berth is working on it: " + do.wait + "."
	}
}

const (
	// outputTimeout bounds how long berth status waits for the output of a process.
	outputTimeout = 3 * time.Second
	// outputRead and outputBytes bound the lines and bytes that are read.
	outputRead  = 60
	outputBytes = 1 << 20
)

// lastOutput returns the last lines of output of an object, which may show the cause of a failure. It returns nil if they cannot be read.
func (a *app) lastOutput(ctx context.Context, to *connection, ref reference) []string {
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	text := a.tail(ctx, to, ref)
	shown := printable.Tail(text)
	if len(shown) == 0 && text != nil {
		return []string{"Last output: none; the program has written nothing."}
	}
	if len(shown) == 0 {
		return nil
	}
	return append([]string{"Last output:"}, indented(shown)...)
}

// tail returns the end of the output, as much as it could read before the context was done. If it can read none, it returns the end that the status contains.
func (a *app) tail(ctx context.Context, to *connection, ref reference) []byte {
	object, err := to.get(ctx, ref)
	if err != nil {
		return nil
	}
	quiet := *a
	quiet.err = io.Discard
	var text bytes.Buffer
	opts := logOptions{LogOptions: endpoint.LogOptions{Tail: outputRead}, maxBytes: outputBytes}
	_ = quiet.copyLogs(ctx, to, ref, object, opts, &text) // a partial result is still useful
	if end := object.GetProcessStatus().LastExit; text.Len() == 0 && end != nil && end.LogTail != "" {
		return []byte(end.LogTail)
	}
	return text.Bytes()
}
