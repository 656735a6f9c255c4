// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
)

// kind describes a kind that the commands support.
type kind struct {
	singular, plural, short string
	object                  func() process.Object
	list                    func() client.ObjectList
	// address returns the address of the object, or the command that connects to it.
	address func(process.Object) string
	// once is true if objects of the kind are executed once and never restarted.
	once bool
	// shown and row are set for kinds without a process; these have no object and no address.
	shown func() client.Object
	row   func(client.Object) row
}

var kinds = []*kind{
	{
		singular: "devserver", plural: "devservers", short: "dsv",
		object:  func() process.Object { return &v1alpha1.DevServer{} },
		list:    func() client.ObjectList { return &v1alpha1.DevServerList{} },
		address: func(object process.Object) string { return object.(*v1alpha1.DevServer).Status.URL },
	},
	{
		singular: "instance", plural: "instances", short: "inst",
		object:  func() process.Object { return &v1alpha1.Instance{} },
		list:    func() client.ObjectList { return &v1alpha1.InstanceList{} },
		address: func(object process.Object) string { return object.(*v1alpha1.Instance).Status.AttachCommand },
	},
	{
		singular: "languageserver", plural: "languageservers", short: "lsv",
		object:  func() process.Object { return &v1alpha1.LanguageServer{} },
		list:    func() client.ObjectList { return &v1alpha1.LanguageServerList{} },
		address: connectCommand,
	},
	{
		singular: "strategyrun", plural: "strategyruns", short: "srun",
		object: func() process.Object { return &v1alpha1.StrategyRun{} },
		list:   func() client.ObjectList { return &v1alpha1.StrategyRunList{} },
		address: func(object process.Object) string {
			return "strategy/" + object.(*v1alpha1.StrategyRun).Spec.StrategyRef.Name
		},
		once: true,
	},
}

// connectCommand returns the command that an editor runs, or an empty string while the server has no endpoint.
func connectCommand(object process.Object) string {
	server := object.(*v1alpha1.LanguageServer)
	if server.Status.Endpoint == "" {
		return ""
	}
	command := "berth lsp connect " + server.Name
	if server.Namespace != metav1.NamespaceDefault {
		command += " -n " + server.Namespace
	}
	return command
}

// kindNamed returns the kind whose singular, plural or short name equals word, or nil. It ignores letter case and the suffix of the API group in word.
func kindNamed(kinds []*kind, word string) *kind {
	word = strings.TrimSuffix(strings.ToLower(word), "."+v1alpha1.GroupVersion.Group)
	for _, kind := range kinds {
		if word == kind.singular || word == kind.plural || word == kind.short {
			return kind
		}
	}
	return nil
}

func findKind(word string) (*kind, error) {
	if kind := kindNamed(kinds, word); kind != nil {
		return kind, nil
	}
	return nil, fmt.Errorf("unknown kind %q: use devserver, instance, languageserver or strategyrun", word)
}

// reference is KIND/NAME. An empty name refers to all objects of the kind.
type reference struct {
	kind *kind
	name string
	// everything includes all finished runs instead of only the most recent ones.
	everything bool
}

func (r reference) String() string { return r.kind.singular + "/" + r.name }

// parseReference parses KIND/NAME.
func parseReference(word string) (reference, error) { return parseReferenceOf(word, findKind) }

func parseReferenceOf(word string, find func(string) (*kind, error)) (reference, error) {
	kindWord, name, ok := strings.Cut(word, "/")
	if !ok || name == "" || kindWord == "" || strings.Contains(name, "/") {
		return reference{}, fmt.Errorf("%q is not KIND/NAME: use for example devserver/web", word)
	}
	kind, err := find(kindWord)
	return reference{kind: kind, name: name}, err
}

