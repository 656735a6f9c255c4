// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/elapsed/elapsedtest"
	"github.com/berth-dev/berth/internal/facts"
)

func TestRestarts_NilDoesNotLimit(t *testing.T) {
	g := NewWithT(t)
	var none *Restarts
	none.plan("a", time.Unix(0, 0))
	g.Expect(none.backlog("a", time.Unix(0, 0))).To(BeZero())
}

func TestRestarts_LimitsTheRateAfterABurst(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	limit := &Restarts{PerSecond: 50, Burst: 100}
	for range 100 {
		g.Expect(limit.backlog("a", now)).To(BeZero())
		limit.plan("a", now)
	}
	for range 500 {
		limit.plan("a", now)
	}
	g.Expect(limit.backlog("a", now)).To(Equal(10*time.Second), "500 beyond the burst, at 50 per second")
	g.Expect(limit.backlog("a", now.Add(4*time.Second))).To(Equal(6 * time.Second))
	g.Expect(limit.backlog("a", now.Add(time.Minute))).To(BeZero())
}

func TestRestarts_IsSharedFairly(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	limit := &Restarts{PerSecond: 50, Burst: 100}
	for range 10_000 {
		limit.plan("crowd", now)
	}
	g.Expect(limit.backlog("quiet", now)).To(BeZero(), "another namespace does not wait for the busy one")
	for range 150 {
		limit.plan("quiet", now)
	}
	g.Expect(limit.backlog("quiet", now)).To(Equal(4*time.Second), "150 at half the rate take 6 s, of which the burst covers 2 s")
}

func TestRestarts_ForgetsNamespacesWithoutBacklog(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	limit := NewRestarts()
	for i := range 1000 {
		limit.plan(fmt.Sprint(i), now.Add(time.Duration(i)*time.Minute))
	}
	g.Expect(limit.planned).To(HaveLen(1))
}

// A restart counts once, however often the write of its plan fails: a write that conflicts is decided again.
func TestRestarts_ConflictsCountOnce(t *testing.T) {
	b := newFixture(t, nil)
	b.r.Restarts = &Restarts{PerSecond: 1}
	b.reconcile()
	b.reconcile()
	b.rt.Exit(testUID, facts.Exit{Known: true, Code: 1})
	first := b.writes
	b.intercept = func(write int) error {
		if write <= first+20 {
			return conflictError(write)
		}
		return nil
	}
	for b.object().Status.NextRestartTime == nil {
		b.reconcile()
	}
	b.Expect(b.writes).To(Equal(first + 21))
	b.Expect(b.r.Restarts.backlog(testKey.Namespace, b.clock.Now().Truncate(time.Microsecond))).To(Equal(time.Second), "one restart is planned")
	b.Expect(b.object().Status.NextRestartTime.Time).To(BeTemporally("<", b.clock.Now().Add(2*time.Second)))
}

// A restart does not wait longer because the clock was set back after another restart of the namespace was planned.
func TestBacklog_DoesNotChangeWithClock(t *testing.T) {
	for _, step := range elapsedtest.Steps {
		b := newFixture(t, nil)
		wall := elapsedtest.New(b.clock.Now())
		b.r.Clock, b.r.Restarts = elapsed.New(wall), &Restarts{PerSecond: 1}
		b.reconcile()
		b.reconcile()
		crash := func() time.Duration {
			b.rt.Exit(testUID, facts.Exit{Known: true, Code: 1})
			for b.object().Status.NextRestartTime == nil {
				b.reconcile()
			}
			return b.object().Status.NextRestartTime.Sub(wall.Now())
		}
		b.Expect(crash()).To(BeNumerically("<", 2*time.Second))
		wall.Step(5 * time.Second)
		for b.object().Status.NextRestartTime != nil {
			b.reconcile()
		}
		wall.Set(step)
		b.Expect(crash()).To(BeNumerically("<", 4*time.Second), "step %s", step)
	}
}

// ttlSecondsAfterStopped neither elapses during a suspend nor begins again after a step.
func TestExpire_DoesNotChangeWithClock(t *testing.T) {
	for _, step := range elapsedtest.Steps {
		b := newFixture(t, func(i *v1alpha1.Instance) {
			i.Spec.State, i.Spec.TTLSecondsAfterStopped = v1alpha1.StateStopped, ptr.To[int32](600)
		})
		wall := elapsedtest.New(b.clock.Now().Truncate(time.Second))
		b.r.Clock = elapsed.New(wall)
		b.reconcile()
		wall.Step(5 * time.Minute)
		b.Expect(b.reconcile().RequeueAfter).To(Equal(5 * time.Minute))
		wall.Set(step)
		wall.Step(4 * time.Minute)
		b.Expect(b.reconcile().RequeueAfter).To(Equal(time.Minute), "step %s", step)
	}
}
