// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// Coding agents start a session and resume it with different arguments, and refuse the wrong ones: a session that exists cannot be started, and one that does not
// exist cannot be resumed. The record therefore contains how the current incarnation was started and how the next one will be (ProcessStatus.Resume). An
// incarnation that has run has started its session, so the next one resumes it. If a resume fails at once, the next start runs command again, but only once until
// an incarnation has run or the failures are forgotten, because two commands that both fail must not alternate for ever.

// upgradeSession adds the record to the status of an object that earlier versions of Berth have started, or whose record was lost. Its session is assumed to
// exist: a resume that fails corrects that.
func (m *machine) upgradeSession() {
	if m.desired.SessionID == "" || m.status.Incarnation == 0 || m.status.Resume != nil {
		return
	}
	m.status.Resume = &v1alpha1.ResumeStatus{SessionID: m.desired.SessionID, Start: v1alpha1.SessionNew, Next: v1alpha1.SessionResumed}
}

// nextSessionStart returns how the next incarnation is started; empty if the object has no session.
func (m *machine) nextSessionStart() v1alpha1.SessionStart {
	resume := m.status.Resume
	switch {
	case m.desired.SessionID == "":
		return ""
	case resume == nil || resume.SessionID != m.desired.SessionID:
		return v1alpha1.SessionNew
	default:
		return resume.Next
	}
}

// recordedSessionStart returns how the recorded incarnation, which has not run yet, is started; empty if the object has no session.
func (m *machine) recordedSessionStart() v1alpha1.SessionStart {
	if resume := m.status.Resume; resume != nil && resume.SessionID == m.desired.SessionID {
		return resume.Start
	}
	return m.nextSessionStart()
}

// startSession records how the current incarnation is started. Until its exit is known, the next incarnation is expected to resume the session.
func (m *machine) startSession(how v1alpha1.SessionStart) {
	if how == "" {
		m.status.Resume = nil
		return
	}
	resume := &v1alpha1.ResumeStatus{SessionID: m.desired.SessionID, Start: how, Next: v1alpha1.SessionResumed}
	if before := m.status.Resume; before != nil && before.SessionID == resume.SessionID {
		resume.FallbackIncarnation = before.FallbackIncarnation
	}
	switch how {
	case v1alpha1.SessionResumed:
		resume.CommandHash = m.desired.ResumeHash
	case v1alpha1.SessionFallback:
		resume.FallbackIncarnation = m.status.Incarnation
	}
	m.status.Resume = resume
}

// recordSessionOrigin records how an incarnation was started, as the backend reports it. It ignores values that Start cannot have, because a user who may change
// a Pod can change its origin.
func (m *machine) recordSessionOrigin(origin facts.Origin) {
	how := v1alpha1.SessionStart(origin.SessionStart)
	resume := m.status.Resume
	if resume == nil || resume.Start == v1alpha1.SessionAdopted || m.endRecorded() || len(origin.ResumeHash) > maxHash {
		return
	}
	if resume.Start == how && (how != v1alpha1.SessionResumed || resume.CommandHash == origin.ResumeHash) {
		return
	}
	switch how {
	case v1alpha1.SessionNew, v1alpha1.SessionResumed, v1alpha1.SessionFallback:
		now := m.desired.ResumeHash
		m.desired.ResumeHash = origin.ResumeHash
		m.startSession(how)
		m.desired.ResumeHash = now
	}
}

// maxHash is the limit of a hash in the status, in bytes.
const maxHash = 64

// adoptSession records that Berth did not start the current incarnation, which therefore says nothing about the session.
func (m *machine) adoptSession() {
	if resume := m.status.Resume; resume != nil && resume.Start != v1alpha1.SessionAdopted {
		resume.Start, resume.Next, resume.CommandHash = v1alpha1.SessionAdopted, resume.Start, ""
	}
}

// repeatSessionStart is for an incarnation whose program has not run: the next start is like its own.
func (m *machine) repeatSessionStart() {
	if resume := m.status.Resume; resume != nil && resume.Start != v1alpha1.SessionAdopted {
		resume.Next = resume.Start
	}
}

// endSession determines how the next incarnation is started, from how the current one has ended. ran reports that its program was seen running, for uptime.
func (m *machine) endSession(end *v1alpha1.ProcessExit, uptime time.Duration, ran bool) {
	resume := m.status.Resume
	switch {
	case resume == nil || resume.Start == v1alpha1.SessionAdopted:
	case !ran && end.ExitCode == nil:
		m.repeatSessionStart()
	case !failedAtOnce(end, uptime):
		resume.Next, resume.FallbackIncarnation = v1alpha1.SessionResumed, 0
	case resume.Start == v1alpha1.SessionNew:
		resume.Next = v1alpha1.SessionNew
	case resume.CommandHash != "" && resume.FallbackIncarnation == 0:
		resume.Next = v1alpha1.SessionFallback
	default:
		resume.Next = v1alpha1.SessionResumed
	}
}

// failedAtOnce reports whether the program refused its arguments, as far as that can be told: it exited by itself, soon, with an exit code other than 0. A program
// that was stopped or killed, or exited with 0, has run.
func failedAtOnce(end *v1alpha1.ProcessExit, uptime time.Duration) bool {
	return exits[end.Reason].failed && end.ExitCode != nil && uptime <= goodUptime
}

// fallsBack reports whether the next start is a fallback. It completes a start that was requested, so it does not depend on the restart policy.
func (m *machine) fallsBack() bool {
	resume := m.status.Resume
	return resume != nil && resume.Start == v1alpha1.SessionResumed && resume.Next == v1alpha1.SessionFallback
}

// resumeChanged reports whether the current incarnation was started with another resumeCommand than that of the spec. An incarnation that was started with
// command is not affected by a change of resumeCommand.
func (m *machine) resumeChanged() bool {
	resume := m.status.Resume
	return resume != nil && resume.CommandHash != "" && resume.CommandHash != m.desired.ResumeHash
}

// startAfterStop returns how the incarnation after the running one is started if the running one is stopped now.
func (m *machine) startAfterStop() v1alpha1.SessionStart {
	next := m.nextSessionStart()
	if resume := m.status.Resume; resume != nil && resume.SessionID == m.desired.SessionID && resume.Start != v1alpha1.SessionAdopted {
		return v1alpha1.SessionResumed
	}
	return next
}

// StartOf returns how an observed incarnation was started, from what the backend reports or else from the record; empty if that is not known.
func StartOf(record *v1alpha1.ProcessStatus, incarnation *facts.Incarnation) v1alpha1.SessionStart {
	switch {
	case incarnation.Origin.SessionStart != "":
		return v1alpha1.SessionStart(incarnation.Origin.SessionStart)
	case record.Resume != nil && incarnation.Number == record.Incarnation:
		return record.Resume.Start
	default:
		return ""
	}
}

// describeFallback returns the sentence that explains a fallback; empty if the current incarnation is none.
func describeFallback(status *v1alpha1.ProcessStatus) string {
	if status.Resume == nil || status.Resume.Start != v1alpha1.SessionFallback {
		return ""
	}
	return "It runs spec.process.command, because spec.process.resumeCommand failed at once."
}
