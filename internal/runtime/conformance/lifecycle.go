// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

func testRepeatedStart(s *suite) {
	uid := newUID()
	p := s.process(uid, 1, "sleep")
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	first := s.awaitPhase(uid, facts.Running)
	s.Expect(first.Number).To(BeEquivalentTo(1))
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	s.Expect(s.observe(uid).PID).To(Equal(first.PID))
	s.Expect(s.observe(uid).StartTicks).To(Equal(first.StartTicks))
	s.Expect(s.observe(uid).ContainerID).To(Equal(first.ContainerID))
	s.killAndWait(uid)
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	s.Expect(s.observe(uid).Phase).To(Equal(facts.Exited), "an exited incarnation does not start again")
}

func testConcurrentStarts(s *suite) {
	uid := newUID()
	var all sync.WaitGroup
	var failed atomic.Int32
	for range 20 {
		all.Go(func() {
			if s.Runtime.Start(s.ctx, s.process(uid, 1, "sleep")) != nil {
				failed.Add(1)
			}
		})
	}
	all.Wait()
	s.Expect(failed.Load()).To(BeZero())
	first := s.awaitPhase(uid, facts.Running)
	if s.Processes {
		s.Expect(alive(s.pid(first))).To(BeTrue())
	}
	s.killAndWait(uid)
}

func testOtherIncarnationsRefused(s *suite) {
	uid := newUID()
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 2, "sleep"))).To(Succeed())
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 1, "sleep"))).To(MatchError(runtime.ErrStale))
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 3, "sleep"))).To(MatchError(runtime.ErrOldAlive))
	s.awaitPhase(uid, facts.Running)
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 3, "sleep"))).To(MatchError(runtime.ErrOldAlive))
	s.killAndWait(uid)
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 1, "sleep"))).To(MatchError(runtime.ErrStale))
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 3, "sleep"))).To(Succeed())
	now := s.awaitPhase(uid, facts.Running)
	s.Expect(now.Number).To(BeEquivalentTo(3))
	s.Expect(now.Exit).To(BeNil())
	s.killAndWait(uid)
}

func testExits(s *suite) {
	for _, code := range []int{0, 1, 37, 255} {
		ended := s.awaitPhase(s.start("exit", fmt.Sprint(code)), facts.Exited)
		s.Expect(ended.Exit).NotTo(BeNil())
		s.Expect(ended.Exit.Known).To(BeTrue(), ended.Exit.Message)
		s.Expect(ended.Exit.Code).To(BeEquivalentTo(code))
		s.Expect(ended.Exit.Signal).To(BeEmpty())
		s.Expect(ended.Exit.FinishedAt.IsZero()).To(BeFalse())
	}
	for signal, name := range map[syscall.Signal]string{syscall.SIGKILL: "SIGKILL", syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT"} {
		ended := s.awaitPhase(s.start("signal", fmt.Sprint(int(signal))), facts.Exited)
		s.Expect(ended.Exit.Known).To(BeTrue())
		if s.Container {
			s.Expect(ended.Exit.Code).To(BeEquivalentTo(128 + int(signal)))
			s.Expect(ended.Exit.Signal).To(BeEmpty(), "the program may have exited with this code itself")
			continue
		}
		s.Expect(ended.Exit.Signal).To(Equal(name))
	}
}

func testExitBeforeObserve(s *suite) {
	uid := s.start("exit", "37")
	// The test does not observe the first process until another process, which was started later, has exited.
	s.awaitPhase(s.start("exit", "0"), facts.Exited)
	first := s.awaitPhase(uid, facts.Exited)
	s.Expect(first.Exit.Code).To(BeEquivalentTo(37))
	s.Expect(s.observe(uid)).To(Equal(first), "a second observation is the same")
}

func testRepeatedStopAndKill(s *suite) {
	uid := s.start("sleep")
	s.awaitPhase(uid, facts.Running)
	s.stop(uid, 1)
	s.stop(uid, 1)
	ended := s.awaitPhase(uid, facts.Exited)
	s.Expect(ended.Exit.Signal).To(Equal("SIGTERM"))
	s.stop(uid, 1)
	s.Expect(s.Runtime.Kill(s.ctx, uid, 1)).To(Succeed())
	s.Expect(s.Runtime.Kill(s.ctx, uid, 1)).To(Succeed())
	s.Expect(s.observe(uid)).To(Equal(ended))
}

