// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
)

func (f *fixture) observeAll(uid types.UID) []facts.Incarnation {
	f.Helper()
	found, err := f.Observe(f.ctx, uid)
	f.Expect(err).NotTo(HaveOccurred())
	return found
}

func (f *fixture) observe(uid types.UID) facts.Incarnation {
	f.Helper()
	found := f.observeAll(uid)
	f.Expect(len(found)).To(BeNumerically("<=", 1))
	if len(found) == 0 {
		return facts.Incarnation{}
	}
	return found[0]
}

func (f *fixture) await(uid types.UID, incarnation int64, phase facts.Phase) facts.Incarnation {
	f.Helper()
	var now facts.Incarnation
	f.Eventually(func(g Gomega) {
		now = f.observe(uid)
		g.Expect(now).To(And(HaveField("Number", incarnation), HaveField("Phase", phase)))
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return now
}

// killAndWait kills the incarnation of a UID and waits for its exit.
func (f *fixture) killAndWait(uid types.UID) facts.Incarnation {
	f.Helper()
	number := f.observe(uid).Number
	f.Expect(f.Kill(f.ctx, uid, number)).To(Succeed())
	return f.await(uid, number, facts.Exited)
}

// awaitText waits until the terminal of a UID shows the text.
func (f *fixture) awaitText(uid types.UID, text string) {
	f.Helper()
	f.Eventually(f.Capture).WithArguments(f.ctx, uid).WithTimeout(patience).WithPolling(often).Should(HaveField("Text", ContainSubstring(text)))
}

// awaitWindow waits for the session with the window of a UID.
func (f *fixture) awaitWindow(uid types.UID) *Session {
	f.Helper()
	var found *Session
	f.Eventually(func(g Gomega) {
		all, err := f.Sessions(f.ctx, "")
		g.Expect(err).NotTo(HaveOccurred())
		own, _ := of(all, uid, f.install, "")
		g.Expect(own).NotTo(BeNil())
		g.Expect(own.window()).NotTo(BeNil())
		found = own
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return found
}

func (f *fixture) awaitNoSession(uid types.UID) {
	f.Helper()
	f.Eventually(func(g Gomega) {
		all, err := f.Sessions(f.ctx, "")
		g.Expect(err).NotTo(HaveOccurred())
		own, _ := of(all, uid, f.install, "")
		g.Expect(own).To(BeNil())
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
}

func (f *fixture) awaitExit(p procstat.Process) {
	f.Helper()
	f.Eventually(func() (bool, error) { return procstat.Alive(p) }).WithTimeout(patience).WithPolling(often).Should(BeFalse())
}

func (f *fixture) expectAlive(p procstat.Process) {
	f.Helper()
	f.Expect(procstat.Alive(p)).To(BeTrue())
}

// tmuxServer returns the process of the tmux server.
func (f *fixture) tmuxServer() procstat.Process {
	f.Helper()
	p, err := procstat.Identify(number(f.mustTmux("display-message", "-p", "#{pid}")))
	f.Expect(err).NotTo(HaveOccurred())
	return p
}
