// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/facts"
)

// neverStarted is the exit message of an incarnation that was recorded but never started, because it was no longer needed.
const neverStarted = "The incarnation was recorded but never started."

// absorbEnd records the exit of the current incarnation, once, and plans the next start.
func (m *machine) absorbEnd(current *facts.Incarnation) {
	// These conditions describe a running process.
	m.set(v1alpha1.ConditionDriftDetected, false, v1alpha1.ReasonUpToDate, "")
	meta.RemoveStatusCondition(&m.status.Conditions, v1alpha1.ConditionContained)
	if m.status.Incarnation == 0 {
		return
	}
	if m.endRecorded() {
		m.status.Stopping = nil // no stop is in progress anymore
		return
	}
	asked := m.askedToEnd()
	switch {
	case current == nil && m.status.Process == nil:
		// The incarnation was recorded but not started. If it is still needed, decideStart decides when to start it; if not, its end is recorded here.
		if m.desired.State != DesiredRunning || asked {
			m.repeatSessionStart()
			m.recordEnd(v1alpha1.ProcessExit{Reason: v1alpha1.ReasonStopped, Message: neverStarted})
		}
	case current == nil && m.lostHost != "":
		m.absorbExit(facts.Exit{Lost: true, Message: fmt.Sprintf("host %q was declared lost", m.lostHost)}, asked)
	case current == nil:
		m.absorbExit(facts.Exit{}, asked)
	case current.Phase == facts.Failed:
		m.absorbFailedStart(*current)
	default:
		exit := facts.Exit{}
		if current.Exit != nil {
			exit = *current.Exit
		}
		if m.status.Process == nil && !current.StartedAt.IsZero() {
			seen := *current
			seen.Phase = facts.Running
			m.observeProcess(seen)
		}
		m.absorbExit(exit, asked)
	}
}

func (m *machine) endRecorded() bool {
	return m.status.LastExit != nil && m.status.LastExit.Incarnation >= m.status.Incarnation
}

func (m *machine) askedToEnd() bool {
	stopping := m.status.Stopping
	return stopping != nil && stopping.Incarnation == m.status.Incarnation
}

func (m *machine) absorbExit(exit facts.Exit, asked bool) {
	unhealthy := asked && exits[m.status.Stopping.Reason].unhealthy
	end := v1alpha1.ProcessExit{Signal: exit.Signal}
	finished := m.now
	if exit.Known && exit.Signal == "" {
		end.ExitCode = &exit.Code
	}
	if !exit.FinishedAt.IsZero() && exit.FinishedAt.Before(m.now) {
		finished = exit.FinishedAt
	}
	if exit.Known || !exit.FinishedAt.IsZero() {
		at := microTime(finished)
		end.FinishTime = &at
	}
	switch {
	case unhealthy:
		end.Reason, end.Message = m.status.Stopping.Reason, cmp.Or(m.status.Stopping.Message, "The process was unhealthy.")
	case asked:
		end.Reason = v1alpha1.ReasonStopped
	default:
		end.Reason = exitReason(exit)
	}
	if !unhealthy {
		end.Message = exitMessage(exit, asked)
	}
	if exits[end.Reason].failed {
		end.LogTail = exit.LogTail
	}
	uptime, ran := m.uptime(finished), m.status.Process != nil
	m.endSession(&end, uptime, ran)
	m.recordEnd(end)
	switch {
	case m.restartsAfter(end.Reason), m.fallsBack():
		m.planRestart(uptime)
	case exits[end.Reason].succeeded && m.status.Breaker.State == v1alpha1.BreakerHalfOpen:
		m.forgetFailures() // the trial succeeded, and no restart follows
	}
}

// exitMessage returns what is known about an exit beyond its code. For a requested exit, it returns only why the exit was not observed.
func exitMessage(e facts.Exit, asked bool) string {
	switch {
	case asked && (e.Known || e.Lost): // the request explains the exit
		return ""
	case e.Message == "" && !asked && !e.Known:
		return "The process disappeared; its exit status is unknown."
	case !asked && e.Left != "" && exits[exitReason(e)].succeeded:
		return conditions.Truncate(fmt.Sprintf("the program left processes running in the background (%s), which Berth has terminated; "+
			"run the program in the foreground, for example nginx -g 'daemon off;'", e.Left), maxExitMessage)
	}
	return conditions.Truncate(e.Message, maxExitMessage)
}

// exitReason returns the condition reason of an exit that was not requested.
func exitReason(e facts.Exit) string {
	switch {
	case e.Lost:
		return v1alpha1.ReasonLost
	case !e.Known:
		return v1alpha1.ReasonUnknown
	case e.Signal == "" && e.Code == 0:
		return v1alpha1.ReasonCompleted
	default:
		return v1alpha1.ReasonFailed
	}
}

// Failed reports whether an exit that was not requested is a failure of the program, so that its output may show the cause.
func Failed(e facts.Exit) bool { return exits[exitReason(e)].failed }

// absorbFailedStart records that the program could not be executed. It plans a retry only if the cause may pass by itself.
func (m *machine) absorbFailedStart(current facts.Incarnation) {
	reason, message := v1alpha1.ReasonStartFailed, ""
	if failure := current.StartError; failure != nil {
		message = failure.Message
		if failure.Reason != "" {
			reason = failure.Reason
		}
	}
	m.repeatSessionStart()
	m.recordEnd(v1alpha1.ProcessExit{Reason: reason, Message: conditions.Truncate(message, maxExitMessage)})
	switch {
	case exits[reason].retried:
		m.planRestart(0)
	case m.heals(reason):
		m.status.Failures++ // lengthens the wait between starts of a program that passes the check but cannot be executed
	}
}

func (m *machine) recordEnd(end v1alpha1.ProcessExit) {
	end.Incarnation = m.status.Incarnation
	m.status.LastExit = &end
	m.step.Ended = m.status.Process
	m.status.Process, m.status.Stopping, m.status.NextRestartTime = nil, nil, nil
}

// restartsAfter reports whether the restart policy restarts a process after an exit with this reason. It returns false for a requested exit (reason Stopped),
// after which askedToStart decides about the next start.
func (m *machine) restartsAfter(reason string) bool {
	switch meaning := exits[reason]; {
	case meaning.requested, m.desired.RestartPolicy == v1alpha1.RestartNever:
		return false
	case m.desired.RestartPolicy == v1alpha1.RestartOnFailure:
		return !meaning.succeeded
	default:
		return true
	}
}

// describe returns the beginning of a message, without a full stop: the number of an incarnation and how it exited.
func describe(end *v1alpha1.ProcessExit) string {
	if end == nil {
		return ""
	}
	var how string
	switch meaning := exits[end.Reason]; {
	case meaning.lost:
		how = " was lost"
	case meaning.unhealthy:
		return fmt.Sprintf("Incarnation %d was stopped. %s", end.Incarnation, strings.TrimSuffix(conditions.Sentence(end.Message), "."))
	case end.Signal != "":
		how = " was terminated by " + end.Signal
	case end.ExitCode != nil:
		how = fmt.Sprintf(" ended with exit code %d", *end.ExitCode)
	case end.Message == "":
		how = " ended"
	}
	if end.Message != "" {
		how += ": " + strings.TrimSuffix(end.Message, ".")
	}
	return fmt.Sprintf("Incarnation %d%s", end.Incarnation, how)
}

// maxExitMessage is the limit of lastExit.message in bytes.
const maxExitMessage = 1024
