// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// asking returns an Instance whose condition AwaitingInput has had the given status for a time.
func asking(name string, status metav1.ConditionStatus, since time.Duration) *v1alpha1.Instance {
	return &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Status: v1alpha1.InstanceStatus{ProcessStatus: v1alpha1.ProcessStatus{
		Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionAwaitingInput, Status: status, LastTransitionTime: metav1.NewTime(time.Now().Add(-since)), Reason: v1alpha1.ReasonAwaitingInput, Message: "The terminal shows a question (Codex).",
		}},
	}}}
}

func TestWaiting_ListsWhoWaitsLongestFirst(t *testing.T) {
	g := NewWithT(t)
	plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rename"}, Status: v1alpha1.PlanStatus{Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionAwaitingApproval, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)), Message: "Execute waits.",
	}}}}
	f := newFixture(asking("new", metav1.ConditionTrue, 15*time.Minute), asking("works", metav1.ConditionFalse, 2*time.Hour), plan, asking("old", metav1.ConditionTrue, 3*time.Hour))
	g.Expect(f.run(t.Context(), "waiting")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(Equal("NAME           WAITS   FOR                                      ANSWER\n" +
		"instance/old   3h      The terminal shows a question (Codex).   berth send instance/old TEXT\n" +
		"plan/rename    60m     Execute waits.                           berth plan approve rename\n" +
		"instance/new   15m     The terminal shows a question (Codex).   berth send instance/new TEXT\n"))

	old := asking("old", metav1.ConditionTrue, 3*time.Hour)
	old.Status.Agent = &v1alpha1.AgentStatus{State: v1alpha1.AgentWaiting, Question: "permission", Source: v1alpha1.AgentSourceHook}
	f = newFixture(asking("new", metav1.ConditionTrue, 15*time.Minute), plan, old)
	g.Expect(f.run(t.Context(), "waiting", "-A", "-o", "json")).To(BeZero(), f.err.String())
	var waiters []waiter
	g.Expect(json.Unmarshal([]byte(f.out.String()), &waiters)).To(Succeed())
	g.Expect(waiters).To(HaveLen(3))
	g.Expect(waiters[0].Name).To(Equal("instance/old"))
	g.Expect(waiters[0].Question).To(Equal("permission"))
	g.Expect(waiters[0].Source).To(Equal("Hook"))
}

func TestWaiting_SaysThatNothingWaits(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(asking("works", metav1.ConditionFalse, time.Hour))
	g.Expect(f.run(t.Context(), "waiting")).To(BeZero())
	g.Expect(f.err.String()).To(Equal("nothing waits for a person in namespace default\n"))
	g.Expect(f.out.String()).To(BeEmpty())
	g.Expect(f.run(t.Context(), "waiting", "-o", "wide")).To(Equal(exitUsage))
}

func TestWaiting_WatchShowsWhatBeginsAndEnds(t *testing.T) {
	g := NewWithT(t)
	instance := asking("agent", metav1.ConditionTrue, time.Minute)
	f := newFixture(instance)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- f.run(ctx, "waiting", "-w") }()
	g.Eventually(f.out.String).WithTimeout(timeout).Should(ContainSubstring("instance/agent AwaitingInput since "))
	instance.Status.Conditions[0].Status = metav1.ConditionFalse
	g.Expect(f.api.Status().Update(ctx, instance)).To(Succeed())
	g.Eventually(f.out.String).WithTimeout(timeout).Should(HaveSuffix(" instance/agent no longer waits\n"))
	cancel()
	g.Eventually(done).WithTimeout(timeout).Should(Receive(Equal(exitSignal)))
	g.Expect(f.run(t.Context(), "waiting", "-w", "-o", "json")).To(Equal(exitUsage))
}

// TestWaiting_RemovesControlCharacters checks a table and a watch: another user may have chosen the message of a condition.
func TestWaiting_RemovesControlCharacters(t *testing.T) {
	g := NewWithT(t)
	instance := asking("agent", metav1.ConditionTrue, time.Minute)
	instance.Status.Conditions[0].Message = hostile
	f := newFixture(instance)
	g.Expect(f.run(t.Context(), "waiting", "-A")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(ContainSubstring("before "))
	g.Expect(controlCharacters(f.out.String())).To(BeEmpty())
	g.Expect(strings.Split(f.out.String(), "\n")).To(HaveLen(3), "the message cannot begin a line")
}
