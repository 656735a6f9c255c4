// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/shim"
)

func TestSessions(t *testing.T) {
	b := newBench(t)
	b.Expect(b.Sessions(b.ctx, "")).To(BeEmpty(), "no server is running")
	theirs := b.foreign("has space")
	b.foreign("agent")
	b.mustTmux("split-window", "-d", "-t", "=agent:", "sleep 1000")
	uid := b.adopt("agent")
	var all []Session
	b.Eventually(func(g Gomega) {
		var err error
		all, err = b.Sessions(b.ctx, b.socket)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(2))
		g.Expect(all[0].Command).To(Equal("workload"), "once it is executed")
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	b.Expect(all[0]).To(And(HaveField("ID", "$0"), HaveField("Name", "has space"), HaveField("UID", types.UID("")), HaveField("Command", "workload"),
		HaveField("PanePID", int64(theirs.PID)), HaveField("Attached", 0)))
	b.Expect(all[0].Created).To(BeTemporally("~", time.Now(), patience))
	b.Expect(all[0].Activity).To(BeTemporally(">=", all[0].Created))
	b.Expect(all[1]).To(And(HaveField("ID", "$1"), HaveField("UID", uid), HaveField("PanePID", b.observe(uid).PID)))
	_, err := b.Sessions(b.ctx, "../elsewhere")
	b.Expect(err).To(HaveOccurred())
}

func TestManySessions(t *testing.T) {
	b := newBench(t)
	const many = 200
	args := []string{}
	for i := range many {
		args = append(args, "new-session", "-d", "-s", "s"+strconv.Itoa(i), "sleep", "1000", ";")
	}
	for len(args) > 0 {
		n := min(len(args), 50*7)
		b.mustTmux(args[:n-1]...)
		args = args[n:]
	}
	began := time.Now()
	b.Expect(b.Sessions(b.ctx, "")).To(HaveLen(many))
	took := time.Since(began)
	t.Logf("listing %d sessions took %s", many, took.Round(time.Millisecond))
	b.Expect(took).To(BeNumerically("<", 5*time.Second), "on a busy machine")
}

func TestWithoutTmux(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("PATH", t.TempDir())
	_, err := New(nil, Options{Dir: t.TempDir(), Shim: filepath.Join(programs, "berth-shim")})
	g.Expect(err).To(MatchError(exec.ErrNotFound))
	g.Expect(err).To(MatchError(ContainSubstring("install it")))
}

// A mark without a record was left by a manager that crashed during a start. A mark of another install is respected.
func TestMarks(t *testing.T) {
	b := newBench(t)
	theirs := b.foreign("agent")
	b.mustTmux("set-option", "-t", "=agent:", markUID, "of-another")
	b.mustTmux("set-option", "-t", "=agent:", markInstall, "elsewhere")
	uid := newUID()
	err := b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent", Adopt: IfExists}))
	b.Expect(reasonOf(err)).To(Equal(ReasonSessionTaken))
	b.Expect(err).To(MatchError(ContainSubstring("another Berth")))

	b.mustTmux("set-option", "-t", "=agent:", markInstall, b.install)
	b.Expect(b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent", Adopt: IfExists}))).To(Succeed())
	b.Expect(identity(b.await(uid, 1, facts.Running))).To(Equal(theirs))

	// If the manager crashes after the mark and before the record, repeating the start finds the marked session.
	b.close()
	b.Expect(os.Remove(filepath.Join(b.dir, "tmux", string(uid)+recordSuffix))).To(Succeed())
	b.open()
	b.Expect(b.all(uid)).To(BeEmpty())
	b.Expect(b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent", Adopt: IfExists}))).To(Succeed())
	b.Expect(identity(b.await(uid, 1, facts.Running))).To(Equal(theirs))
}

// A session that a killed manager has created but not marked does not block a start.
func TestHalfMade(t *testing.T) {
	b := newBench(t)
	uid, other := newUID(), newUID()
	for name, of := range map[string]types.UID{"agent": uid, "elsewhere": other} {
		b.mustTmux("new-session", "-d", "-s", name, "--", b.options.Shim, shim.Window, b.machine.Directory(of), "name")
	}
	p := b.process(uid, 1, Config{Session: "agent"}, "terminal")
	// A window is recognized only after its exec.
	b.Eventually(func() error { return b.Check(b.ctx, p) }).WithTimeout(patience).WithPolling(often).Should(Succeed())
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	b.await(uid, 1, facts.Running)
	b.see(uid, "ready")
	b.Expect(reasonOf(b.Start(b.ctx, b.process(newUID(), 1, Config{Session: "elsewhere"})))).To(Equal(ReasonSessionTaken), "the session belongs to another object")
}

// Berth does not adopt the session in which it runs itself, because stopping it would stop Berth.
func TestOwnSession(t *testing.T) {
	b := newBench(t)
	b.foreign("agent")
	at := strings.SplitN(b.mustTmux("display-message", "-p", "-t", "=agent:", "#{pane_id} #{socket_path},#{pid},0"), " ", 2)
	t.Setenv("TMUX_PANE", at[0])
	t.Setenv("TMUX", at[1])
	err := b.Start(b.ctx, b.process(newUID(), 1, Config{Session: "agent", Adopt: IfExists}))
	b.Expect(reasonOf(err)).To(Equal(ReasonSessionTaken))
	b.Expect(err).To(MatchError(ContainSubstring("in which berth itself is running")))
}
