// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategyrun

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/runtime"
)

// longestSummary and longestProblem are the maximum lengths of texts in the API. They count bytes here and characters in the API, which is safe because a
// text never has more characters than bytes.
const (
	longestSummary = 1024
	longestProblem = 512
	// greatestSize is the maximum of result.size, in bytes.
	greatestSize = 1 << 50
)

// inputVariables maps a phase to the variable that names the file with its results.
var inputVariables = map[v1alpha1.PlanPhase]string{
	v1alpha1.PhaseStrategize: v1alpha1.VariableResultsStrategize,
	v1alpha1.PhaseExecute:    v1alpha1.VariableResultsExecute,
}

// DeriveStatus implements process.StatusDeriver: it sets the outcome, and when the run has ended. An outcome never changes.
func (k *Kind) DeriveStatus(object, base process.Object, step lifecycle.Step, now time.Time) []lifecycle.Event {
	run := runOf(object)
	if runOf(base).Status.Outcome != "" {
		return nil
	}
	run.Status.Outcome = step.Outcome
	if step.Outcome == v1alpha1.OutcomeSkipped && run.Status.Pinned != nil {
		run.Status.Pinned.Process = nil // the run executes no program
	}
	k.collect(run, step)
	if run.Status.Outcome == "" {
		return nil
	}
	finished := metav1.NewMicroTime(now)
	if end := run.Status.LastExit; end != nil && end.FinishTime != nil {
		finished = *end.FinishTime
	}
	run.Status.FinishTime = &finished
	return nil
}

// setResultPaths sets the variables with the paths for the results of the run, and passes the results of the earlier phases of the plan to the run. It does
// nothing if the backend has no place for results.
func (k *Kind) setResultPaths(run *v1alpha1.StrategyRun, start *process.StartSpec) error {
	keeper := k.keeper(run)
	if keeper == nil {
		return nil
	}
	place := keeper.Place(run.UID)
	start.Process.Results = true
	start.Variables[v1alpha1.VariableResultFile], start.Variables[v1alpha1.VariableArtifacts] = place.File, place.Artifacts
	inputs := map[string][]byte{}
	for i := range run.Spec.Inputs {
		input := &run.Spec.Inputs[i]
		variable, known := inputVariables[input.Phase]
		if !known {
			continue // Apply is the last phase, so its results are not an input
		}
		line, err := json.Marshal(input)
		if err != nil {
			return fmt.Errorf("encode the result of run %s: %w", input.Run, err)
		}
		name := strings.ToLower(string(input.Phase)) + ".jsonl"
		inputs[name] = append(append(inputs[name], line...), '\n')
		start.Variables[variable] = path.Join(place.Inputs, name)
	}
	start.Process.Inputs = inputs
	return nil
}

// collect records when the program was started. Once the run has its outcome, collect also records its results, in the same write as the outcome.
func (k *Kind) collect(run *v1alpha1.StrategyRun, step lifecycle.Step) {
	for _, known := range []*v1alpha1.ProcessReference{run.Status.Process, step.Ended} {
		if known != nil && known.StartTime != nil && run.Status.StartTime == nil {
			run.Status.StartTime = known.StartTime.DeepCopy()
		}
	}
	if run.Status.Outcome == "" || !started(run) {
		return
	}
	if keeper := k.keeper(run); keeper != nil {
		found := keeper.Results(run.UID)
		run.Status.Result = resultOf(cmp.Or(found.Paths, keeper.Place(run.UID)), found)
	}
}

// resultOf converts the results of a run for its status. It returns nil if there are none.
func resultOf(place runtime.ResultPaths, found runtime.Results) *v1alpha1.RunResult {
	if !found.File && !found.Artifacts && found.Problem == "" {
		return nil
	}
	result := &v1alpha1.RunResult{Summary: summary(found.Head, found.Size), Problem: printable.Shorten(oneLine(found.Problem), longestProblem)}
	if found.File {
		result.Size, result.SHA256 = min(found.Size, greatestSize), found.SHA256
	}
	if found.File && !place.Private {
		result.File = place.File
	}
	if found.Artifacts && !place.Private {
		result.Artifacts = place.Artifacts
	}
	return result
}

// summary returns the beginning of the result file as one line. size is the size of the whole file in bytes.
func summary(head []byte, size int64) string {
	text := oneLine(string(bytes.ToValidUTF8(head, nil)))
	if goesOn := int64(len(head)) < size; goesOn && text != "" && len(text) <= longestSummary-len(more) {
		return text + more
	}
	return printable.Shorten(text, longestSummary)
}

// more marks truncated text, as printable.Shorten does.
const more = "…"

// oneLine removes unprintable characters, which could corrupt a terminal or a table, and replaces each sequence of white space with one space.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		default:
			return r
		}
	}, text)
	return strings.Join(strings.Fields(text), " ")
}
