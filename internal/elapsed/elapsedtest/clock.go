// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package elapsedtest has a clock for tests, whose wall clock can be set.
package elapsedtest

import (
	"sync"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// Clock is a fake clock. Step advances it; Set changes only its wall clock, as an administrator or a suspend does.
type Clock struct {
	*clocktesting.FakeClock
	mu    sync.Mutex
	shift time.Duration
}

// New returns a Clock that shows now.
func New(now time.Time) *Clock { return &Clock{FakeClock: clocktesting.NewFakeClock(now)} }

// Set changes the wall clock by d. No time elapses.
func (c *Clock) Set(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shift += d
	c.SetTime(c.FakeClock.Now().Add(d))
}

// Read returns the wall clock, and the time without the changes by Set.
func (c *Clock) Read() (wall, steady time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall = c.FakeClock.Now()
	return wall, wall.Add(-c.shift)
}

// Steps are the steps of a wall clock that tests apply in each state.
var Steps = []time.Duration{15 * time.Minute, -15 * time.Minute, time.Hour, -time.Hour, 3 * time.Hour, -3 * time.Hour}
