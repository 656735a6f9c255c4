// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan decides how a Plan goes on: which phase it is in, which runs it wants, and which it does not want any more. It is pure: it does
// no I/O and asks no clock.
//
// A run is on the list in the status before it is created, and keeps a finalizer until its outcome is there, too. So a listed run that does not
// exist was never created, and creating it is safe however often the manager dies in between; its name says which attempt and phase it is for.
package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Desired is what the spec of a Plan asks for.
type Desired struct {
	Name       string
	UID        types.UID
	Generation int64

	Cancelled bool
	Target    v1alpha1.PlanPhase
	// RetryToken and RevertToken ask for something when they are new.
	RetryToken, RevertToken, RevertReason string
	// TTL is how long the plan is kept after it has finished; nil means forever.
	TTL *time.Duration

	// Pinned is what a plan that has not begun takes over when it does; Blocked says why it may not begin.
	Pinned  *v1alpha1.PinnedAction
	Blocked *Blocked
}

// Blocked says why a plan may not begin.
type Blocked struct {
	Reason, Message string
	// Waiting says it in a few words.
	Waiting string
	// Duplicate is the plan that has begun in its place.
	Duplicate *v1alpha1.PlanReference
}

// Run is a StrategyRun that is of the plan, as it is.
type Run struct {
	Name string
	UID  types.UID
	// Outcome is empty while the run has not ended; Message says how it ended.
	Outcome v1alpha1.RunOutcome
	Message string
	// Result is what it has left to others; nil when that is nothing.
	Result *v1alpha1.RunResult
	// SeenAt is when the outcome was seen first, if that was a moment ago.
	SeenAt time.Time
	// Cancelling says that its spec asks for its end already.
	Cancelling bool
	// Stuck says in one word why it does not start.
	Stuck string
	// Kept says that the finalizer of the plan is there.
	Kept bool
	// Taken says that this is an object of somebody else with the name of a run.
	Taken bool
}

// RunRequest asks for a run.
type RunRequest struct {
	Name, Strategy string
	Phase          v1alpha1.PlanPhase
	Attempt        int32
	// Program is the fingerprint of what the plan is pinned to.
	Program string
	// Inputs are what the earlier phases came to.
	Inputs []v1alpha1.PlanResult
}

// Event is something to tell about.
type Event struct {
	Warning         bool
	Reason, Message string
}

// Step is what to do: write Status if it differs, and only when that is acknowledged create, cancel and release runs, all by name.
type Step struct {
	Status  v1alpha1.PlanStatus
	Create  []RunRequest
	Cancel  []string
	Release []string
	Events  []Event
	// Requeue asks to look again after so long, if it is not 0.
	Requeue time.Duration
	// Expires is when the plan is to be deleted, if it is not zero.
	Expires time.Time
}

const (
	// longestHistory bounds the history in status.
	longestHistory = 20
	// mostMoves bounds what happens in one step: through all phases, with a request before each.
	mostMoves = 12
)

// Next decides on what there is. runs are all runs of the plan that exist and either are on its list or have its finalizer; of a listed run that
// is not among them a live look has said that it does not exist.
func Next(desired Desired, record v1alpha1.PlanStatus, runs []Run, now time.Time) Step {
	p := &planner{desired: desired, record: record, now: now, runs: map[string]Run{}}
	p.step.Status = *record.DeepCopy()
	p.status = &p.step.Status
	for _, run := range runs {
		p.runs[run.Name] = run
	}
	if p.status.State == "" {
		p.status.State = v1alpha1.PlanQueued
	}
	if blocked := desired.Blocked; p.status.State == queued && p.status.DuplicateOf == nil && blocked != nil {
		// It stays so, even if the other is deleted one day: what was asked for has been done.
		p.status.DuplicateOf = blocked.Duplicate
	}
	p.observe()
	for range mostMoves {
		if !p.move() {
			break
		}
	}
	p.fill()
	p.endStrays()
	p.release()
	p.conclude()
	p.keepQuiet()
	p.gather()
	return p.step
}