// reach connects to the API server and resolves the object of a command: KIND/NAME, or a name that exactly one object has.
func (a *app) reach(ctx context.Context, flags *connectionFlags, word string) (reference, *connection, error) {
	named := word != "" && !strings.Contains(word, "/")
	var ref reference
	var err error
	if !named {
		if ref, err = parseReference(word); err != nil {
			return ref, nil, err
		}
	}
	to, err := a.connect(flags)
	if err != nil {
		return ref, nil, err
	}
	if named {
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
		err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, kind.object())
		if err == nil {
			found = append(found, reference{kind: kind, name: name})
			names = append(names, found[len(found)-1].String())
		} else if !apierrors.IsNotFound(err) {
			return reference{}, fmt.Errorf("read %s/%s: %w", kind.singular, name, err)
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

// parseReferences parses KIND/NAME... or, as in kubectl, KIND NAME...
func parseReferences(words []string) ([]reference, error) {
	references := make([]reference, 0, len(words))
	if kind := kindNamed(kinds, words[0]); kind != nil && len(words) > 1 {
		for _, name := range words[1:] {
			if strings.Contains(name, "/") {
				return nil, fmt.Errorf("use either KIND NAME... or KIND/NAME...: %q follows the kind %q", name, words[0])
			}
			references = append(references, reference{kind: kind, name: name})
		}
		return references, nil
	}
	for _, word := range words {
		parsed, err := parseReference(word)
		if err != nil {
			return nil, err
		}
		references = append(references, parsed)
	}
	return references, nil
}

// get reads an object that has a process. If it does not exist, the error names the object and the namespace.
func (c *connection) get(ctx context.Context, ref reference) (process.Object, error) {
	object := ref.kind.object()
	if err := c.read(ctx, ref, object); err != nil {
		return nil, err
	}
	return object, nil
}

func (c *connection) read(ctx context.Context, ref reference, object client.Object) error {
	err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: ref.name}, object)
	return explainRequest(err, c.namespace, ref.String(), "read", listObjects)
}

var errMissing = errors.New("does not exist")

// listObjects is the parameter list of explainRequest for objects that berth status shows.
const listObjects = "all objects, run berth status -A"

// explainRequest returns the error of a request for an object, with its name and what the request does, such as read. If the object does not exist, the error wraps
// errMissing and states how to list the existing ones. It returns nil if err is nil.
func explainRequest(err error, namespace, name, doing, list string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s %w in namespace %q: to list %s", name, errMissing, namespace, list)
	}
	return fmt.Errorf("%s %s: %w", doing, name, err)
}

// listAll lists all objects of a kind in one namespace, or in all namespaces if namespace is empty.
func listAll(ctx context.Context, reader client.Reader, kind *kind, namespace string, opts ...client.ListOption) ([]process.Object, error) {
	shown, err := listShown(ctx, reader, kind, namespace, true, opts...)
	var objects []process.Object
	for _, one := range shown {
		objects = append(objects, one.object.(process.Object))
	}
	return objects, err
}

// items lists objects in one namespace, or in all namespaces if namespace is empty.
func items(ctx context.Context, reader client.Reader, list client.ObjectList, namespace string, opts ...client.ListOption) (objects []client.Object, err error) {
	if err := reader.List(ctx, list, append(opts, client.InNamespace(namespace))...); err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		objects = append(objects, item.(client.Object))
		return nil
	})
	return objects, err
}

// keys returns the names of the objects in the namespace, or in all namespaces if it is empty.
func (c *connection) keys(ctx context.Context, list client.ObjectList) ([]client.ObjectKey, error) {
	objects, err := items(ctx, c.client, list, c.namespace)
	keys := make([]client.ObjectKey, 0, len(objects))
	for _, object := range objects {
		keys = append(keys, client.ObjectKeyFromObject(object))
	}
	return keys, err
}

func (c *connection) endpointObject(ref reference) endpoint.Object {
	return endpoint.Object{Namespace: c.namespace, Resource: ref.kind.plural, Name: ref.name}
}

// completeNames completes the names of the objects of one kind, for a command that takes one name.
func (a *app) completeNames(flags *connectionFlags, list func() client.ObjectList) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		to, err := a.connect(flags)
		if err == nil && len(args) == 0 {
			keys, _ := to.keys(command.Context(), list()) // after an error, there are no completions
			for _, key := range keys {
				names = append(names, key.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeReferences completes KIND/NAME of existing objects that have a process, and after KIND the names of its objects.
func (a *app) completeReferences(flags *connectionFlags) cobra.CompletionFunc {
	return a.completeKinds(flags, kinds)
}

// completeShown completes like completeReferences, for all kinds that berth status shows.
func (a *app) completeShown(flags *connectionFlags) cobra.CompletionFunc {
	return a.completeKinds(flags, shownKinds())
}

func (a *app) completeKinds(flags *connectionFlags, kinds []*kind) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		to, err := a.connect(flags)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		only := (*kind)(nil)
		if len(args) > 0 {
			only = kindNamed(kinds, args[0])
		}
		var words []cobra.Completion
		for _, kind := range kinds {
			if only != nil && kind != only {
				continue
			}
			objects, err := listShown(command.Context(), to.client, kind, to.namespace, true)
			if err != nil {
				continue
			}
			if len(args) == 0 && !strings.Contains(typed, "/") {
				words = append(words, kind.plural)
			}
			for _, object := range objects {
				word := object.object.GetName()
				if only == nil {
					word = kind.singular + "/" + word
				}
				words = append(words, word)
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}
