// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package elapsed measures elapsed time from times that were recorded with the wall clock, such as the times in a status.
//
// The wall clock of a machine can be set, and it advances while the machine is suspended. Elapsed time in Berth is the time during which the machine
// was awake: a Clock compares the wall clock with the monotonic clock of its process, and a Timeline holds the steps that it has detected.
package elapsed

import "time"

// Timeline is the history of the steps of one wall clock. The zero Timeline has no steps. A Timeline is immutable.
type Timeline struct {
	// segments are the periods between two steps, in the order of time; the first one has no beginning. No segment means one segment without an offset.
	segments []segment
}

// segment is a period in which the wall clock and the steady time advanced together. The steady time is the wall clock at the start of the manager, advanced
// by its monotonic clock.
type segment struct {
	// begins is the steady time of the first reading after the step; zero for the first segment.
	begins time.Time
	// repeats is the steady time from which recorded times count as part of this segment rather than of an earlier one, which has shown them too. It precedes
	// begins if the step was one back.
	repeats time.Time
	// offset is the wall clock minus the steady time.
	offset time.Duration
}

// Steady returns the steady time for now, the latest reading of the wall clock. It advances with the monotonic clock, so two of its values can be compared after a
// step of the wall clock.
func (l Timeline) Steady(now time.Time) time.Time { return now.Round(0).Add(-l.offset()) }

// Since returns the time that has elapsed since t was recorded, without steps of the wall clock and without the time during which the machine was suspended. now is
// the latest reading of the wall clock. The result is 0 if t lies in the future.
func (l Timeline) Since(t, now time.Time) time.Duration {
	at, _ := l.locate(t, now)
	return max(l.Steady(now).Sub(at), 0)
}

// After reports whether a was recorded later than b, also if the wall clock was set back in between. now is the latest reading of the wall clock.
func (l Timeline) After(a, b, now time.Time) bool { return l.Since(a, now) < l.Since(b, now) }

// Left returns how much of the wait remains that ends at the recorded time deadline and lasts no longer than wait; it is negative after the deadline. valid is false
// if no known step explains why the deadline is farther away than wait: the clock was set back while no manager ran, or the wait was shortened. The
// caller then records a new deadline, so that the wait ends.
func (l Timeline) Left(deadline time.Time, wait time.Duration, now time.Time) (left time.Duration, valid bool) {
	began, is := l.locate(deadline.Add(-wait), now)
	if is == skipped { // no clock has shown this time: the wait was shorter than wait, and was recorded after the step
		return deadline.Sub(now.Round(0)), true
	}
	return min(wait-l.Steady(now).Sub(began), wait), is == inside
}

// place is the position of a time in a Timeline.
type place int

const (
	inside  place = iota // the wall clock has shown this time
	skipped              // a step forward has skipped this time
	future
)

// locate returns the steady time at which t was recorded. A step back repeats times of the wall clock: locate prefers the later occurrence, so that a wait may
// become longer but never shorter. A time that was skipped counts as the time of the step, and one in the future as now.
func (l Timeline) locate(t, now time.Time) (at time.Time, is place) {
	t = t.Round(0)
	ends, step := l.Steady(now), time.Time{}
	if len(l.segments) == 0 {
		l.segments = []segment{{}}
	}
	for i := len(l.segments) - 1; i >= 0; i-- {
		s := l.segments[i]
		at = t.Add(-s.offset)
		switch {
		case at.After(ends):
		case at.Before(s.repeats):
			step = s.begins
		default:
			return at, inside
		}
		ends = s.begins
	}
	if !step.IsZero() {
		return step, skipped
	}
	return l.Steady(now), future
}

func (l Timeline) offset() time.Duration {
	if len(l.segments) == 0 {
		return 0
	}
	return l.segments[len(l.segments)-1].offset
}

// maxSegments bounds the memory of a Timeline. Times from before the oldest segment are treated as part of it.
const maxSegments = 64

// smallestStep is the smallest difference between the clocks that counts as a step. Smaller differences come from the adjustment of the clock by NTP.
const smallestStep = time.Second

// imprecision is how much earlier a time may be recorded than it was read: the times of conditions have a resolution of one second.
const imprecision = time.Second

// observe returns the Timeline after a simultaneous reading of both clocks. last is the steady time of the reading before.
func (l Timeline) observe(wall, steady, last time.Time) Timeline {
	offset := wall.Round(0).Sub(steady.Round(0))
	difference := offset - l.offset()
	if difference.Abs() < smallestStep {
		return l
	}
	segments := append([]segment{}, l.segments...)
	if len(segments) == 0 {
		segments = append(segments, segment{})
	}
	added := segment{begins: steady.Round(0), repeats: steady.Round(0), offset: offset}
	if difference < 0 {
		// The clock was set back after the last reading. Other processes may have recorded times since then.
		added.repeats = last.Round(0).Add(-imprecision)
	}
	segments = append(segments, added)
	if extra := len(segments) - maxSegments; extra > 0 {
		segments = segments[extra:]
		segments[0].begins, segments[0].repeats = time.Time{}, time.Time{}
	}
	return Timeline{segments: segments}
}
