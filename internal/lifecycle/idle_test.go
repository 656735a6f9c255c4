// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"
)

func TestIdleness_DecidesSleepAndTimeLeft(t *testing.T) {
	now := time.Unix(10_000, 0)
	before := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		idleness     Idleness
		sleeps, idle bool
		left         time.Duration
	}{
		"no timeout":                  {idleness: Idleness{Since: before(time.Hour)}},
		"activity unknown":            {idleness: Idleness{Timeout: time.Minute}},
		"in use":                      {idleness: Idleness{Timeout: time.Minute, Since: before(59 * time.Second)}, left: time.Second},
		"idle":                        {idleness: Idleness{Timeout: time.Minute, Since: before(time.Minute)}, sleeps: true, idle: true},
		"idle and requested":          {idleness: Idleness{Timeout: time.Minute, Since: before(time.Hour), Asked: true}, idle: true},
		"idle and adopted":            {idleness: Idleness{Timeout: time.Minute, Since: before(time.Hour), Kept: true}, idle: true},
		"asleep":                      {idleness: Idleness{Timeout: time.Minute, Asleep: true}, sleeps: true},
		"asleep and requested":        {idleness: Idleness{Timeout: time.Minute, Asleep: true, Asked: true}},
		"asleep and active just now":  {idleness: Idleness{Timeout: time.Minute, Since: now, Asleep: true}, sleeps: true, left: time.Minute},
		"active later than now":       {idleness: Idleness{Timeout: time.Minute, Since: now.Add(time.Second)}, left: 61 * time.Second},
		"stopping and adopted":        {idleness: Idleness{Timeout: time.Minute, Asleep: true, Kept: true}, sleeps: true},
		"asleep without a timeout":    {idleness: Idleness{Asleep: true}, sleeps: true},
		"requested, activity unknown": {idleness: Idleness{Asked: true}},
		"idle for many years":         {idleness: Idleness{Timeout: time.Second, Since: time.Unix(1, 0)}, sleeps: true, idle: true},
	} {
		if got := tc.idleness.Sleeps(now); got != tc.sleeps {
			t.Errorf("%s: sleeps %t", name, got)
		}
		if got := tc.idleness.Idle(now); got != tc.idle {
			t.Errorf("%s: idle %t", name, got)
		}
		if got := tc.idleness.Left(now); got != tc.left {
			t.Errorf("%s: left %s, want %s", name, got, tc.left)
		}
	}
}
