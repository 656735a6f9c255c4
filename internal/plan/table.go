// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// signal is a request to a plan, or an event that affects it.
type signal string

const (
	none signal = ""
	// begin means that the requirements of the plan are met.
	begin signal = "begin"
	// approve means that the target phase or an approval of this attempt allows the next phase to start.
	approve signal = "approve"
	// succeed, fail, expire and skip mean that the phase has succeeded, has failed, has exceeded its timeout, or cannot succeed because breakers are open.
	succeed signal = "succeed"
	fail    signal = "fail"
	expire  signal = "expire"
	skip    signal = "skip"
	// retry and resume mean that a user requests a retry; resume is the retry of a phase that has already succeeded. revert and refuse mean that a user
	// requests a revert; refuse is a revert beyond the limit.
	retry  signal = "retry"
	resume signal = "resume"
	revert signal = "revert"
	refuse signal = "refuse"
	// cancel means that a user requests the cancellation.
	cancel signal = "cancel"
)

// row is one transition. It applies if the plan is in one of the states and phases and receives the signal.
type row struct {
	states []v1alpha1.PlanState
	// phases is empty if the row applies to all phases.
	phases []v1alpha1.PlanPhase
	on     signal
	// drain cancels active runs first; the plan stays in its state until all of them have ended.
	drain bool
	// do changes the rest of the status and returns the message for the history and the event.
	do func(*planner) string
	// to is the next state; empty if the state does not change.
	to     v1alpha1.PlanState
	reason string
}

const (
	queued      = v1alpha1.PlanQueued
	processing  = v1alpha1.PlanProcessing
	complete    = v1alpha1.PlanComplete
	applied     = v1alpha1.PlanApplied
	errored     = v1alpha1.PlanErrored
	constrained = v1alpha1.PlanConstrained
	cancelled   = v1alpha1.PlanCancelled

	strategize = v1alpha1.PhaseStrategize
	execute    = v1alpha1.PhaseExecute
	apply      = v1alpha1.PhaseApply
)

type (
	states = []v1alpha1.PlanState
	phases = []v1alpha1.PlanPhase
)

// table lists all transitions of a plan. A signal without a matching row has no effect.
var table []row

func init() { // set in init, because the functions refer to the table
	table = []row{
		{states{queued}, nil, begin, false, (*planner).begin, processing, v1alpha1.ReasonBegun},

		{states{processing}, phases{strategize, execute}, succeed, true, (*planner).succeed, complete, v1alpha1.ReasonPhaseComplete},
		{states{processing}, phases{apply}, succeed, true, (*planner).succeed, applied, v1alpha1.ReasonApplied},
		{states{processing}, nil, fail, true, (*planner).fail, errored, v1alpha1.ReasonPhaseFailed},
		{states{processing}, nil, expire, true, (*planner).expire, errored, v1alpha1.ReasonTimedOut},
		{states{processing}, nil, skip, true, (*planner).skip, constrained, v1alpha1.ReasonCircuitOpen},

		{states{complete}, phases{strategize, execute}, approve, false, (*planner).advance, processing, v1alpha1.ReasonApproved},

		{states{processing, errored, constrained}, nil, retry, true, (*planner).retry, processing, v1alpha1.ReasonRetried},
		{states{complete, applied}, nil, retry, false, (*planner).ignoreRetry, "", v1alpha1.ReasonRequestIgnored},
		{states{constrained}, phases{strategize, execute}, resume, false, (*planner).resume, complete, v1alpha1.ReasonResumed},
		{states{constrained}, phases{apply}, resume, false, (*planner).resume, applied, v1alpha1.ReasonResumed},

		{states{processing, complete, errored, constrained}, phases{execute}, revert, true, (*planner).revert, processing, v1alpha1.ReasonReverted},
		{states{processing, applied, errored, constrained}, phases{apply}, revert, true, (*planner).revert, processing, v1alpha1.ReasonReverted},
		{states{errored, constrained}, phases{strategize}, revert, true, (*planner).revert, processing, v1alpha1.ReasonReverted},
		{states{processing, complete}, phases{strategize}, revert, false, (*planner).ignoreRevert, "", v1alpha1.ReasonRequestIgnored},

		{states{processing, complete, errored, constrained}, phases{execute}, refuse, true, (*planner).refuse, constrained, v1alpha1.ReasonReversionLimit},
		{states{processing, applied, errored, constrained}, phases{apply}, refuse, true, (*planner).refuse, constrained, v1alpha1.ReasonReversionLimit},
		{states{errored, constrained}, phases{strategize}, refuse, true, (*planner).refuse, constrained, v1alpha1.ReasonReversionLimit},
		{states{processing, complete}, phases{strategize}, refuse, false, (*planner).ignoreRevert, "", v1alpha1.ReasonRequestIgnored},

		{states{queued, processing, complete, errored, constrained}, nil, cancel, true, (*planner).cancel, cancelled, v1alpha1.ReasonCancelled},
	}
}

// find returns the row for the state, phase and signal, or nil.
func find(state v1alpha1.PlanState, phase v1alpha1.PlanPhase, on signal) *row {
	for i := range table {
		r := &table[i]
		if r.on == on && slices.Contains(r.states, state) && (len(r.phases) == 0 || slices.Contains(r.phases, phase)) {
			return r
		}
	}
	return nil
}

