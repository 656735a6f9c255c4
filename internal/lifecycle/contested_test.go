// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

const sharedMessage = "Connections to port 80 also reach pid 7 (nginx). Stop the other server, or set another spec.port."

// contest makes other processes share the port of the running incarnation.
func (s *fixture) contest(yields bool) {
	s.observed.Contested = &Contested{Reason: v1alpha1.ReasonPortShared, Message: sharedMessage, Yields: yields}
}

// expectNoConflict expects the state of an incarnation that is ready and shares nothing.
func (s *fixture) expectNoConflict() {
	s.t.Helper()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionConflict)).To(BeNil())
}

func TestContested_IsStalledUntilOthersAreGone(t *testing.T) {
	s := newFixture(t).startToReady()
	s.contest(true)
	step := s.next()
	s.g.Expect(step.Action).To(Equal(None), "the process keeps running")
	s.g.Expect(step.Events).To(ConsistOf(Event{Warning: true, Reason: v1alpha1.ReasonPortShared, Message: sharedMessage}))
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonPortShared)
	s.expectCondition(v1alpha1.ConditionConflict, v1alpha1.ReasonPortShared)
	s.g.Expect(s.status.Process).NotTo(BeNil())
	s.expectAtRest()

	s.observed.Contested = nil
	s.g.Expect(s.next().Events).To(ConsistOf(HaveField("Message", "Incarnation 1 is ready.")))
	s.expectNoConflict()
	s.expectAtRest()
}

func TestContested_ReportsConflictOfTheOneWithPrecedence(t *testing.T) {
	s := newFixture(t).startToReady()
	s.contest(false)
	s.g.Expect(s.next().Events).To(ConsistOf(Event{Warning: true, Reason: v1alpha1.ReasonPortShared, Message: sharedMessage}))
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.expectCondition(v1alpha1.ConditionConflict, v1alpha1.ReasonPortShared)
	s.expectAtRest()

	s.contest(true)
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonPortShared)
	s.observed.Contested = nil
	s.next()
	s.expectNoConflict()
}

// A manager that has just started has no result of the probe. The incarnation was ready, and only its port was shared.
func TestContested_IsReadyAgainAfterRestartOfManager(t *testing.T) {
	s := newFixture(t)
	s.desired.Probed = true
	s.next()
	yes, no := true, false
	s.setRunning()
	s.observed.Ready = &no
	s.contest(true)
	s.next()
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonNotReady)
	s.expectCondition(v1alpha1.ConditionConflict, v1alpha1.ReasonPortShared)
	s.g.Expect(RecordsReady(&s.status)).To(BeFalse(), "the incarnation has not been ready")

	s.observed.Ready = &yes
	s.g.Expect(s.next().Events).To(BeEmpty(), "the conflict is known")
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonPortShared)
	s.g.Expect(RecordsReady(&s.status)).To(BeTrue())
	s.observed.Ready = nil
	s.expectAtRest()
	s.observed.Contested = nil
	s.next()
	s.expectNoConflict()
}

// A restart that the spec requests waits while the next incarnation could not start, and a stop does not wait.
func TestContested_DelaysRestartThatCouldNotStart(t *testing.T) {
	s := newFixture(t).startToReady()
	s.contest(true)
	s.desired.RestartToken = "again"
	s.observed.Contested.Obstructs = true
	s.g.Expect(s.next().Action).To(Equal(None))
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonPortShared)
	s.expectCondition(v1alpha1.ConditionDriftDetected, v1alpha1.ReasonPortShared)
	s.expectAtRest()
	s.observed.Contested.Obstructs, s.observed.StartChecked = false, true
	s.g.Expect(s.next().Action).To(Equal(StopProcess), "the next incarnation gets another port")

	s = newFixture(t).startToReady()
	s.contest(true)
	s.observed.Contested.Obstructs = true
	s.next()
	s.desired.State = DesiredStopped
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionConflict)).To(BeNil())
}

func TestContested_EndsWithTheIncarnation(t *testing.T) {
	s := newFixture(t).startToReady()
	s.contest(true)
	s.next()
	s.observed.Contested = nil
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionConflict)).To(BeNil())
	s.g.Expect(RecordsReady(&s.status)).To(BeFalse())
}
