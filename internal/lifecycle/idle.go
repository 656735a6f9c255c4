// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Asleep reports whether the process is asleep, or being put to sleep, according to the record.
func Asleep(status *v1alpha1.ProcessStatus) bool {
	if status.Stopping != nil {
		return FallsAsleep(status)
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Reason == v1alpha1.ReasonIdle
}

// FallsAsleep reports whether a running process is being put to sleep, according to the record.
func FallsAsleep(status *v1alpha1.ProcessStatus) bool {
	return status.Stopping != nil && status.Stopping.Reason == v1alpha1.ReasonIdle
}

// Idleness is what is known about the use of a process that sleeps when it is unused.
type Idleness struct {
	// Timeout is the longest time without use; 0 means unlimited.
	Timeout time.Duration
	// Since is the time of the last use; zero if it is unknown or the process is not running.
	Since time.Time
	// Asleep reports that, according to the record, the process is asleep or being put to sleep.
	Asleep bool
	// Asked reports that the process is needed: for a use now, or because of a spec change that the record does not reflect yet.
	Asked bool
	// Kept reports that the process must not be stopped when it is idle, because Berth did not start it.
	Kept bool
}

// Sleeps reports whether the process should not run for now. A sleeping process stays asleep until it is requested: a new manager, which does not know
// the time of the last use, does not wake it.
func (i Idleness) Sleeps(now time.Time) bool {
	switch {
	case i.Asked:
		return false
	case i.Asleep:
		return true
	default:
		return !i.Kept && i.Idle(now)
	}
}

// Idle reports whether the process has been unused for at least Timeout.
func (i Idleness) Idle(now time.Time) bool {
	return i.Timeout > 0 && !i.Since.IsZero() && now.Sub(i.Since) >= i.Timeout
}

// Left returns the time until the process becomes idle; 0 if it already is or never will be.
func (i Idleness) Left(now time.Time) time.Duration {
	if i.Timeout <= 0 || i.Since.IsZero() {
		return 0
	}
	return max(i.Timeout-now.Sub(i.Since), 0)
}
