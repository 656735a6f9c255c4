// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan decides how a Plan proceeds: its current phase, the runs that it needs, and the runs that it no longer needs. It is pure: it performs no I/O and
// does not read the clock.
//
// A run is listed in the status before it is created, and keeps a finalizer until its outcome is in the status. A listed run that does not exist was therefore
// never created, and creating it is safe however often the manager crashes in between. The name of a run identifies its attempt and phase.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/elapsed"
)

// Desired is the state that the spec of a Plan requests.
type Desired struct {
	Name       string
	UID        types.UID
	Generation int64

	Cancelled bool
	Target    v1alpha1.PlanPhase
	// Approval approves phases of one attempt; nil if there is none.
	Approval *v1alpha1.PlanApproval
	// RetryToken and RevertToken are requests if they differ from the observed tokens.
	RetryToken, RevertToken, RevertReason string
	// TTL is how long the plan is kept after it has finished; nil keeps it forever.
	TTL *time.Duration
	// Timeline converts recorded times to elapsed time.
	Timeline elapsed.Timeline

	// Pinned is what a plan copies from its action when it starts. Blocked is why it may not start or, with the reason Restored, not continue.
	Pinned  *v1alpha1.PinnedAction
	Blocked *Blocked
}

// Blocked is the reason why a plan may not start.
type Blocked struct {
	Reason, Message string
	// Waiting is a short form of Message.
	Waiting string
	// Duplicate is the plan with the same key that has started instead.
	Duplicate *v1alpha1.PlanReference
}

// Run is the current state of a StrategyRun of the plan.
type Run struct {
	Name string
	UID  types.UID
	// Outcome is empty while the run has not ended. Message explains the outcome.
	Outcome v1alpha1.RunOutcome
	Message string
	// Result is what the run reported, or nil.
	Result *v1alpha1.RunResult
	// SeenAt is when the outcome was first observed; zero if the run has not ended, or ended so long ago (8 s) that it need not wait for others.
	SeenAt time.Time
	// Cancelling reports whether the spec of the run already requests its cancellation.
	Cancelling bool
	// Stuck is the reason of the condition Stalled; empty if the run is not stalled or has ended.
	Stuck string
	// Kept reports whether the run has the finalizer of the plan.
	Kept bool
	// Taken reports whether the object has the name of a run but does not belong to the plan.
	Taken bool
}

// RunRequest requests the creation of a run.
type RunRequest struct {
	Name, Strategy string
	Phase          v1alpha1.PlanPhase
	Attempt        int32
	// Program is the fingerprint of the program that the plan is pinned to.
	Program string
	// Inputs are the results of the earlier phases.
	Inputs []v1alpha1.PlanResult
}

// Event is an event to emit.
type Event struct {
	Warning         bool
	Reason, Message string
}

// Step is what to do next: write Status if it differs from the record; after that write has succeeded, create, cancel and release runs. Runs are identified by
// name.
type Step struct {
	Status  v1alpha1.PlanStatus
	Create  []RunRequest
	Cancel  []string
	Release []string
	Events  []Event
	// Requeue is the time until Next must be called again; 0 means that it need not be.
	Requeue time.Duration
	// Expires is when the plan must be deleted; zero means never.
	Expires time.Time
}

const (
	// longestHistory is the maximum number of history entries in the status.
	longestHistory = 20
	// mostMoves bounds the transitions in one step: through all phases, with a request before each.
	mostMoves = 12
)

// Next decides on the next step. runs are all existing runs of the plan that are listed in its status or have its finalizer. A listed run may be missing from
// runs only if a read from the API server has confirmed that it does not exist.
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
		// This plan remains a duplicate even if the other plan is deleted later, because the other plan has carried out the request.
		p.status.DuplicateOf = blocked.Duplicate
	}
	if !p.restored() {
		p.observe()
		for range mostMoves {
			if !p.move() {
				break
			}
		}
		p.fill()
		p.endStrays()
		p.release()
	}
	p.conclude()
	p.keepQuiet()
	p.gather()
	return p.step
}

type planner struct {
	desired Desired
	record  v1alpha1.PlanStatus
	// status points to step.Status.
	status *v1alpha1.PlanStatus
	step   Step
	runs   map[string]Run
	now    time.Time
	// ending is the transition that waits for runs to end.
	ending *row
	// taken is the name of an object that has the name of a run but does not belong to the plan.
	taken string
}