func testStopOfOtherIncarnation(s *suite) {
	uid := newUID()
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 5, "sleep"))).To(Succeed())
	before := s.awaitPhase(uid, facts.Running)
	for _, other := range []int64{0, 4, 6} {
		s.Expect(s.Runtime.Stop(s.ctx, uid, other)).To(Succeed())
		s.Expect(s.Runtime.Kill(s.ctx, uid, other)).To(Succeed())
	}
	s.Consistently(func() facts.Incarnation { return s.observe(uid) }, "300ms", "50ms").Should(Equal(before))
	s.killAndWait(uid)
}

func testStopWhileStarting(s *suite) {
	for range 10 {
		uid := s.start("sleep")
		s.stop(uid, 1)
		s.awaitPhase(uid, facts.Exited)
	}
	for range 10 {
		uid := s.start("ignore")
		s.Expect(s.Runtime.Kill(s.ctx, uid, 1)).To(Succeed())
		s.awaitPhase(uid, facts.Exited)
	}
}

func testKill(s *suite) {
	uid := s.start("ignore")
	running := s.awaitPhase(uid, facts.Running)
	var pid int64
	if s.Processes {
		pid = s.pid(running)
	}
	if s.Logs {
		s.awaitOutput(uid, "ready") // from now on the program ignores the stop signal
	}
	s.Expect(running.StopSent).To(BeFalse())
	s.stop(uid, 1)
	s.Expect(s.observe(uid).StopSent).To(BeTrue(), "so that the stop is not sent twice")
	s.Consistently(func() facts.Phase { return s.observe(uid).Phase }, "300ms", "50ms").Should(Equal(facts.Running))
	s.Expect(s.Runtime.Kill(s.ctx, uid, 1)).To(Succeed())
	ended := s.awaitPhase(uid, facts.Exited)
	s.Expect(ended.Exit.Signal).To(Equal("SIGKILL"))
	if s.Processes {
		s.Expect(alive(pid)).To(BeFalse())
	}
}

func testForget(s *suite) {
	uid := s.start("sleep")
	s.awaitPhase(uid, facts.Running)
	s.Expect(s.Runtime.Forget(s.ctx, uid)).NotTo(Succeed(), "the process is still running")
	s.Expect(s.observe(uid).Phase).To(Equal(facts.Running))
	s.killAndWait(uid)
	s.Expect(s.Runtime.Forget(s.ctx, uid)).To(Succeed())
	s.Expect(s.Runtime.Observe(s.ctx, uid)).To(BeEmpty())
	s.Expect(s.Runtime.List(s.ctx)).To(BeEmpty())
	s.Expect(s.Runtime.Forget(s.ctx, uid)).To(Succeed(), "again")
	if s.Logs {
		_, err := s.Runtime.Capabilities().Logs.OpenLog(s.ctx, uid)
		s.Expect(err).To(MatchError(runtime.ErrNotFound))
	}
	// The UID counts as new again.
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 1, "exit", "3"))).To(Succeed())
	ended := s.awaitPhase(uid, facts.Exited).Exit
	s.Expect(ended.Code).To(BeEquivalentTo(3), "%+v", ended)
}

func testPreviousExit(s *suite) {
	uid := s.start("exit", "3")
	first := s.awaitPhase(uid, facts.Exited)
	s.Expect(first.Before).To(BeNil())
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 2, "sleep"))).To(Succeed())
	second := s.awaitPhase(uid, facts.Running)
	s.Expect(second.Before).To(Equal(&facts.Ended{Number: 1, Exit: *first.Exit}))
	if s.Reopen != nil {
		s.Runtime = s.Reopen(s.T)
		s.Expect(s.observe(uid).Before).To(Equal(second.Before), "another manager reports the same")
	}
	s.Expect(s.Runtime.Kill(s.ctx, uid, 2)).To(Succeed())
	s.awaitPhase(uid, facts.Exited)
}

