// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "github.com/berth-dev/berth/api/v1alpha1"

// CheckArguments says which argument the action would not take, or nothing. The controller decides the same when the plan begins. It leaves patterns that
// cannot be used to CheckPatterns.
func CheckArguments(action *v1alpha1.Action, given []v1alpha1.RunArgument) string {
	patterns, blocked := patternsOf(action)
	if blocked != nil {
		return ""
	}
	_, problem := arguments(action.Spec.Arguments, patterns, given)
	return problem
}

// CheckPatterns says which pattern of the action cannot be used, or nothing.
func CheckPatterns(action *v1alpha1.Action) string {
	if _, blocked := patternsOf(action); blocked != nil {
		return blocked.Message
	}
	return ""
}