// restored reports whether the plan is a copy of an earlier plan. Such a plan does nothing, even if its status was restored too.
func (p *planner) restored() bool {
	return p.desired.Blocked != nil && p.desired.Blocked.Reason == v1alpha1.ReasonRestored
}

// pinned returns the pinned definition of the current phase, or nil if the action does not define that phase.
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

// order lists the phases in the order of execution.
var order = []v1alpha1.PlanPhase{v1alpha1.PhaseStrategize, v1alpha1.PhaseExecute, v1alpha1.PhaseApply}

func rank(phase v1alpha1.PlanPhase) int {
	return max(slices.Index(order, phase), 0)
}

// after returns the phase that follows, or an empty string for the last phase.
func after(phase v1alpha1.PlanPhase) v1alpha1.PlanPhase {
	if phase == v1alpha1.PhaseApply {
		return ""
	}
	return order[rank(phase)+1]
}

// Awaited returns the phase that waits for approval in this status, if the spec approves neither that phase nor a later one. It returns an empty string if
// no phase waits.
func Awaited(spec *v1alpha1.PlanSpec, status *v1alpha1.PlanStatus) v1alpha1.PlanPhase {
	next := after(status.CurrentPhase)
	if status.State != complete || next == "" || approved(spec.TargetPhase, spec.Approval, status.Attempt, next) {
		return ""
	}
	return next
}

// approved reports whether a phase may start in an attempt: the target phase permits it in every attempt, an approval only in the attempt that it names.
func approved(target v1alpha1.PlanPhase, approval *v1alpha1.PlanApproval, attempt int32, phase v1alpha1.PlanPhase) bool {
	if rank(phase) <= rank(target) {
		return true
	}
	return approval != nil && approval.Attempt == attempt && rank(approval.Phase) <= rank(phase) && rank(phase) <= rank(cmp.Or(approval.ToPhase, approval.Phase))
}

// nameOfRun returns the name of a run. It is deterministic, and differs for every attempt.
func nameOfRun(plan string, uid types.UID, attempt int32, phase v1alpha1.PlanPhase, index int) string {
	return fmt.Sprintf("%s-%.8s-%d-%s-%d", plan, uid, attempt, strings.ToLower(string(phase)), index)
}

// conclude sets the time of the next call, the conditions, and what the plan waits for.
func (p *planner) conclude() {
	s := p.status
	s.ObservedGeneration = p.desired.Generation
	finished := s.State == v1alpha1.PlanApplied || s.State == v1alpha1.PlanCancelled
	switch {
	case !finished:
		s.FinishTime = nil
	case s.FinishTime == nil:
		at := metav1.NewMicroTime(p.now)
		s.FinishTime = &at
	}
	if finished && p.desired.TTL != nil {
		p.step.Expires = s.FinishTime.Add(*p.desired.TTL)
	}
	if left, limited := p.timeLeft(); limited && s.State == v1alpha1.PlanProcessing && p.ending == nil && !p.restored() {
		p.step.Requeue = max(left, time.Millisecond)
	}
	p.describe()
	p.conditions()
}

// keepQuiet avoids a write that would only record the UIDs of runs. The next write records them.
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

// note records a change of phase or state in the history and emits an event.
func (p *planner) note(reason, message string) {
	s := p.status
	s.History = append(s.History, v1alpha1.PlanHistoryEntry{
		Time: metav1.NewMicroTime(p.now), Phase: s.CurrentPhase, Attempt: s.Attempt, State: s.State, Reason: reason, Message: conditions.Truncate(message, longestNote),
	})
	if extra := len(s.History) - longestHistory; extra > 0 {
		s.History = slices.Delete(s.History, 0, extra)
	}
	p.tell(s.State == v1alpha1.PlanErrored || s.State == v1alpha1.PlanConstrained, reason, message)
}

func (p *planner) tell(warning bool, reason, message string) {
	p.step.Events = append(p.step.Events, Event{Warning: warning, Reason: reason, Message: message})
}

// Maximum lengths of texts, in bytes. The API limits characters, of which there are never more than bytes.
const (
	longestNote    = 512
	longestMessage = 256
	// longestSummary is lower than the limit of the API, because a plan contains the results of many runs.
	longestSummary = 256
)
