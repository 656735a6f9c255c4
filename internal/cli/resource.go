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

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
)

// reach connects to the API server and resolves the object of a command: KIND/NAME, or a name that exactly one object has.
func (a *app) reach(ctx context.Context, flags *connectionFlags, word string) (ref reference, to *connection, err error) {
	named := word != "" && !strings.Contains(word, "/")
	if !named {
		if ref, err = parseReference(word); err != nil {
			return ref, nil, err
		}
	}
	if to, err = a.connect(flags); err == nil && named {
		ref, err = to.only(ctx, word)
	}
	return ref, to, err
}

// only is the lookup of an object by its name alone. It returns a reference to that object, or an error if no object has the name, or if objects of several
// kinds have it.
func (c *connection) only(ctx context.Context, name string) (reference, error) {
	var found []reference
	var names []string
	for _, kind := range kinds {
		ref := reference{kind: kind, name: name}
		err := c.client.Get(ctx, c.key(name), kind.newObject())
		if err == nil {
			found, names = append(found, ref), append(names, ref.String())
		} else if !apierrors.IsNotFound(err) {
			return reference{}, fmt.Errorf("read %s: %w", ref, err)
		}
	}
	switch len(found) {
	case 0:
		return reference{}, fmt.Errorf("no object named %q in namespace %q: use KIND/NAME as printed by berth status -A", name, c.namespace)
	case 1:
		return found[0], nil
	}
	return reference{}, fmt.Errorf("several objects are named %q: use %s", name, strings.Join(names, " or "))
}

// key returns the key of an object in the namespace of the connection.
func (c *connection) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: c.namespace, Name: name}
}

// get reads an object that has a process. If it does not exist, the error names the object and the namespace.
func (c *connection) get(ctx context.Context, ref reference) (process.Object, error) {
	object, err := c.read(ctx, ref)
	if err != nil {
		return nil, err
	}
	return object.(process.Object), nil
}

// readable is get for users who need not be permitted to read the object: it returns nil if the API server forbids that, because the permission for the output or
// the terminal of an object does not include the permission to read the object.
func (c *connection) readable(ctx context.Context, ref reference) (process.Object, error) {
	object, err := c.get(ctx, ref)
	if apierrors.IsForbidden(err) {
		return nil, nil //nolint:nilnil // as documented
	}
	return object, err
}

// read is get for all kinds.
func (c *connection) read(ctx context.Context, ref reference) (client.Object, error) {
	object := ref.kind.newObject()
	err := c.client.Get(ctx, c.key(ref.name), object)
	return object, explainRequest(err, c.namespace, ref.String(), "read", listObjects)
}

// listObjects is the parameter list of explainRequest for objects that berth status shows.
const listObjects = "all objects, run berth status -A"

// explainRequest returns the error of a request for an object, with its name and what the request does, such as read. If the object does not exist, the error wraps
// errMissing and states how to list the existing ones. It returns nil if err is nil.
func explainRequest(err error, namespace, name, doing, list string) error {
	var recreated errRecreated
	switch {
	case err == nil:
		return nil
	case errors.As(err, &recreated):
		return recreated // it already names the object
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s %w in namespace %q: to list %s", name, errMissing, namespace, list)
	}
	return fmt.Errorf("%s %s: %w", doing, name, err)
}

// listKind returns the objects of a kind in one namespace, or in all namespaces if namespace is empty. There may be thousands of finished runs, so it includes only the
// most recent ones unless everything is set.
func listKind(ctx context.Context, reader client.Reader, kind *kind, namespace string, everything bool, opts ...client.ListOption) (objects []client.Object, err error) {
	found := kind.newList()
	if err := reader.List(ctx, found, append(opts, client.InNamespace(namespace))...); err != nil {
		return nil, fmt.Errorf("list %s: %w", kind.plural, err)
	}
	err = meta.EachListItem(found, func(item runtime.Object) error {
		objects = append(objects, item.(client.Object))
		return nil
	})
	if kind.once && !everything {
		objects = withoutOldRuns(objects)
	}
	return objects, err
}

// recentRuns is how many finished runs are shown unless the user specifies the kind strategyrun.
const recentRuns = 10

// withoutOldRuns drops all finished runs except the most recent ones.
func withoutOldRuns(objects []client.Object) []client.Object {
	var finished []*v1alpha1.StrategyRun
	for _, object := range objects {
		if run := object.(*v1alpha1.StrategyRun); run.Status.FinishTime != nil {
			finished = append(finished, run)
		}
	}
	if len(finished) <= recentRuns {
		return objects
	}
	slices.SortFunc(finished, func(a, b *v1alpha1.StrategyRun) int {
		return cmp.Or(b.Status.FinishTime.Compare(a.Status.FinishTime.Time), cmp.Compare(a.UID, b.UID))
	})
	old := map[client.Object]bool{}
	for _, run := range finished[recentRuns:] {
		old[run] = true
	}
	return slices.DeleteFunc(objects, func(object client.Object) bool { return old[object] })
}

// objects reads the wanted objects. The options apply to lists.
func (c *connection) objects(ctx context.Context, wanted []reference, opts ...client.ListOption) (found []client.Object, err error) {
	for _, ref := range wanted {
		var some []client.Object
		if ref.name == "" {
			some, err = listKind(ctx, c.client, ref.kind, c.namespace, ref.everything, opts...)
		} else {
			some = make([]client.Object, 1)
			some[0], err = c.read(ctx, ref)
		}
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// seen returns what the manager compares with the object of a request.
func (r reference) seen() endpoint.Seen { return endpoint.Seen{UID: r.uid, Incarnation: r.incarnation} }

func (c *connection) endpointObject(ref reference) endpoint.Object {
	return endpoint.Object{Namespace: c.namespace, Resource: ref.kind.plural, Name: ref.name}
}

// completeNames completes the names of the objects of one kind, for a command that takes one name.
func (a *app) completeNames(flags *connectionFlags, kind *kind) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		if to, err := a.connect(flags); err == nil && len(args) == 0 {
			objects, _ := listKind(command.Context(), to.client, kind, to.namespace, true) // after an error, there are no completions
			for _, object := range objects {
				names = append(names, object.GetName())
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeReferences completes KIND/NAME of existing objects of some kinds, and after KIND the names of its objects.
func (a *app) completeReferences(flags *connectionFlags, kinds []*kind) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, typed string) (words []cobra.Completion, _ cobra.ShellCompDirective) {
		to, err := a.connect(flags)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		only := (*kind)(nil)
		if len(args) > 0 {
			only = kindNamed(kinds, args[0])
		}
		for _, kind := range kinds {
			if only != nil && kind != only {
				continue
			}
			objects, err := listKind(command.Context(), to.client, kind, to.namespace, true)
			if err != nil {
				continue
			}
			if len(args) == 0 && !strings.Contains(typed, "/") {
				words = append(words, kind.plural)
			}
			for _, object := range objects {
				if only == nil {
					words = append(words, nameOf(object))
				} else {
					words = append(words, object.GetName())
				}
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}
