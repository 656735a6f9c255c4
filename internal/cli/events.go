// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// eventUID is the field by which the API server selects the events of one object.
const eventUID = "involvedObject.uid"

func (a *app) eventsCommand() *cobra.Command {
	flags := &connectionFlags{}
	format := &outputFormat{}
	var watched bool
	command := &cobra.Command{
		Use:   "events [KIND/NAME]",
		Short: "Show what happened to objects",
		Long:  "Events prints the events that Berth has recorded, oldest first. The API server deletes events after about one hour.",
		Example: "  # The events of the namespace\n" +
			"  berth events\n\n" +
			"  # The events of one object, and new ones as they occur\n" +
			"  berth events devserver/web -w",
		Args:              needs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags, shownKinds),
		RunE: func(command *cobra.Command, args []string) error {
			printer, err := format.printer(command)
			if err != nil {
				return err
			}
			to, err := a.connect(flags)
			if err != nil {
				return err
			}
			if flags.allNamespaces {
				to.namespace = ""
			}
			opts, err := to.eventOptions(command.Context(), args)
			if err != nil {
				return err
			}
			if watched {
				return a.watchEvents(command.Context(), to, opts)
			}
			found, err := to.events(command.Context(), opts...)
			if err != nil {
				return err
			}
			if printer != nil {
				objects := make([]client.Object, 0, len(found))
				for i := range found {
					objects = append(objects, &found[i])
				}
				return printObjects(printer, a.out, objects, false)
			}
			if len(found) == 0 {
				a.say("no events")
				return nil
			}
			return a.print(eventTable(found, a.clock.Now(), flags.allNamespaces))
		},
	}
	flags.add(command)
	format.add(command)
	command.Flags().BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "show the events of all namespaces")
	command.Flags().BoolVarP(&watched, "watch", "w", false, "print new events as they occur")
	return command
}

// eventOptions returns the options that select the events of the object in args, if any.
func (c *connection) eventOptions(ctx context.Context, args []string) ([]client.ListOption, error) {
	opts := []client.ListOption{client.InNamespace(c.namespace)}
	if len(args) == 0 {
		return opts, nil
	}
	ref, err := parseReferenceOf(shownKinds, args[0])
	if err != nil {
		return nil, err
	}
	if c.namespace == "" {
		return nil, fmt.Errorf("%s selects one object in one namespace: omit -A or the name", ref)
	}
	object, err := c.read(ctx, ref)
	if err != nil {
		return nil, err
	}
	return append(opts, client.MatchingFields{eventUID: string(object.GetUID())}), nil
}

// events returns the events of objects of Berth, oldest first.
func (c *connection) events(ctx context.Context, opts ...client.ListOption) ([]corev1.Event, error) {
	list := &corev1.EventList{}
	if err := c.client.List(ctx, list, opts...); err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	found := slices.DeleteFunc(list.Items, func(event corev1.Event) bool { return !ofBerth(&event) })
	slices.SortStableFunc(found, func(a, b corev1.Event) int { return lastSeen(&a).Compare(lastSeen(&b)) })
	return found, nil
}

func ofBerth(event *corev1.Event) bool {
	return strings.HasPrefix(event.InvolvedObject.APIVersion, v1alpha1.GroupVersion.Group+"/")
}

// lastSeen returns the time of the last occurrence of an event.
func lastSeen(event *corev1.Event) time.Time {
	if event.Series != nil {
		return event.Series.LastObservedTime.Time
	}
	for _, at := range []time.Time{event.LastTimestamp.Time, event.EventTime.Time} {
		if !at.IsZero() {
			return at
		}
	}
	return event.CreationTimestamp.Time
}

func eventTable(events []corev1.Event, now time.Time, namespaces bool) []string {
	cells := [][]string{{"LAST SEEN", "COUNT", "TYPE", "REASON", "OBJECT", "MESSAGE"}}
	for i := range events {
		event := &events[i]
		count := max(event.Count, 1)
		if event.Series != nil {
			count = event.Series.Count
		}
		cells = append(cells, []string{
			ageOf(lastSeen(event), now), fmt.Sprint(count), event.Type, clean(event.Reason), involved(event, namespaces), clean(event.Message),
		})
	}
	return align(cells)
}

// involved returns the object of an event.
func involved(event *corev1.Event, namespaces bool) string {
	name := strings.ToLower(event.InvolvedObject.Kind) + "/" + event.InvolvedObject.Name
	if namespaces {
		name = event.InvolvedObject.Namespace + "/" + name
	}
	return clean(name)
}

// watchEvents prints the existing events and then each new one, until the context is done. It starts again when the API server ends the watch, which it does
// regularly.
func (a *app) watchEvents(ctx context.Context, to *connection, opts []client.ListOption) error {
	printed := map[string]bool{} // the last occurrences of the events that the API server still has
	show := func(event *corev1.Event) {
		if key := occurrence(event); ofBerth(event) && !printed[key] {
			printed[key] = true
			_, _ = fmt.Fprintf(a.out, "%s %s %s %s: %s\n", lastSeen(event).Local().Format(time.TimeOnly), event.Type, involved(event, to.namespace == ""),
				clean(event.Reason), clean(event.Message))
		}
	}
	var found []corev1.Event
	read := func() (err error) {
		found, err = to.events(ctx, opts...)
		return err
	}
	return a.follow(ctx, watchEvery, nil, read, func() (bool, error) {
		kept := map[string]bool{}
		for i := range found {
			show(&found[i])
			kept[occurrence(&found[i])] = true
		}
		printed = kept
		_ = to.followEvents(ctx, opts, show) // after an error, the next list fails too or continues
		return false, nil
	})
}

// occurrence identifies the last occurrence of an event.
func occurrence(event *corev1.Event) string { return string(event.UID) + lastSeen(event).String() }

// followEvents calls show for each event that the API server reports, until the watch ends.
func (c *connection) followEvents(ctx context.Context, opts []client.ListOption, show func(*corev1.Event)) error {
	return c.watch(ctx, "events", &corev1.EventList{}, func(change watch.EventType, object client.Object) {
		if event, is := object.(*corev1.Event); is && (change == watch.Added || change == watch.Modified) {
			show(event)
		}
	}, opts...)
}

// watch calls see for each change that the API server reports, until the API server ends the watch or reports an error.
func (c *connection) watch(
	ctx context.Context, what string, list client.ObjectList, see func(watch.EventType, client.Object), opts ...client.ListOption,
) error {
	stream, err := c.client.Watch(ctx, list, opts...)
	if err != nil {
		return fmt.Errorf("watch %s: %w", what, err)
	}
	defer stream.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-stream.ResultChan():
			object, is := event.Object.(client.Object)
			if !open || !is {
				return nil
			}
			see(event.Type, object)
		}
	}
}
