// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

func watches(h Harness) bool {
	return h.Processes && h.Logs && h.Runtime.Capabilities().Logs != nil
}

// activity tests that output counts as activity and is reported once to a watcher.
func activity(s *suite) {
	watcher := s.Runtime.Capabilities().Logs
	_, err := watcher.LastActivity(s.ctx, "nobody")
	s.Expect(err).To(MatchError(runtime.ErrNotFound))
	s.Expect(watcher.Watch(s.ctx, "nobody")).NotTo(Succeed())

	begun := time.Now()
	uid := s.start("sleep")
	s.awaitOutput(uid, "ready")
	at, err := watcher.LastActivity(s.ctx, uid)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(at).To(BeTemporally(">=", begun.Add(-time.Second)))
	s.Expect(at).To(BeTemporally("<=", time.Now().Add(time.Second)))
	s.Expect(watcher.Watch(s.ctx, uid)).To(Succeed())
	s.Expect(watcher.Watch(s.ctx, uid)).To(Succeed(), "two calls cause one event")
	s.end(uid)
	again, err := watcher.LastActivity(s.ctx, uid)
	s.Expect(err).NotTo(HaveOccurred(), "the time of the last output is known after the exit")
	s.Expect(again).To(BeTemporally(">=", at))
}

func counts(h Harness) bool {
	return h.Processes && !h.Container && h.Runtime.Capabilities().Inspection != nil // an engine may have no ps
}

// members tests that a process that left the session is still listed.
func members(s *suite) {
	inspection := s.Runtime.Capabilities().Inspection
	s.Expect(inspection.Members(s.ctx, "nobody")).To(BeEmpty())
	dir := s.TempDir()
	uid := s.start("tree", dir)
	leader := s.awaitPhase(uid, facts.Running)
	pids := s.branches(leader.PID, dir)
	// The intermediate processes, which forked the others, may still be exiting.
	s.Eventually(func(g Gomega) {
		found, err := inspection.Members(s.ctx, uid)
		g.Expect(err).NotTo(HaveOccurred())
		listed := make([]int64, 0, len(found))
		for _, member := range found {
			listed = append(listed, member.PID)
			g.Expect(member.Name).To(HavePrefix("workload"), "a name without arguments")
		}
		g.Expect(listed).To(ConsistOf(append(pids, leader.PID)))
		g.Expect(listed[0]).To(Equal(leader.PID), "the program itself comes first")
	}).WithTimeout(Timeout).WithPolling(10 * time.Millisecond).Should(Succeed())
	s.end(uid)
	s.Expect(inspection.Members(s.ctx, uid)).To(BeEmpty())
}
