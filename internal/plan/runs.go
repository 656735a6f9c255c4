// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
)

// observe records the outcomes of the listed runs.
func (p *planner) observe() {
	for i := range p.status.Runs {
		listed := &p.status.Runs[i]
		if listed.Outcome != "" {
			continue
		}
		run, exists := p.runs[listed.Name]
		switch {
		case run.Taken:
			p.taken = listed.Name
			listed.Outcome, listed.Message = v1alpha1.OutcomeFailed, "An object that does not belong to this plan already has the name of this run."
		case exists:
			listed.UID, listed.Outcome, listed.Message = run.UID, run.Outcome, conditions.Truncate(run.Message, longestMessage)
			if run.Outcome == "" {
				listed.Message = ""
			} else {
				listed.Result = shorten(run.Result)
			}
		case listed.UID != "":
			// The run no longer exists: its finalizer was removed by force.
			listed.Outcome, listed.Message = v1alpha1.OutcomeCancelled, "The run was deleted."
		}
	}
}

// strays returns the runs of this plan that are not listed. They belong to an earlier attempt and were created by a manager that had not read the newer attempt
// yet.
func (p *planner) strays() []Run {
	var strays []Run
	for _, name := range slices.Sorted(maps.Keys(p.runs)) {
		run := p.runs[name]
		if run.Kept && !run.Taken && p.listed(name) == nil {
			strays = append(strays, run)
		}
	}
	return strays
}

func (p *planner) listed(name string) *v1alpha1.PlanRun {
	for i := range p.status.Runs {
		if p.status.Runs[i].Name == name {
			return &p.status.Runs[i]
		}
	}
	return nil
}

// verdict returns the result of the phase as soon as the outcomes so far determine it.
func (p *planner) verdict() signal {
	phase := p.pinned()
	if phase == nil {
		return succeed
	}
	count := map[v1alpha1.RunOutcome]int{}
	for _, run := range p.status.Runs {
		count[run.Outcome]++
	}
	total, needed := len(phase.Strategies), int(phase.Needed)
	skipped, cancelled := count[v1alpha1.OutcomeSkipped], count[v1alpha1.OutcomeCancelled]
	failed := count[v1alpha1.OutcomeFailed] + count[v1alpha1.OutcomeTimedOut]
	left, limited := p.timeLeft()
	switch {
	case count[v1alpha1.OutcomeSucceeded] >= needed:
		return succeed
	case skipped > 0 && total-failed-cancelled-skipped < needed && total-failed >= needed:
		// A cancelled run does not count as a failure here: Berth cancels the remaining runs when a skipped run makes success impossible.
		return skip
	case total-failed-cancelled-skipped < needed && limited && left <= 0 && failed+skipped == 0:
		return expire // runs were cancelled because of the timeout
	case total-failed-cancelled-skipped < needed:
		return fail
	case limited && left <= 0:
		return expire
	default:
		return none
	}
}

// timeLeft returns how long the phase may still take. It returns false if the phase has no timeout.
func (p *planner) timeLeft() (time.Duration, bool) {
	phase, started := p.pinned(), p.status.PhaseStartTime
	if phase == nil || phase.TimeoutSeconds == 0 || started == nil {
		return 0, false
	}
	return time.Duration(phase.TimeoutSeconds)*time.Second - p.desired.Timeline.Since(started.Time, p.now), true
}

// drained requests the cancellation of the listed runs that are active. It reports whether no run of the plan is active.
func (p *planner) drained() bool {
	living := 0
	for _, listed := range p.status.Runs {
		run, exists := p.runs[listed.Name]
		if listed.Outcome != "" || !exists {
			continue
		}
		living++
		if !run.Cancelling && !slices.Contains(p.step.Cancel, run.Name) {
			p.step.Cancel = append(p.step.Cancel, run.Name)
		}
	}
	for _, run := range p.strays() {
		if run.Outcome == "" {
			living++
		}
	}
	return living == 0
}

// settle removes from the list the runs that were never created, and keeps the outcomes of the other runs as results.
func (p *planner) settle() {
	s := p.status
	s.Runs = slices.DeleteFunc(s.Runs, func(run v1alpha1.PlanRun) bool { return run.Outcome == "" })
	if len(s.Runs) == 0 {
		s.Runs = nil
		return
	}
	s.Results = slices.DeleteFunc(s.Results, func(r v1alpha1.PlanResult) bool { return r.Phase == s.CurrentPhase })
	for _, run := range s.Runs {
		s.Results = append(s.Results, v1alpha1.PlanResult{
			Run: run.Name, Strategy: run.Strategy, Phase: s.CurrentPhase, Attempt: s.Attempt, Outcome: run.Outcome, Message: run.Message,
			Result: run.Result.DeepCopy(),
		})
	}
}

