// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "github.com/berth-dev/berth/api/v1alpha1"

// CheckArguments says which argument the action would not take, or nothing. The controller decides the same when the plan begins.
func CheckArguments(action *v1alpha1.Action, given []v1alpha1.RunArgument) string {
	_, problem := arguments(action.Spec.Arguments, given)
	return problem
}
