// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "github.com/berth-dev/berth/api/v1alpha1"

// CheckArguments returns a sentence about the first argument that is invalid for the action, or an empty string. The controller makes the same check when the
// plan starts. CheckArguments does not report invalid patterns; see CheckPatterns.
func CheckArguments(action *v1alpha1.Action, given []v1alpha1.RunArgument) string {
	patterns, blocked := patternsOf(action)
	if blocked != nil {
		return ""
	}
	_, problem := arguments(action.Spec.Arguments, patterns, given)
	return problem
}

// CheckPatterns returns a message about the first invalid pattern of the action, or an empty string.
func CheckPatterns(action *v1alpha1.Action) string {
	if _, blocked := patternsOf(action); blocked != nil {
		return blocked.Message
	}
	return ""
}
