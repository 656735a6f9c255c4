// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const uid = types.UID("u-1")

func newRuntime(t *testing.T) (*Runtime, func(incarnation int64) error) {
	t.Helper()
	r := New(t.Context(), clocktesting.NewFakePassiveClock(time.Unix(1000, 0)))
	return r, func(incarnation int64) error {
		return r.Start(context.Background(), runtime.Process{UID: uid, Incarnation: incarnation, Command: []string{"serve"}, StopSignal: "SIGTERM"})
	}
}

func observedPhase(g *WithT, r *Runtime) facts.Phase {
	found, err := r.Observe(context.Background(), uid)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(1))
	return found[0].Phase
}

func TestStart_IsIdempotent(t *testing.T) {
	g := NewWithT(t)
	r, run := newRuntime(t)
	g.Expect(run(1)).To(Succeed())
	g.Expect(run(1)).To(Succeed())
	g.Expect(r.Count(uid, Start)).To(Equal(1))
	g.Expect(observedPhase(g, r)).To(Equal(facts.Running))

	g.Expect(run(2)).To(MatchError(runtime.ErrOldAlive))
	r.Exit(uid, facts.Exit{Known: true, Code: 37})
	g.Expect(run(1)).To(Succeed(), "a second start of an ended incarnation does nothing")
	g.Expect(observedPhase(g, r)).To(Equal(facts.Exited))
	g.Expect(run(2)).To(Succeed())
	g.Expect(run(1)).To(MatchError(runtime.ErrStale))
	g.Expect(r.Live(uid)).To(Equal([]int64{2}))
	g.Expect(r.Violations()).To(BeEmpty())
}

func TestUnguarded_ReportsTwoLiveProcesses(t *testing.T) {
	g := NewWithT(t)
	r, run := newRuntime(t)
	r.Unguarded()
	g.Expect(run(1)).To(Succeed())
	g.Expect(run(2)).To(Succeed())
	g.Expect(r.Violations()).To(HaveLen(1))
}

func TestStopAndKill_AffectOnlyNamedIncarnation(t *testing.T) {
	g := NewWithT(t)
	r, run := newRuntime(t)
	r.Program("serve", Program{IgnoreStop: true})
	g.Expect(run(3)).To(Succeed())
	g.Expect(r.Stop(t.Context(), uid, 2)).To(Succeed())
	g.Expect(r.Kill(t.Context(), uid, 2)).To(Succeed())
	g.Expect(observedPhase(g, r)).To(Equal(facts.Running))
	g.Expect(r.Stop(t.Context(), uid, 3)).To(Succeed())
	g.Expect(observedPhase(g, r)).To(Equal(facts.Running))
	g.Expect(r.Forget(t.Context(), uid)).To(MatchError(ContainSubstring("still alive")))
	g.Expect(r.Kill(t.Context(), uid, 3)).To(Succeed())
	g.Expect(observedPhase(g, r)).To(Equal(facts.Exited))
	g.Expect(r.Forget(t.Context(), uid)).To(Succeed())
	g.Expect(r.Known()).To(BeEmpty())
}

func TestFaults_FailCallsAndLoseResponses(t *testing.T) {
	g := NewWithT(t)
	r, run := newRuntime(t)
	broken := errors.New("disk full")
	r.Fail(Start, broken)
	g.Expect(run(1)).To(MatchError(broken))
	g.Expect(r.Live(uid)).To(BeEmpty())
	r.LoseAnswer(Start, broken)
	g.Expect(run(1)).To(MatchError(broken))
	g.Expect(r.Live(uid)).To(Equal([]int64{1}))
	g.Expect(run(1)).To(Succeed())
	g.Expect(r.Count(uid, Start)).To(Equal(1))
}

func TestPrograms_ExitFailAndHold(t *testing.T) {
	g := NewWithT(t)
	r, run := newRuntime(t)
	r.Program("serve", Program{Exit: &facts.Exit{Known: true, Code: 3}})
	g.Expect(run(1)).To(Succeed())
	g.Expect(observedPhase(g, r)).To(Equal(facts.Exited))
	r.Program("serve", Program{StartError: &facts.StartError{Reason: "CommandNotFound"}})
	g.Expect(run(2)).To(Succeed())
	g.Expect(observedPhase(g, r)).To(Equal(facts.Failed))
	r.Program("serve", Program{Held: true})
	g.Expect(run(3)).To(Succeed())
	g.Expect(observedPhase(g, r)).To(Equal(facts.Starting))
	r.Run(uid)
	g.Expect(observedPhase(g, r)).To(Equal(facts.Running))
}

func TestEvents_ReportStartAndExit(t *testing.T) {
	g := NewWithT(t)
	r, run := newRuntime(t)
	g.Expect(run(1)).To(Succeed())
	g.Eventually(r.Events()).WithTimeout(30 * time.Second).Should(Receive(Equal(uid)))
	r.Exit(uid, facts.Exit{Known: true})
	g.Eventually(r.Events()).WithTimeout(30 * time.Second).Should(Receive(Equal(uid)))
}

// The collector may release a session after its object ended it: its list of processes is older.
func TestSessions_EndedSessionIsNotReleased(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	r, _ := newRuntime(t)
	sessions := WithSessions(r)
	sessions.Found("work")
	g.Expect(sessions.Start(ctx, runtime.Process{UID: uid, Incarnation: 1, Command: []string{"agent"}, Config: []byte(`{"session":"work"}`)})).To(Succeed())
	g.Expect(sessions.Stop(ctx, uid, 1)).To(Succeed())
	g.Expect(sessions.Live(uid)).To(BeEmpty())
	g.Expect(sessions.Forget(ctx, uid)).To(Succeed())
	g.Expect(sessions.Release(ctx, uid)).To(Succeed())
	g.Expect(sessions.There("work")).To(BeFalse())
}
