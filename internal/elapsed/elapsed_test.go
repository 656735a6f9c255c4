// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package elapsed_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/elapsed/elapsedtest"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// Each set of steps happens within ten minutes; the shortest step is longer than that.
func TestSince_IgnoresSteps(t *testing.T) {
	for _, steps := range [][]time.Duration{
		{}, {15 * time.Minute}, {-15 * time.Minute}, {time.Hour}, {-time.Hour}, {3 * time.Hour}, {-time.Hour, time.Hour}, {time.Hour, -time.Hour},
		{time.Hour, time.Hour}, {-time.Hour, -15 * time.Minute}, {3 * time.Hour, -time.Hour}, {-15 * time.Minute, time.Hour, 3 * time.Hour},
	} {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			g := NewWithT(t)
			wall := elapsedtest.New(start)
			c := elapsed.New(wall)
			var recorded []time.Time
			record := func() {
				wall.Step(time.Minute)
				recorded = append(recorded, c.Now())
				wall.Step(time.Minute)
			}
			record()
			for _, step := range steps {
				wall.Set(step)
				record()
			}
			for i, at := range recorded {
				age := time.Duration(len(recorded)-i)*2*time.Minute - time.Minute
				g.Expect(c.Since(at)).To(Equal(age), "time %d", i)
				now, timeline := c.Read()
				left, valid := timeline.Left(at.Add(5*time.Minute), 5*time.Minute, now)
				g.Expect(valid).To(BeTrue())
				g.Expect(left).To(Equal(5*time.Minute - age))
			}
		})
	}
}

// A time of the future has no age, and a deadline that is too far away is reported, so that its owner replaces it.
func TestFuture_IsBounded(t *testing.T) {
	g := NewWithT(t)
	c := elapsed.New(elapsedtest.New(start))
	g.Expect(c.Since(start.Add(time.Hour))).To(BeZero())
	now, timeline := c.Read()
	left, valid := timeline.Left(start.Add(time.Hour), time.Minute, now)
	g.Expect(valid).To(BeFalse())
	g.Expect(left).To(Equal(time.Minute))
	left, valid = timeline.Left(start.Add(time.Second), time.Minute, now)
	g.Expect(valid).To(BeTrue())
	g.Expect(left).To(Equal(time.Second))
}

// A time that another process recorded after the last reading of the clock and before the step belongs to the time before the step.
func TestSince_CountsTimesBetweenLastReadingAndStep(t *testing.T) {
	g := NewWithT(t)
	wall := elapsedtest.New(start)
	c := elapsed.New(wall)
	c.Now()
	wall.Step(time.Minute)
	recorded := wall.Now()
	wall.Step(time.Second)
	wall.Set(time.Hour)
	g.Expect(c.Since(recorded)).To(Equal(time.Second))
	g.Expect(c.Since(recorded.Add(30*time.Minute))).To(BeZero(), "no clock has shown this time; it counts as the time of the step")
}

// The first reading after a step back is recorded with less precision, and another process may have recorded a time just before it. Neither time is as old as the step.
func TestSince_CountsTimesAroundFirstReadingAfterStepBack(t *testing.T) {
	for _, step := range []time.Duration{-15 * time.Minute, -time.Hour} {
		g := NewWithT(t)
		wall := elapsedtest.New(start)
		c := elapsed.New(wall)
		c.Now()
		wall.Step(2 * time.Hour)
		c.Now()
		wall.Set(step)
		wall.Step(600*time.Millisecond + 700*time.Nanosecond)
		now := c.Now()
		g.Expect(c.Since(now.Truncate(time.Microsecond))).To(Equal(700 * time.Nanosecond))
		g.Expect(c.Since(now.Truncate(time.Second))).To(Equal(600*time.Millisecond + 700*time.Nanosecond))
		g.Expect(c.Since(now.Add(-500 * time.Millisecond))).To(Equal(500 * time.Millisecond))
		_, timeline := c.Read()
		left, valid := timeline.Left(now.Truncate(time.Microsecond).Add(time.Minute), time.Minute, now)
		g.Expect(valid).To(BeTrue())
		g.Expect(left).To(BeNumerically("~", time.Minute, time.Microsecond))
	}
}

// The steady time never goes back, and small adjustments are not steps.
func TestSteady_ContinuesAfterStep(t *testing.T) {
	g := NewWithT(t)
	wall := elapsedtest.New(start)
	c := elapsed.New(wall)
	before, timeline := c.Read()
	wall.Step(time.Second)
	wall.Set(-time.Hour)
	now, later := c.Read()
	g.Expect(later.Steady(now).Sub(timeline.Steady(before))).To(Equal(time.Second))
	wall.Set(500 * time.Millisecond)
	_, adjusted := c.Read()
	g.Expect(adjusted).To(Equal(later))
}

// The history of a machine that is suspended often stays bounded.
func TestTimeline_ForgetsOldSteps(t *testing.T) {
	g := NewWithT(t)
	wall := elapsedtest.New(start)
	c := elapsed.New(wall)
	for range 1000 {
		wall.Step(time.Minute)
		wall.Set(time.Hour)
		c.Now()
	}
	recorded := c.Now()
	wall.Step(time.Minute)
	g.Expect(c.Since(recorded)).To(Equal(time.Minute))
	_, timeline := c.Read()
	g.Expect(len(fmt.Sprint(timeline))).To(BeNumerically("<", 20000))
}

func TestRealClock_HasNoSteps(t *testing.T) {
	g := NewWithT(t)
	c := elapsed.New(clock.RealClock{})
	_, timeline := c.Read()
	g.Expect(timeline).To(Equal(elapsed.Timeline{}))
	g.Expect(elapsed.New(c)).To(BeIdenticalTo(c))
	g.Expect(c.Since(time.Now().Add(-time.Minute))).To(BeNumerically("~", time.Minute, time.Second))
}
