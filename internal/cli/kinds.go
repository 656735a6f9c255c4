// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// kind describes a kind that the commands support.
type kind struct {
	singular, plural, short string
	object                  client.Object     // an empty object
	list                    client.ObjectList // an empty list
	// once is true if objects of the kind are executed once and never restarted.
	once bool
}

// kinds are the kinds whose objects have a process.
var kinds = []*kind{
	{singular: "devserver", plural: "devservers", short: "dsv", object: &v1alpha1.DevServer{}, list: &v1alpha1.DevServerList{}},
	{singular: "instance", plural: "instances", short: "inst", object: &v1alpha1.Instance{}, list: &v1alpha1.InstanceList{}},
	{singular: "languageserver", plural: "languageservers", short: "lsv", object: &v1alpha1.LanguageServer{}, list: &v1alpha1.LanguageServerList{}},
	{singular: "strategyrun", plural: "strategyruns", short: "srun", object: &v1alpha1.StrategyRun{}, list: &v1alpha1.StrategyRunList{}, once: true},
}

// The kinds without a process. Among the commands that take KIND/NAME, only those that show objects support them.
var (
	strategyKind  = &kind{singular: "strategy", plural: "strategies", short: "strat", object: &v1alpha1.Strategy{}, list: &v1alpha1.StrategyList{}}
	planKind      = &kind{singular: "plan", plural: "plans", short: "plan", object: &v1alpha1.Plan{}, list: &v1alpha1.PlanList{}}
	discoveryKind = &kind{
		singular: "instancediscovery", plural: "instancediscoveries", short: "disc", object: &v1alpha1.InstanceDiscovery{}, list: &v1alpha1.InstanceDiscoveryList{},
	}
)

// shownKinds are all kinds that berth status shows.
var shownKinds = append(slices.Clone(kinds), strategyKind, planKind, discoveryKind)

func (k *kind) newObject() client.Object   { return k.object.DeepCopyObject().(client.Object) }
func (k *kind) newList() client.ObjectList { return k.list.DeepCopyObject().(client.ObjectList) }

// hasProcess reports whether objects of the kind have a process.
func (k *kind) hasProcess() bool { return slices.Contains(kinds, k) }

// nameOf returns KIND/NAME of an object.
func nameOf(object client.Object) string {
	return strings.ToLower(reflect.TypeOf(object).Elem().Name()) + "/" + object.GetName()
}

// stateOf returns the text for the column ADDRESS (a URL, the command that connects to the object, or a summary of its state) and the conditions.
func stateOf(object client.Object) (address string, conditions []metav1.Condition) {
	switch o := object.(type) {
	case *v1alpha1.DevServer:
		return o.Status.URL, o.Status.Conditions
	case *v1alpha1.Instance:
		return o.Status.AttachCommand, o.Status.Conditions
	case *v1alpha1.LanguageServer:
		return connectCommand(o), o.Status.Conditions
	case *v1alpha1.StrategyRun:
		return "strategy/" + o.Spec.StrategyRef.Name, o.Status.Conditions
	case *v1alpha1.Strategy:
		return totals(o), o.Status.Conditions
	case *v1alpha1.Plan:
		return strings.TrimRight(fmt.Sprintf("action/%s %s", o.Spec.ActionRef.Name, o.Status.CurrentPhase), " "), o.Status.Conditions
	case *v1alpha1.InstanceDiscovery:
		t := o.Status.Totals
		return fmt.Sprintf("%d found, %d created, %d known, %d skipped", t.Found, t.Created, t.Known, t.Skipped), o.Status.Conditions
	}
	return "", nil
}

// connectCommand returns the command that an editor runs, or an empty string while the server has no endpoint.
func connectCommand(server *v1alpha1.LanguageServer) string {
	if server.Status.Endpoint == "" {
		return ""
	}
	command := "berth lsp connect " + server.Name
	if server.Namespace != metav1.NamespaceDefault {
		command += " -n " + server.Namespace
	}
	return command
}