type planner struct {
	desired Desired
	record  v1alpha1.PlanStatus
	// status is that of the step.
	status *v1alpha1.PlanStatus
	step   Step
	runs   map[string]Run
	now    time.Time
	// ending is the row of the table that waits for runs to end.
	ending *row
	// taken names an object of somebody else that has the name of a run.
	taken string
}

// pinned is the phase that the plan is in, or nothing when its action has none.
func (p *planner) pinned() *v1alpha1.PinnedPhase {
	return pinnedPhase(p.status, p.status.CurrentPhase)
}

func pinnedPhase(status *v1alpha1.PlanStatus, phase v1alpha1.PlanPhase) *v1alpha1.PinnedPhase {
	if status.Pinned == nil {
		return nil
	}
	for i := range status.Pinned.Phases {
		if status.Pinned.Phases[i].Name == phase {
			return &status.Pinned.Phases[i]
		}
	}
	return nil
}

// order is the order of the phases.
var order = []v1alpha1.PlanPhase{v1alpha1.PhaseStrategize, v1alpha1.PhaseExecute, v1alpha1.PhaseApply}

func rank(phase v1alpha1.PlanPhase) int {
	return max(slices.Index(order, phase), 0)
}

// after is the phase that follows, or nothing.
func after(phase v1alpha1.PlanPhase) v1alpha1.PlanPhase {
	if phase == v1alpha1.PhaseApply {
		return ""
	}
	return order[rank(phase)+1]
}

// RunName is the name of a run: the same whoever creates it, and another for every attempt.
func RunName(plan string, uid types.UID, attempt int32, phase v1alpha1.PlanPhase, index int) string {
	return fmt.Sprintf("%s-%.8s-%d-%s-%d", plan, uid, attempt, strings.ToLower(string(phase)), index)
}

// conclude says when to look again, what is true and what the plan waits for.
func (p *planner) conclude() {
	s := p.status
	s.ObservedGeneration = p.desired.Generation
	finished := s.State == v1alpha1.PlanApplied || s.State == v1alpha1.PlanCancelled
	switch {
	case !finished:
		s.FinishedAt = nil
	case s.FinishedAt == nil:
		at := metav1.NewMicroTime(p.now)
		s.FinishedAt = &at
	}
	if finished && p.desired.TTL != nil {
		p.step.Expires = s.FinishedAt.Add(*p.desired.TTL)
	}
	if at, limited := p.deadline(); limited && s.State == v1alpha1.PlanProcessing && p.ending == nil {
		p.step.Requeue = max(at.Sub(p.now), time.Millisecond)
	}
	s.Waiting = p.waiting()
	p.conditions()
}

// keepQuiet saves a write that would say nothing but the UIDs of runs: they are written with the next thing that happens.
func (p *planner) keepQuiet() {
	if len(p.record.Runs) != len(p.status.Runs) {
		return
	}
	same := p.status.DeepCopy()
	for i := range same.Runs {
		same.Runs[i].UID = p.record.Runs[i].UID
	}
	if equality.Semantic.DeepEqual(*same, p.record) {
		p.step.Status = *same
	}
}

// note puts a change of phase or state on record, and tells it.
func (p *planner) note(reason, message string) {
	s := p.status
	s.History = append(s.History, v1alpha1.PlanHistoryEntry{
		Time: metav1.NewMicroTime(p.now), Phase: s.CurrentPhase, Attempt: s.Attempt, State: s.State, Reason: reason, Message: truncate(message, longestNote),
	})
	if extra := len(s.History) - longestHistory; extra > 0 {
		s.History = slices.Delete(s.History, 0, extra)
	}
	p.tell(s.State == v1alpha1.PlanErrored || s.State == v1alpha1.PlanConstrained, reason, message)
}

func (p *planner) tell(warning bool, reason, message string) {
	p.step.Events = append(p.step.Events, Event{Warning: warning, Reason: reason, Message: message})
}

// The longest texts that the API takes, in bytes, which are never fewer than characters.
const (
	longestNote    = 512
	longestMessage = 256
	// longestSummary is less than the API takes: a plan holds the results of many runs.
	longestSummary = 256
)

func truncate(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest-3], "") + "..."
}
