// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// selection holds the flags of a command that acts on several objects: those of the connection, and those that select objects by label or all objects
// of a kind.
type selection struct {
	connectionFlags
	labels string
	all    bool
	// refuseRuns is the verb for the error if a StrategyRun is selected. Empty: StrategyRuns are permitted.
	refuseRuns string
	// changed are the objects that the command has changed. The method each warns if their managers do not respond.
	changed []client.Object
}

// addTo adds the flags, the check of the arguments and their completion to a command.
func (s *selection) addTo(a *app, command *cobra.Command) {
	command.Args, command.ValidArgsFunction = needs(cobra.MinimumNArgs(1)), a.completeReferences(&s.connectionFlags, kinds)
	s.connectionFlags.add(command)
	s.addLabels(command)
	command.Flags().BoolVar(&s.all, "all", false, "with KIND: all objects of the kind in the namespace")
}

func (s *selection) addLabels(command *cobra.Command) {
	command.Flags().StringVarP(&s.labels, "selector", "l", "", "label selector, such as app=web,tier!=test")
}

// option returns the label selector as an option of a list request, or nil without a selector.
func (s *selection) option() ([]client.ListOption, error) {
	if s.labels == "" {
		return nil, nil
	}
	selector, err := labels.Parse(s.labels)
	if err != nil {
		return nil, fmt.Errorf("label selector %q: %w", s.labels, err)
	}
	return []client.ListOption{client.MatchingLabelsSelector{Selector: selector}}, nil
}

// parse parses the arguments: KIND/NAME... or KIND NAME... or, with --all or -l, KIND... In the last case it returns references without names.
func (s *selection) parse(args []string) ([]reference, error) {
	bare := s.all || s.labels != ""
	if s.all && s.labels != "" {
		return nil, errors.New("use either --all or -l")
	}
	references, err := parseReferences(kinds, args, bare)
	for _, ref := range references {
		if bare && ref.name != "" {
			return nil, fmt.Errorf("%q names one object: with --all or -l use a KIND, such as devserver", ref)
		}
	}
	return references, err
}

// open connects to the API server and returns references to the selected objects. It does not check that named objects exist. If a KIND selects no object, it
// prints a message and returns no error.
func (s *selection) open(ctx context.Context, a *app, args []string) (*connection, []reference, error) {
	references, err := s.parse(args)
	if err != nil {
		return nil, nil, err
	}
	opts, err := s.option()
	if err != nil {
		return nil, nil, err
	}
	to, err := a.connect(&s.connectionFlags)
	if err != nil {
		return nil, nil, err
	}
	var found []reference
	for _, ref := range references {
		if ref.name != "" {
			found = append(found, ref)
			continue
		}
		objects, err := to.objects(ctx, []reference{ref}, opts...)
		if err != nil {
			return nil, nil, err
		}
		for _, object := range objects {
			found = append(found, reference{kind: ref.kind, name: object.GetName()}.of(object))
		}
	}
	if len(found) == 0 {
		a.say("no objects in namespace %s match", to.namespace)
	}
	if s.refuseRuns != "" {
		err = refuseRuns(s.refuseRuns, found...)
	}
	return to, found, err
}

// each calls do for each selected object, one after the other. It continues after an error and returns all errors joined. An error in the
// arguments or in a list request ends it before the first call.
func (s *selection) each(ctx context.Context, a *app, args []string, do func(*connection, reference) error) error {
	to, references, err := s.open(ctx, a, args)
	if err != nil {
		return err
	}
	var errs []error
	for _, ref := range references {
		errs = append(errs, do(to, ref))
	}
	a.warnSilent(ctx, to, rowsOf(s.changed)...)
	return errors.Join(errs...)
}
