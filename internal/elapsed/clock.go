// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package elapsed

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Clock is a clock that detects steps of the wall clock and suspends of the machine. Its method Since does not count them. It is safe for concurrent use.
type Clock struct {
	clock.WithTicker
	read func() (wall, steady time.Time)

	mu       sync.Mutex // also protects the order of readings: an older one must not follow a newer one
	timeline Timeline
	last     time.Time // the steady time of the last reading
}

// New returns a Clock that reads c. Times of c have a monotonic reading, as those of time.Now do, or c has a method Read that returns the wall clock and the
// steady time; otherwise no step is detected.
func New(c clock.WithTicker) *Clock {
	if is, already := c.(*Clock); already {
		return is
	}
	k := &Clock{WithTicker: c}
	if two, has := c.(interface {
		Read() (wall, steady time.Time)
	}); has {
		k.read = two.Read
		return k
	}
	first := c.Now()
	k.read = func() (wall, steady time.Time) {
		now := c.Now()
		return now, first.Round(0).Add(now.Sub(first)) // Sub uses the monotonic readings, which a suspend does not advance
	}
	return k
}

// Read returns the time and the Timeline that belongs to it.
func (c *Clock) Read() (time.Time, Timeline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, steady := c.read()
	if c.last.IsZero() {
		c.last = steady
	}
	c.timeline = c.timeline.observe(wall, steady, c.last)
	c.last = steady
	return wall, c.timeline
}

// Now returns the time of the wall clock.
func (c *Clock) Now() time.Time {
	now, _ := c.Read()
	return now
}

// Since returns the time that has elapsed since t, as Timeline.Since does.
func (c *Clock) Since(t time.Time) time.Duration {
	now, timeline := c.Read()
	return timeline.Since(t, now)
}

// Read returns the time of any clock, and the Timeline that belongs to it if the clock is a Clock.
func Read(c clock.PassiveClock) (time.Time, Timeline) {
	if is, ok := c.(*Clock); ok {
		return is.Read()
	}
	return c.Now(), Timeline{}
}
