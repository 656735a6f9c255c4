// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// A start that fails because a directory, a program or a permission is missing is not simply retried, because the next attempt would fail too. Instead,
// Berth repeats the check of the program. A backend that can check the cause without a start reports it in Observed.Program, and the process starts once
// the cause is gone. A restart that waits because the next start would fail is checked at the same intervals.

const (
	// checkFirst and checkLast bound the interval between two checks, which is otherwise an eighth of the time since the first check.
	checkFirst = 2 * time.Second
	checkLast  = time.Minute
	// maxStartDoublings bounds the wait between two starts at checkFirst << maxStartDoublings, about one minute. That wait matters only if the check finds
	// nothing wrong but the start fails anyway, for example because the interpreter of a script is missing.
	maxStartDoublings = 5
)

// ProgramCheck is the result of a backend's check of the program and the working directory of the next start.
type ProgramCheck struct {
	// Reason is the condition reason with which a start would fail now; empty if the check found nothing wrong.
	Reason string
}

// heals reports whether Berth repeatedly checks if the cause of the failed start is gone.
func (m *machine) heals(reason string) bool {
	return m.observed.Program != nil && CanHeal(reason) && m.desired.State == DesiredRunning && m.restartsAfter(reason)
}

// checkHealed reports whether a new start is due because the cause of the failed start is gone or has changed. If not, it schedules the next check.
func (m *machine) checkHealed(reason string) bool {
	var stalled time.Duration
	is := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionStalled)
	if meta.IsStatusConditionTrue(m.status.Conditions, is.Type) && is.Reason == reason {
		stalled = m.since(is.LastTransitionTime.Time)
	}
	wait := checkFirst << min(max(m.status.Failures-1, 0), maxStartDoublings)
	if m.observed.Program.Reason != reason && stalled >= wait {
		return true
	}
	m.requeue(max(checkInterval(stalled), wait-stalled))
	return false
}

// checkInterval returns the time until the next check of a cause that has prevented a start for a while.
func checkInterval(since time.Duration) time.Duration {
	return min(max(since/8, checkFirst), checkLast)
}
