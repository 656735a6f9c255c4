// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// A clock that is set back makes nobody wait longer than the spec allows.
func TestBackOffAfterTheClockWasSetBack(t *testing.T) {
	s := newStory(t).up()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.tick()
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
	s.now = s.now.Add(-time.Hour)
	s.tick()
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
	s.g.Expect(s.last.Requeue).To(BeNumerically("<=", 1250*time.Millisecond))
	s.rest()
	s.now = s.now.Add(s.last.Requeue)
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
}

func TestCoolDownAfterTheClockWasSetBack(t *testing.T) {
	s := newStory(t)
	s.desired.Breaker.Threshold = 1
	s.up()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.tick()
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.now = s.now.Add(-24 * time.Hour)
	s.tick()
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.g.Expect(s.last.Requeue).To(Equal(s.desired.Breaker.CoolDown))
	s.rest()
	s.now = s.now.Add(s.last.Requeue)
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
}

// A wait that the spec has shortened meanwhile is shortened.
func TestBackOffIsShortenedBySpec(t *testing.T) {
	s := newStory(t).up()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.tick()
	s.desired.Backoff = Backoff{ResetAfter: time.Minute}
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
}