// totals summarizes the outcomes of the runs of a strategy.
func totals(s *v1alpha1.Strategy) string {
	t := s.Status.Totals
	text := fmt.Sprintf("%d succeeded, %d failed", t.Succeeded, t.Failed+t.TimedOut)
	if t.Cancelled > 0 {
		text += fmt.Sprintf(", %d cancelled", t.Cancelled)
	}
	if t.SkippedCircuitOpen > 0 {
		text += fmt.Sprintf(", %d skipped", t.SkippedCircuitOpen)
	}
	return text
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

// findKind returns the kind that word names, or an error that lists the kinds.
func findKind(kinds []*kind, word string) (*kind, error) {
	if kind := kindNamed(kinds, word); kind != nil {
		return kind, nil
	}
	return nil, fmt.Errorf("unknown kind %q: use %s", word, kindList(kinds))
}

// kindList returns the names of kinds for a message, such as "devserver, instance or languageserver".
func kindList(kinds []*kind) string {
	var names []string
	for _, kind := range kinds {
		names = append(names, kind.singular)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// reference is KIND/NAME. An empty name refers to all objects of the kind.
type reference struct {
	kind *kind
	name string
	// uid is the UID of the object that the command has read or listed. A change of an object with another UID is refused. Empty: the user named the object,
	// and the command has not read it.
	uid types.UID
	// incarnation is the incarnation that the user saw. 0: unknown.
	incarnation int64
	// everything includes all finished runs instead of only the most recent ones.
	everything bool
}

// of returns the reference with the UID of the object that was read.
func (r reference) of(object client.Object) reference {
	r.uid = object.GetUID()
	return r
}

func (r reference) String() string { return r.kind.singular + "/" + r.name }

// parseReference parses KIND/NAME of an object that has a process.
func parseReference(word string) (reference, error) { return parseReferenceOf(kinds, word) }

func parseReferenceOf(kinds []*kind, word string) (reference, error) {
	kindWord, name, ok := strings.Cut(word, "/")
	if !ok || name == "" || kindWord == "" || strings.Contains(name, "/") {
		return reference{}, fmt.Errorf("%q is not KIND/NAME: use for example devserver/web", word)
	}
	kind, err := findKind(kinds, kindWord)
	return reference{kind: kind, name: name}, err
}

// parseReferences parses KIND/NAME... or, as in kubectl, KIND NAME... If bare is set, it also parses KIND..., as references without a name.
func parseReferences(kinds []*kind, words []string, bare bool) ([]reference, error) {
	var references []reference
	namesFollow := len(words) > 1 && kindNamed(kinds, words[0]) != nil
	if namesFollow && bare && (strings.Contains(words[1], "/") || kindNamed(kinds, words[1]) != nil) {
		namesFollow = false
	}
	if namesFollow {
		for _, name := range words[1:] {
			if strings.Contains(name, "/") {
				return nil, fmt.Errorf("use either KIND NAME... or KIND/NAME...: %q follows the kind %q", name, words[0])
			}
			references = append(references, reference{kind: kindNamed(kinds, words[0]), name: name})
		}
		return references, nil
	}
	for _, word := range words {
		parsed, err := parseReferenceOf(kinds, word)
		if bare && !strings.Contains(word, "/") {
			parsed.everything = true
			parsed.kind, err = findKind(kinds, word)
		}
		if err != nil {
			return nil, err
		}
		references = append(references, parsed)
	}
	return references, nil
}

// parseWanted parses the arguments of a command that shows objects: those of parseReferences with bare. No argument selects all kinds.
func parseWanted(args []string) ([]reference, error) {
	if len(args) > 0 {
		return parseReferences(shownKinds, args, true)
	}
	var wanted []reference
	for _, kind := range shownKinds {
		wanted = append(wanted, reference{kind: kind})
	}
	return wanted, nil
}

// refuseRuns returns an error if a reference is to an object that is executed once.
func refuseRuns(verb string, references ...reference) error {
	for _, ref := range references {
		if ref.kind.once {
			return fmt.Errorf("%s: cannot %s a run, because it is executed once: to create a new run, use berth run STRATEGY", ref, verb)
		}
	}
	return nil
}

// errMissing is the cause of the exit code for an object that does not exist.
var errMissing = errors.New("does not exist")
