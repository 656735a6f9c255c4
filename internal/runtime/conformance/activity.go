// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

func reportsActivity(h Harness) bool {
	return h.Processes && h.Logs && h.Runtime.Capabilities().Logs != nil
}

// testActivity tests that output counts as activity and is reported once to a watcher.
func testActivity(s *suite) {
	watcher := s.Runtime.Capabilities().Logs
	_, err := watcher.LastActivity(s.ctx, "nobody")
	s.Expect(err).To(MatchError(runtime.ErrNotFound))
	s.Expect(watcher.Watch(s.ctx, "nobody")).NotTo(Succeed())

	begun := time.Now()
	uid := s.start("sleep")
	s.awaitOutput(uid, "ready")
	// A node that is under load may not return the log in time, so an error is permitted for a while.
	lastActivity := func(because string) (at time.Time) {
		s.Eventually(func() (err error) {
			at, err = watcher.LastActivity(s.ctx, uid)
			return err
		}).WithTimeout(Timeout).WithPolling(100*time.Millisecond).Should(Succeed(), because)
		return at
	}
	at := lastActivity("the time of the last output is known while the program runs")
	s.Expect(at).To(BeTemporally(">=", begun.Add(-time.Second)))
	s.Expect(at).To(BeTemporally("<=", time.Now().Add(time.Second)))
	s.Eventually(func() error { return watcher.Watch(s.ctx, uid) }).WithTimeout(Timeout).Should(Succeed())
	s.Expect(watcher.Watch(s.ctx, uid)).To(Succeed(), "two calls cause one event")
	s.killAndWait(uid)
	s.Expect(lastActivity("the time of the last output is known after the exit")).To(BeTemporally(">=", at))
}

func listsMembers(h Harness) bool {
	return h.Processes && !h.Container && h.Runtime.Capabilities().Inspection != nil // an engine may have no ps
}

// testMembers tests that a process that left the session is still listed.
func testMembers(s *suite) {
	inspection := s.Runtime.Capabilities().Inspection
	s.Expect(inspection.Members(s.ctx, "nobody")).To(BeEmpty())
	dir := s.TempDir()
	uid := s.start("tree", dir)
	leader := s.awaitPhase(uid, facts.Running)
	pids := s.treePIDs(leader.PID, dir)
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
	s.killAndWait(uid)
	s.Expect(inspection.Members(s.ctx, uid)).To(BeEmpty())
}