// signal returns the most urgent request or event.
func (p *planner) signal() signal {
	s, d := p.status, p.desired
	switch {
	case d.Cancelled:
		return cancel
	case s.State == queued:
		return p.toBegin()
	case s.State == cancelled:
		return none
	case d.RevertToken != "" && d.RevertToken != s.ObservedRevertToken:
		return p.toRevert()
	case d.RetryToken != "" && d.RetryToken != s.ObservedRetryToken:
		return p.toRetry()
	case s.State == processing:
		return p.verdict()
	case s.State == complete && after(s.CurrentPhase) != "" && approved(d.Target, d.Approval, s.Attempt, after(s.CurrentPhase)):
		return approve
	default:
		return none
	}
}

// toBegin returns the signal for a plan that has not started.
func (p *planner) toBegin() signal {
	if p.desired.Pinned == nil || p.desired.Blocked != nil || p.status.DuplicateOf != nil {
		return none
	}
	return begin
}

// toRevert returns the signal for a request to revert.
func (p *planner) toRevert() signal {
	if p.status.Reversions >= p.status.Pinned.MaxReversions {
		return refuse
	}
	return revert
}

// toRetry returns the signal for a request to retry.
func (p *planner) toRetry() signal {
	if p.status.State == constrained && slices.Contains(p.status.Completed, p.status.CurrentPhase) {
		return resume
	}
	return retry
}

// move performs one transition. It returns false if there is none, or if runs have to end first.
func (p *planner) move() bool {
	on := p.signal()
	if on == none {
		return false
	}
	r := find(p.status.State, p.status.CurrentPhase, on)
	if r == nil {
		return false
	}
	if r.drain && !p.drained() {
		p.ending = r
		return false
	}
	if r.drain {
		p.settle()
	}
	message := r.do(p)
	if r.to == "" {
		p.tell(true, r.reason, message)
		return true
	}
	p.status.State = r.to
	p.note(r.reason, message)
	return true
}

func (p *planner) begin() string {
	s := p.status
	s.Pinned = p.desired.Pinned.DeepCopy()
	s.Attempt = 1
	// Tokens that were set before the start are not requests.
	s.ObservedRetryToken, s.ObservedRevertToken = p.desired.RetryToken, p.desired.RevertToken
	return p.enter(strategize)
}

// enter starts a phase. fill lists the runs of the phase after the last transition of the step.
func (p *planner) enter(phase v1alpha1.PlanPhase) string {
	s := p.status
	started := metav1.NewMicroTime(p.now)
	s.CurrentPhase, s.PhaseStartTime, s.Runs = phase, &started, nil
	return fmt.Sprintf("%s started, attempt %d.", phase, s.Attempt)
}

func (p *planner) advance() string { return p.enter(after(p.status.CurrentPhase)) }

func (p *planner) succeed() string {
	s := p.status
	s.Completed = append(s.Completed, s.CurrentPhase)
	if p.pinned() == nil {
		return fmt.Sprintf("%s has no runs.", s.CurrentPhase)
	}
	return fmt.Sprintf("%s succeeded.", s.CurrentPhase)
}

func (p *planner) fail() string {
	return fmt.Sprintf("%s failed: %s.", p.status.CurrentPhase, p.failures())
}

func (p *planner) expire() string {
	return fmt.Sprintf("%s exceeded its timeout of %d seconds.", p.status.CurrentPhase, p.pinned().TimeoutSeconds)
}

func (p *planner) skip() string {
	return fmt.Sprintf("%s cannot succeed, because the breakers of these strategies are open: %s. Fix the cause, reset the strategies, then retry.",
		p.status.CurrentPhase, strings.Join(p.strategiesWith(v1alpha1.OutcomeSkipped), ", "))
}

func (p *planner) retry() string {
	p.ignoreResults()
	s := p.status
	s.ObservedRetryToken = p.desired.RetryToken
	s.Attempt++
	return p.enter(s.CurrentPhase)
}

func (p *planner) ignoreRetry() string {
	p.status.ObservedRetryToken = p.desired.RetryToken
	return fmt.Sprintf("%s succeeded, so there is nothing to retry.", p.status.CurrentPhase)
}

func (p *planner) resume() string {
	p.status.ObservedRetryToken = p.desired.RetryToken
	return fmt.Sprintf("%s succeeded before the revert was requested, so it is complete again.", p.status.CurrentPhase)
}

func (p *planner) revert() string {
	p.ignoreResults()
	s := p.status
	from := s.CurrentPhase
	// The revert includes a retry that was requested at the same time.
	s.ObservedRevertToken, s.ObservedRetryToken = p.desired.RevertToken, cmp.Or(p.desired.RetryToken, s.ObservedRetryToken)
	s.Attempt++
	s.Reversions++
	s.Completed, s.Results = nil, nil
	message := fmt.Sprintf("Reverted from %s. %s", from, p.enter(strategize))
	if p.desired.RevertReason != "" {
		message += " " + p.desired.RevertReason
	}
	return message
}

func (p *planner) ignoreRevert() string {
	p.status.ObservedRevertToken = p.desired.RevertToken
	return "Phase Strategize can be reverted only after it failed."
}

func (p *planner) refuse() string {
	p.status.ObservedRevertToken = p.desired.RevertToken
	return fmt.Sprintf("The plan was reverted %d times, the limit of its action. Cancel the plan, or retry to continue from the current phase.", p.status.Reversions)
}

func (p *planner) cancel() string { return "The plan was cancelled." }
