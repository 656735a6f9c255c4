// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Asleep says whether the record has the process put to sleep, or being so.
func Asleep(status *v1alpha1.ProcessStatus) bool {
	if status.Stopping != nil {
		return FallsAsleep(status)
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Reason == v1alpha1.ReasonIdle
}

// FallsAsleep says whether the record has a process that runs being put to sleep.
func FallsAsleep(status *v1alpha1.ProcessStatus) bool {
	return status.Stopping != nil && status.Stopping.Reason == v1alpha1.ReasonIdle
}

// Idleness is what is known of the use of a process that sleeps when nobody uses it.
type Idleness struct {
	// Timeout is how long nothing may happen; 0 means for ever.
	Timeout time.Duration
	// Since is the last sign of use; zero while that is not known, or nothing runs.
	Since time.Time
	// Asleep says that it was put to sleep, or is being: the record says so.
	Asleep bool
	// Asked says that somebody wants it: now, or by a change of the spec that the record has not answered.
	Asked bool
	// Kept says that it must not be ended for idleness, as it is not Berth's.
	Kept bool
}

// Sleeps says whether it should not run for now. What sleeps goes on doing so until somebody asks: that a manager is new and does not know since when
// nothing happens wakes nobody.
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

// Idle says whether nothing has happened for as long as may be.
func (i Idleness) Idle(now time.Time) bool {
	return i.Timeout > 0 && !i.Since.IsZero() && now.Sub(i.Since) >= i.Timeout
}

// Left is how long it is until it is idle; 0 when it is already, or never will be.
func (i Idleness) Left(now time.Time) time.Duration {
	if i.Timeout <= 0 || i.Since.IsZero() {
		return 0
	}
	return max(i.Timeout-now.Sub(i.Since), 0)
}
