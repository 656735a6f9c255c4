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

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/shim"
)

func TestSessions_ListsForeignAndAdopted(t *testing.T) {
	f := newFixture(t)
	f.Expect(f.Sessions(f.ctx, "")).To(BeEmpty(), "no server is running")
	theirs := f.newForeignSession("has space")
	f.newForeignSession("agent")
	f.mustTmux("split-window", "-d", "-t", "=agent:", "sleep 1000")
	uid := f.adopt("agent")
	var all []Session
	f.Eventually(func(g Gomega) {
		var err error
		all, err = f.Sessions(f.ctx, f.socket)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(2))
		g.Expect(all[0].Command).To(Equal("workload"), "once the program is executed")
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	f.Expect(all[0]).To(And(HaveField("ID", "$0"), HaveField("Name", "has space"), HaveField("UID", types.UID("")), HaveField("Command", "workload"),
		HaveField("PanePID", int64(theirs.PID)), HaveField("Attached", 0)))
	f.Expect(all[0].Created).To(BeTemporally("~", time.Now(), patience))
	f.Expect(all[0].Activity).To(BeTemporally(">=", all[0].Created))
	f.Expect(all[1]).To(And(HaveField("ID", "$1"), HaveField("UID", uid), HaveField("PanePID", f.observe(uid).PID)))
	_, err := f.Sessions(f.ctx, "../elsewhere")
	f.Expect(err).To(HaveOccurred())
}

func TestSessions_ListsManyQuickly(t *testing.T) {
	f := newFixture(t)
	const many = 200
	args := []string{}
	for i := range many {
		args = append(args, "new-session", "-d", "-s", "s"+strconv.Itoa(i), "sleep", "1000", ";")
	}
	for len(args) > 0 {
		n := min(len(args), 50*7)
		f.mustTmux(args[:n-1]...)
		args = args[n:]
	}
	began := time.Now()
	f.Expect(f.Sessions(f.ctx, "")).To(HaveLen(many))
	took := time.Since(began)
	t.Logf("listing %d sessions took %s", many, took.Round(time.Millisecond))
	f.Expect(took).To(BeNumerically("<", 5*time.Second), "even on a busy machine")
}

func TestNew_FailsWithoutTmux(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("PATH", t.TempDir())
	_, err := New(nil, Options{Dir: t.TempDir(), Shim: filepath.Join(programs, "berth-shim")})
	g.Expect(err).To(MatchError(exec.ErrNotFound))
	g.Expect(err).To(MatchError(ContainSubstring("install it")))
}

// A mark without a record was left by a manager that crashed during a start. A mark of another install is respected.
func TestStart_RespectsSessionMarks(t *testing.T) {
	f := newFixture(t)
	theirs := f.newForeignSession("agent")
	f.mustTmux("set-option", "-t", "=agent:", markUID, "of-another")
	f.mustTmux("set-option", "-t", "=agent:", markInstall, "elsewhere")
	uid := newUID()
	err := f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent", Adopt: adoptIfExists}))
	f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonSessionTaken))
	f.Expect(err).To(MatchError(ContainSubstring("another Berth")))

	f.mustTmux("set-option", "-t", "=agent:", markInstall, f.install)
	f.Expect(f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent", Adopt: adoptIfExists}))).To(Succeed())
	f.Expect(identity(f.await(uid, 1, facts.Running))).To(Equal(theirs))

	// If the manager crashes after the mark and before the record, repeating the start finds the marked session.
	f.close()
	f.Expect(os.Remove(filepath.Join(f.dir, "tmux", string(uid)+recordSuffix))).To(Succeed())
	f.open()
	f.Expect(f.observeAll(uid)).To(BeEmpty())
	f.Expect(f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent", Adopt: adoptIfExists}))).To(Succeed())
	f.Expect(identity(f.await(uid, 1, facts.Running))).To(Equal(theirs))
}

// A session that a killed manager has created but not marked does not block a start.
func TestStart_NotBlockedByUnmarkedSession(t *testing.T) {
	f := newFixture(t)
	uid, other := newUID(), newUID()
	for name, of := range map[string]types.UID{"agent": uid, "elsewhere": other} {
		f.mustTmux("new-session", "-d", "-s", name, "--", f.options.Shim, shim.Window, f.machine.Directory(of), "name")
	}
	p := f.process(uid, 1, sessionConfig{Session: "agent"}, "terminal")
	// halfMade recognizes a window only after its process has executed berth-shim.
	f.Eventually(func() error { return f.Check(f.ctx, p) }).WithTimeout(patience).WithPolling(often).Should(Succeed())
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await(uid, 1, facts.Running)
	f.awaitText(uid, "ready")
	f.Expect(reasonOf(f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Session: "elsewhere"})))).To(Equal(v1alpha1.ReasonSessionTaken), "the session belongs to another object")
}

// Berth does not adopt the session in which it runs itself, because stopping it would stop Berth.
func TestAdopt_RefusesSessionOfBerthItself(t *testing.T) {
	f := newFixture(t)
	f.newForeignSession("agent")
	at := strings.SplitN(f.mustTmux("display-message", "-p", "-t", "=agent:", "#{pane_id} #{socket_path},#{pid},0"), " ", 2)
	t.Setenv("TMUX_PANE", at[0])
	t.Setenv("TMUX", at[1])
	err := f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Session: "agent", Adopt: adoptIfExists}))
	f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonSessionTaken))
	f.Expect(err).To(MatchError(ContainSubstring("in which berth itself is running")))
}
