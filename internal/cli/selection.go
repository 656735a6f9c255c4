// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// selection holds the flags that select objects of a kind without their names.
type selection struct {
	labels string
	all    bool
}

func (s *selection) add(command *cobra.Command) {
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

// check parses the arguments: KIND/NAME... or KIND NAME... or, with --all or -l, KIND... In the last case it returns references without names.
func (s *selection) check(args []string) ([]reference, error) {
	if !s.all && s.labels == "" {
		return parseReferences(args)
	}
	if s.all && s.labels != "" {
		return nil, errors.New("use either --all or -l")
	}
	if _, err := s.option(); err != nil {
		return nil, err
	}
	var found []reference
	for _, word := range args {
		if strings.Contains(word, "/") {
			return nil, fmt.Errorf("%q names one object: with --all or -l use a KIND, such as devserver", word)
		}
		kind, err := findKind(word)
		if err != nil {
			return nil, err
		}
		found = append(found, reference{kind: kind})
	}
	return found, nil
}

// open connects to the API server and returns the objects that the arguments and the flags select.
func (s *selection) open(ctx context.Context, a *app, flags *connectionFlags, args []string) (*connection, []reference, error) {
	references, err := s.check(args)
	if err != nil {
		return nil, nil, err
	}
	to, err := a.connect(flags)
	if err != nil {
		return nil, nil, err
	}
	references, err = a.selected(ctx, to, s, references)
	return to, references, err
}

// selected replaces the references without a name by the objects that the flags select. No such object is not an error.
func (a *app) selected(ctx context.Context, to *connection, s *selection, references []reference) ([]reference, error) {
	var found []reference
	for _, ref := range references {
		if ref.name != "" {
			found = append(found, ref)
			continue
		}
		opts, err := s.option()
		if err != nil {
			return nil, err
		}
		objects, err := listAll(ctx, to.client, ref.kind, to.namespace, opts...)
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			found = append(found, reference{kind: ref.kind, name: object.GetName()})
		}
	}
	if len(found) == 0 {
		a.say("no objects in namespace %s match", to.namespace)
	}
	return found, nil
}