func testOrigin(s *suite) {
	process := s.process(newUID(), 1, "sleep")
	process.Origin = facts.Origin{SpecHash: "hash", RestartToken: "again \"and\" again"}
	s.Expect(s.Runtime.Start(s.ctx, process)).To(Succeed())
	s.Expect(s.awaitPhase(process.UID, facts.Running).Origin).To(Equal(process.Origin))
	other := process
	other.Origin.SpecHash = "other"
	s.Expect(s.Runtime.Start(s.ctx, other)).To(Succeed())
	if s.Reopen != nil {
		s.Runtime = s.Reopen(s.T)
	}
	s.Expect(s.observe(process.UID).Origin).To(Equal(process.Origin), "the origin stays the same for any manager and after other requests")
	s.Expect(s.Runtime.Kill(s.ctx, process.UID, 1)).To(Succeed())
	s.Expect(s.awaitPhase(process.UID, facts.Exited).Origin).To(Equal(process.Origin))
}

func testList(s *suite) {
	living, ended := s.start("sleep"), s.start("exit", "4")
	s.awaitPhase(living, facts.Running)
	s.awaitPhase(ended, facts.Exited)
	all, err := s.Runtime.List(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(all).To(ConsistOf(s.observe(living), s.observe(ended)))
	s.Expect(all).To(HaveEach(HaveField("Name", s.process("", 0).Name)), "the name, by which the process of a deleted object is found")
	s.killAndWait(living)
}

func testUnknownUID(s *suite) {
	uid := newUID()
	s.Expect(s.Runtime.Observe(s.ctx, uid)).To(BeEmpty())
	s.stop(uid, 1)
	s.Expect(s.Runtime.Kill(s.ctx, uid, 1)).To(Succeed())
	s.Expect(s.Runtime.Forget(s.ctx, uid)).To(Succeed())
	s.Expect(s.Runtime.List(s.ctx)).To(BeEmpty())
}

func testManagerCrash(s *suite) {
	uid := s.start("sleep")
	before := s.awaitPhase(uid, facts.Running)
	s.Runtime = s.Reopen(s.T)
	s.Expect(s.observe(uid)).To(Equal(before), "the new manager finds the same state immediately")
	s.Eventually(s.Runtime.Events()).WithTimeout(Timeout).Should(Receive(Equal(uid)), "the adoption causes an event")
	s.stop(uid, 1)
	s.Expect(s.awaitPhase(uid, facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
}

func testExitWithoutManager(s *suite) {
	ended, living := s.start("exit", "37"), s.start("sleep")
	s.awaitPhase(living, facts.Running)
	// A start that a manager has not delivered is lost with it.
	s.await(ended, "executed", func(i facts.Incarnation) bool { return i.Phase == facts.Running || i.Phase == facts.Exited })
	s.Runtime = s.Reopen(s.T)
	s.Expect(s.awaitPhase(ended, facts.Exited).Exit.Code).To(BeEquivalentTo(37))
	s.Runtime = s.Reopen(s.T)
	s.Expect(s.observe(ended).Exit.Code).To(BeEquivalentTo(37))
	s.Expect(s.observe(living).Phase).To(Equal(facts.Running))
	s.killAndWait(living)
}

func testIncarnationsAcrossManagers(s *suite) {
	uid := s.start("sleep")
	// The manager is replaced immediately, possibly before the process runs.
	s.Runtime = s.Reopen(s.T)
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 1, "sleep"))).To(Succeed())
	first := s.awaitPhase(uid, facts.Running)
	s.Runtime = s.Reopen(s.T)
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 1, "sleep"))).To(Succeed())
	s.Expect(s.observe(uid)).To(Equal(first))
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
	s.killAndWait(uid)
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 2, "sleep"))).To(Succeed())
	s.awaitPhase(uid, facts.Running)
	s.Runtime = s.Reopen(s.T)
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 1, "sleep"))).To(MatchError(runtime.ErrStale))
	s.killAndWait(uid)
}
