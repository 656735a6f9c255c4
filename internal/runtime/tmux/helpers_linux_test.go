// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/shim"
)

func (b *bench) all(uid types.UID) []facts.Incarnation {
	b.Helper()
	found, err := b.Observe(b.ctx, uid)
	b.Expect(err).NotTo(HaveOccurred())
	return found
}

func (b *bench) observe(uid types.UID) facts.Incarnation {
	b.Helper()
	found := b.all(uid)
	b.Expect(len(found)).To(BeNumerically("<=", 1))
	if len(found) == 0 {
		return facts.Incarnation{}
	}
	return found[0]
}

func (b *bench) await(uid types.UID, incarnation int64, phase facts.Phase) facts.Incarnation {
	b.Helper()
	var now facts.Incarnation
	b.Eventually(func(g Gomega) {
		now = b.observe(uid)
		g.Expect(now).To(And(HaveField("Number", incarnation), HaveField("Phase", phase)))
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return now
}

// end kills the incarnation of a UID and waits for its exit.
func (b *bench) end(uid types.UID) facts.Incarnation {
	b.Helper()
	number := b.observe(uid).Number
	b.Expect(b.Kill(b.ctx, uid, number)).To(Succeed())
	return b.await(uid, number, facts.Exited)
}

// see waits until the terminal of a UID shows the text.
func (b *bench) see(uid types.UID, text string) {
	b.Helper()
	b.Eventually(b.Capture).WithArguments(b.ctx, uid).WithTimeout(patience).WithPolling(often).Should(HaveField("Text", ContainSubstring(text)))
}

// windowOf waits for the session with the window of a UID.
func (b *bench) windowOf(uid types.UID) *Session {
	b.Helper()
	var found *Session
	b.Eventually(func(g Gomega) {
		all, err := b.Sessions(b.ctx, "")
		g.Expect(err).NotTo(HaveOccurred())
		own, _ := of(all, uid, b.install, "")
		g.Expect(own).NotTo(BeNil())
		g.Expect(own.window()).NotTo(BeNil())
		found = own
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return found
}

func (b *bench) noSession(uid types.UID) {
	b.Helper()
	b.Eventually(func(g Gomega) {
		all, err := b.Sessions(b.ctx, "")
		g.Expect(err).NotTo(HaveOccurred())
		own, _ := of(all, uid, b.install, "")
		g.Expect(own).To(BeNil())
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
}

// signal sends a signal to exactly this process.
func (b *bench) signal(p shim.Process, signal unix.Signal) {
	b.Helper()
	fd, err := shim.Open(p)
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	b.Expect(unix.PidfdSendSignal(fd, signal, nil, 0)).To(Succeed())
}

func (b *bench) isGone(p shim.Process) {
	b.Helper()
	b.Eventually(func() (bool, error) { return lives(p) }).WithTimeout(patience).WithPolling(often).Should(BeFalse())
}

func (b *bench) lives(p shim.Process) {
	b.Helper()
	b.Expect(lives(p)).To(BeTrue())
}

// server returns the process of the tmux server.
func (b *bench) server() shim.Process {
	b.Helper()
	p, err := shim.Identify(number(b.mustTmux("display-message", "-p", "#{pid}")))
	b.Expect(err).NotTo(HaveOccurred())
	return p
}
