// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"maps"
	"slices"
	"strconv"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// incarnationVariable and resumedVariable are the environment variables that tell a program with a session which start this is, and whether an earlier start of
// the session has run ("true" or "false").
const (
	incarnationVariable = "BERTH_INCARNATION"
	resumedVariable     = "BERTH_RESUMED"
)

// preparePrograms sets the commands before their variables are expanded, and the process of the next start. It blocks the start if either command, of which only
// the decision knows the next one, cannot be executed with its variables.
func (v *scope) preparePrograms(variables []variable) {
	v.environment, v.command, v.resumeCommand = variables, v.start.Process.Command, v.spec().Process.ResumeCommand
	starts := []v1alpha1.SessionStart{v1alpha1.SessionNew}
	if len(v.resumeCommand) > 0 {
		starts = []v1alpha1.SessionStart{v1alpha1.SessionResumed, v1alpha1.SessionNew}
	}
	for _, how := range starts {
		if v.start.Process, v.start.Blocked = v.program(how, v.start.Process.Incarnation); v.start.Blocked != nil {
			return
		}
	}
}

// program returns the process of an incarnation that is started in the given way, with its variables expanded, or why no program can be executed like that.
func (v *scope) program(how v1alpha1.SessionStart, incarnation int64) (runtime.Process, *lifecycle.Blocked) {
	process, field := v.start.Process, "command"
	process.Incarnation, process.Command = incarnation, v.command
	variables := maps.Clone(v.start.Variables)
	if v.traits.SessionID != "" {
		if variables == nil {
			variables = map[string]string{}
		}
		resumed := how == v1alpha1.SessionResumed
		variables[incarnationVariable], variables[resumedVariable] = strconv.FormatInt(incarnation, 10), strconv.FormatBool(resumed)
		if resumed && len(v.resumeCommand) > 0 {
			process.Command, field = v.resumeCommand, "resumeCommand"
		}
	}
	env := expandEnvironment(v.environment, variables)
	process.Env, process.Open = env.list, slices.Sorted(maps.Keys(variables))
	var blocked *lifecycle.Blocked
	process.Command, blocked = env.command("spec.process."+field, process.Command)
	return process, blocked
}
