// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pattern"
)

// defaultParallel and defaultReversions are the defaults of the API, for actions that were stored before these defaults existed.
const (
	defaultParallel   = 4
	defaultReversions = 3
)

// Strategies returns the names of all strategies that an action runs, sorted and without duplicates.
func Strategies(action *v1alpha1.Action) []string {
	var names []string
	for _, phase := range specs(action) {
		if phase == nil {
			continue
		}
		for _, strategy := range phase.Strategies {
			names = append(names, strategy.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// specs returns the phases of an action in order; an entry is nil if the action does not have the phase.
func specs(action *v1alpha1.Action) []*v1alpha1.PhaseSpec {
	return []*v1alpha1.PhaseSpec{action.Spec.Strategize, action.Spec.Execute, action.Spec.Apply}
}

// Pin returns the parts of an action that are copied into a plan, or the reason why the plan cannot start. strategies are the existing strategies by name.
func Pin(action *v1alpha1.Action, strategies map[string]*v1alpha1.Strategy, given []v1alpha1.RunArgument) (*v1alpha1.PinnedAction, *Blocked) {
	if action.Spec.State == v1alpha1.ActionArchived {
		return nil, &Blocked{Reason: v1alpha1.ReasonActionArchived, Waiting: "for action " + action.Name + " to be active",
			Message: fmt.Sprintf("Action %s is archived. Set its spec.state to Active, or use another action.", action.Name)}
	}
	patterns, blocked := patternsOf(action)
	if blocked != nil {
		return nil, blocked
	}
	defaults, problem := arguments(action.Spec.Arguments, patterns, given)
	if problem != "" {
		return nil, &Blocked{Reason: v1alpha1.ReasonInvalidArgument, Waiting: "to be recreated with valid arguments",
			Message: problem + " Arguments cannot be changed: recreate the plan."}
	}
	pinned := &v1alpha1.PinnedAction{
		ActionUID: action.UID, ActionGeneration: action.Generation, Defaults: defaults,
		MaxParallel:   ptr.Deref(action.Spec.MaxParallel, defaultParallel),
		MaxReversions: ptr.Deref(action.Spec.MaxReversions, defaultReversions),
	}
	for i, phase := range specs(action) {
		if phase == nil {
			continue
		}
		resolved := v1alpha1.PinnedPhase{Name: order[i], Needed: needed(phase), TimeoutSeconds: ptr.Deref(phase.TimeoutSeconds, 0)}
		for _, listed := range phase.Strategies {
			name := listed.Name
			strategy, exists := strategies[name]
			if !exists {
				return nil, &Blocked{Reason: v1alpha1.ReasonStrategyMissing, Waiting: "for strategy " + name,
					Message: fmt.Sprintf("Strategy %s, which phase %s of action %s runs, does not exist in namespace %s. Create it.", name, order[i], action.Name, action.Namespace)}
			}
			resolved.Strategies = append(resolved.Strategies, v1alpha1.StrategyReference{
				Name: name, UID: strategy.UID, Generation: strategy.Generation, Program: Program(strategy),
			})
		}
		pinned.Phases = append(pinned.Phases, resolved)
	}
	return pinned, nil
}

// needed returns how many runs of a phase must succeed.
func needed(phase *v1alpha1.PhaseSpec) int32 {
	switch phase.Success.Policy {
	case v1alpha1.SuccessAny:
		return 1
	case v1alpha1.SuccessAtLeast:
		return ptr.Deref(phase.Success.Count, 1)
	default:
		return int32(len(phase.Strategies))
	}
}

// patternsOf compiles the patterns of all arguments, in order. It returns the first invalid pattern as Blocked.
func patternsOf(action *v1alpha1.Action) (*pattern.Set, *Blocked) {
	texts := make([]string, len(action.Spec.Arguments))
	for i := range action.Spec.Arguments {
		texts[i] = action.Spec.Arguments[i].Pattern
	}
	patterns := pattern.CompileWhole(texts)
	for i, err := range patterns.Errors {
		if err != nil {
			return nil, &Blocked{Reason: v1alpha1.ReasonInvalidPattern, Waiting: "for action " + action.Name + " to have valid patterns",
				Message: fmt.Sprintf("The pattern of argument %s in action %s is invalid: %v. Correct the action.", action.Spec.Arguments[i].Name, action.Name, err)}
		}
	}
	return patterns, nil
}

// arguments returns the default values of the arguments that are not given. problem is a sentence about the first invalid argument, if any.
func arguments(declared []v1alpha1.ActionArgument, patterns *pattern.Set, given []v1alpha1.RunArgument) (defaults []v1alpha1.RunArgument, problem string) {
	for _, argument := range given {
		if !slices.ContainsFunc(declared, func(d v1alpha1.ActionArgument) bool { return d.Name == argument.Name }) {
			return nil, fmt.Sprintf("Argument %s is not declared by the action (%s).", argument.Name, names(declared))
		}
	}
	for i := range declared {
		d := &declared[i]
		at := slices.IndexFunc(given, func(g v1alpha1.RunArgument) bool { return g.Name == d.Name })
		value := ""
		switch {
		case at >= 0:
			value = given[at].Value
		case d.Default != nil:
			value = *d.Default
			defaults = append(defaults, v1alpha1.RunArgument{Name: d.Name, Value: value})
		case d.Presence == v1alpha1.PresenceRequired:
			return nil, fmt.Sprintf("Argument %s is required.", d.Name)
		default:
			continue
		}
		problem := check(d, value)
		if problem == "" && d.Pattern != "" {
			problem = match(patterns, i, d.Pattern, value)
		}
		if problem != "" {
			return nil, fmt.Sprintf("Argument %s %s.", d.Name, problem)
		}
	}
	return defaults, ""
}

func names(declared []v1alpha1.ActionArgument) string {
	if len(declared) == 0 {
		return "it declares none"
	}
	names := make([]string, len(declared))
	for i := range declared {
		names[i] = declared[i].Name
	}
	return strings.Join(names, ", ")
}

// check returns the end of a sentence about what is wrong with a value, such as "must be an integer", or an empty string.
func check(d *v1alpha1.ActionArgument, value string) string {
	switch d.Type {
	case v1alpha1.ArgumentInteger:
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			return "must be an integer"
		}
	case v1alpha1.ArgumentNumber:
		if _, err := strconv.ParseFloat(value, 64); err != nil {
			return "must be a number"
		}
	case v1alpha1.ArgumentBoolean:
		if value != "true" && value != "false" {
			return "must be true or false"
		}
	}
	if len(d.Values) > 0 && !slices.Contains(d.Values, value) {
		return "must be one of " + strings.Join(d.Values, ", ")
	}
	return ""
}

// match returns the end of a sentence about why a value does not match its pattern, or an empty string if it does.
func match(patterns *pattern.Set, i int, text, value string) string {
	switch longest := patterns.MaxText(); {
	case utf8.RuneCountInString(value) > longest:
		return fmt.Sprintf("is longer than %d characters, the limit for the patterns of its action", longest)
	case !patterns.Patterns[i].Match(value):
		return "must match " + text
	default:
		return ""
	}
}