// fill lists as many runs of the phase as may be active, and requests the creation of those that do not exist.
func (p *planner) fill() {
	phase := p.pinned()
	if p.status.State != v1alpha1.PlanProcessing || p.ending != nil || phase == nil {
		return
	}
	s := p.status
	for i := len(s.Runs); i < len(phase.Strategies) && p.living() < int(s.Pinned.MaxParallel); i++ {
		s.Runs = append(s.Runs, v1alpha1.PlanRun{
			Name: nameOfRun(p.desired.Name, p.desired.UID, s.Attempt, s.CurrentPhase, i), Strategy: phase.Strategies[i].Name,
		})
	}
	for _, listed := range s.Runs {
		if _, exists := p.runs[listed.Name]; exists || listed.Outcome != "" {
			continue
		}
		p.step.Create = append(p.step.Create, RunRequest{
			Name: listed.Name, Strategy: listed.Strategy, Phase: s.CurrentPhase, Attempt: s.Attempt,
			Program: programOf(phase, listed.Strategy), Inputs: p.inputs(),
		})
	}
}

// programOf returns the pinned fingerprint of the program of a strategy.
func programOf(phase *v1alpha1.PinnedPhase, strategy string) string {
	for i := range phase.Strategies {
		if phase.Strategies[i].Name == strategy {
			return phase.Strategies[i].Program
		}
	}
	return ""
}

// inputs returns the results of the phases before the current one.
func (p *planner) inputs() []v1alpha1.PlanResult {
	var inputs []v1alpha1.PlanResult
	for i := range p.status.Results {
		if result := &p.status.Results[i]; rank(result.Phase) < rank(p.status.CurrentPhase) {
			inputs = append(inputs, *result.DeepCopy())
		}
	}
	return inputs
}

// shorten returns a copy of a result whose summary fits into the status of a plan.
func shorten(result *v1alpha1.RunResult) *v1alpha1.RunResult {
	if result == nil {
		return nil
	}
	short := result.DeepCopy()
	short.Summary = conditions.Truncate(short.Summary, longestSummary)
	return short
}

// living returns the number of runs that are active or about to start.
func (p *planner) living() int {
	living := 0
	for _, listed := range p.status.Runs {
		if listed.Outcome == "" {
			living++
		}
	}
	for _, run := range p.strays() {
		if run.Outcome == "" {
			living++
		}
	}
	return living
}

// endStrays cancels the runs that are not listed.
func (p *planner) endStrays() {
	for _, run := range p.strays() {
		if run.Outcome == "" && !run.Cancelling {
			p.step.Cancel = append(p.step.Cancel, run.Name)
		}
	}
}

// release requests the removal of the finalizer from runs whose outcome is recorded, and from finished runs that are not listed.
func (p *planner) release() {
	for _, listed := range p.status.Runs {
		if run := p.runs[listed.Name]; listed.Outcome != "" && run.Kept && !run.Taken {
			p.step.Release = append(p.step.Release, run.Name)
		}
	}
	for _, run := range p.strays() {
		if run.Outcome == "" {
			continue
		}
		p.step.Release = append(p.step.Release, run.Name)
		known := slices.ContainsFunc(p.record.Runs, func(r v1alpha1.PlanRun) bool { return r.Name == run.Name }) ||
			slices.ContainsFunc(p.status.Results, func(r v1alpha1.PlanResult) bool { return r.Run == run.Name })
		if !known && run.Outcome != v1alpha1.OutcomeCancelled {
			p.tell(true, v1alpha1.ReasonResultIgnored, fmt.Sprintf("Ignored run %s of an earlier attempt, which ended with outcome %s.", run.Name, run.Outcome))
		}
	}
}

// ignoreResults emits an event that names the discarded results of the abandoned attempt.
func (p *planner) ignoreResults() {
	if p.status.State != v1alpha1.PlanProcessing {
		return
	}
	var names []string
	for _, run := range p.status.Runs {
		if run.Outcome != "" && run.Outcome != v1alpha1.OutcomeCancelled {
			names = append(names, fmt.Sprintf("%s (%s)", run.Name, run.Outcome))
		}
	}
	if len(names) > 0 {
		p.tell(true, v1alpha1.ReasonResultIgnored, fmt.Sprintf("Abandoned attempt %d; ignored results: %s.", p.status.Attempt, strings.Join(names, ", ")))
	}
}

// strategiesWith returns the names of the strategies whose listed runs have the given outcome.
func (p *planner) strategiesWith(outcome v1alpha1.RunOutcome) []string {
	var names []string
	for _, run := range p.status.Runs {
		if run.Outcome == outcome {
			names = append(names, run.Strategy)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// failures describes which strategies did not succeed, and with which outcomes.
func (p *planner) failures() string {
	var parts []string
	for _, outcome := range []v1alpha1.RunOutcome{v1alpha1.OutcomeFailed, v1alpha1.OutcomeTimedOut, v1alpha1.OutcomeSkipped, v1alpha1.OutcomeCancelled} {
		if names := p.strategiesWith(outcome); len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", strings.Join(names, ", "), outcome))
		}
	}
	return cmp.Or(strings.Join(parts, "; "), "no run succeeded")
}
