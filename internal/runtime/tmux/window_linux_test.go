// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

func reasonOf(err error) string {
	var refused *facts.StartError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return fmt.Sprint("no StartError: ", err)
}

// The window shows the terminal of the shim: input arrives, and the terminal has the size of the window.
func TestWindow_ShowsTerminalOfShim(t *testing.T) {
	f := newFixture(t)
	uid := f.start(sessionConfig{Session: "agent", Columns: 100, Rows: 33}, "terminal")
	f.awaitText(uid, "ready")
	s := f.awaitWindow(uid)
	f.Expect(s.Name).To(Equal("agent"))
	f.Expect(s.Attached).To(BeZero())
	f.Expect(s.UID).To(Equal(uid))
	f.awaitText(uid, "size 100x33")

	f.Expect(f.Type(f.ctx, uid, runtime.Line("by berth; 100% $(x) Enter"))).To(Succeed())
	f.awaitText(uid, "got <by berth; 100% $(x) Enter>")
	f.mustTmux("send-keys", "-t", "=agent:", "-l", "by tmux")
	f.mustTmux("send-keys", "-t", "=agent:", "Enter")
	f.awaitText(uid, "got <by tmux>")
	f.mustTmux("resize-window", "-t", "=agent:", "-x", "70", "-y", "20")
	f.awaitText(uid, "size 70x20")

	f.Expect(f.Type(f.ctx, uid, runtime.Keystrokes{Interrupt: true})).To(Succeed())
	ended := f.await(uid, 1, facts.Exited)
	f.Expect(ended.Exit.Signal).To(Equal("SIGINT"))
	f.awaitText(uid, "incarnation 1 was terminated by SIGINT")

	// The next incarnation uses the same window.
	f.Expect(f.Start(f.ctx, f.process(uid, 2, sessionConfig{Session: "agent"}, "terminal"))).To(Succeed())
	f.await(uid, 2, facts.Running)
	f.Expect(f.Type(f.ctx, uid, runtime.Line("again"))).To(Succeed())
	f.awaitText(uid, "got <again>")
	f.Expect(f.awaitWindow(uid).PanePID).To(Equal(s.PanePID))
	f.Expect(f.sessionNames()).To(ConsistOf("agent"))
	f.Expect(f.mustTmux("show-options", "-v", "-t", "=agent:", markIncarnation)).To(Equal("2"))

	place, found := f.Place(uid)
	f.Expect(found).To(BeTrue())
	f.Expect(place).To(Equal(Place{Socket: f.socket, Session: "agent", ID: s.ID}))
	command := f.AttachCommand(uid)
	f.Expect(command).To(HaveSuffix("tmux -L " + f.socket + " attach-session -t '=agent'"))
	f.killAndWait(uid)
	f.Expect(f.Forget(f.ctx, uid)).To(Succeed())
	f.Expect(f.sessionNames()).To(BeEmpty())
}

// Processes survive the tmux server, and their sessions are opened again.
func TestServerKilled_ReopensSessions(t *testing.T) {
	f := newFixture(t)
	uid, other := f.start(sessionConfig{Session: "one"}, "terminal"), f.start(sessionConfig{Session: "two"}, "terminal")
	before := f.observe(uid)
	f.awaitText(uid, "ready")
	old := f.tmuxServer()
	conformance.Signal(f.WithT, old, unix.SIGKILL)
	f.awaitExit(old)
	f.Expect(f.observe(uid)).To(Equal(before), "the process belongs to the shim")
	f.awaitWindow(uid)
	f.awaitWindow(other)
	f.Expect(f.tmuxServer()).NotTo(Equal(old))
	f.Expect(f.sessionNames()).To(ConsistOf("one", "two"))
	f.awaitText(uid, "ready") // earlier output is shown again
	f.Expect(f.Type(f.ctx, uid, runtime.Line("hello"))).To(Succeed())
	f.awaitText(uid, "got <hello>")
	f.Expect(f.observe(uid)).To(Equal(before))
}

// While its process is running, a closed session or window is opened again, even if it was closed while no manager was running.
func TestSessionKilled_ReopensWindow(t *testing.T) {
	f := newFixture(t)
	uid := f.start(sessionConfig{Session: "agent"}, "terminal")
	before := f.observe(uid)
	first := f.awaitWindow(uid)
	f.mustTmux("kill-session", "-t", "=agent")
	f.Eventually(func() int64 { return f.awaitWindow(uid).PanePID }).WithTimeout(patience).ShouldNot(Equal(first.PanePID))

	// A session with another pane stays and gets a new window.
	second := f.awaitWindow(uid)
	f.mustTmux("split-window", "-d", "-t", "=agent:", "sleep 1000")
	f.mustTmux("kill-pane", "-t", second.window().id)
	f.Eventually(func() string { return f.awaitWindow(uid).window().id }).WithTimeout(patience).ShouldNot(Equal(second.window().id))
	f.Expect(f.sessionNames()).To(ConsistOf("agent"))

	f.close()
	f.mustTmux("kill-server")
	f.open()
	f.awaitWindow(uid)
	f.Expect(f.observe(uid)).To(Equal(before))
}

// A renamed session is found by its mark.
func TestRenamedSession_IsFoundByMark(t *testing.T) {
	f := newFixture(t)
	uid := f.start(sessionConfig{Session: "agent"}, "terminal")
	f.mustTmux("rename-session", "-t", "=agent", "mine")
	f.killAndWait(uid)
	f.Expect(f.Start(f.ctx, f.process(uid, 2, sessionConfig{Session: "agent"}, "terminal"))).To(Succeed())
	f.await(uid, 2, facts.Running)
	f.Expect(f.sessionNames()).To(ConsistOf("mine"))
	f.killAndWait(uid)
	f.Expect(f.Forget(f.ctx, uid)).To(Succeed())
	f.Expect(f.sessionNames()).To(BeEmpty())
}

// The tmux server exits with its last session. A start at that moment succeeds.
func TestStart_SucceedsWhileServerExits(t *testing.T) {
	f := newFixture(t)
	for i := range 25 {
		uid := newUID()
		f.Expect(f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent"}, "sleep"))).To(Succeed(), "%d", i)
		f.await(uid, 1, facts.Running)
		f.killAndWait(uid)
		f.Expect(f.Forget(f.ctx, uid)).To(Succeed(), "%d", i)
	}
	for i := range 15 {
		uid := newUID()
		f.Expect(f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent"}, "sleep"))).To(Succeed(), "%d", i)
		_, _ = f.tmux("kill-server")
		next := newUID()
		f.Expect(f.Start(f.ctx, f.process(next, 1, sessionConfig{Session: "other"}, "sleep"))).To(Succeed(), "%d", i)
		for _, uid := range []types.UID{uid, next} {
			f.await(uid, 1, facts.Running)
			f.killAndWait(uid)
			f.Expect(f.Forget(f.ctx, uid)).To(Succeed(), "%d", i)
		}
	}
}

// Two starts of one incarnation create one session. If two objects want the same session name, exactly one gets it.
func TestStart_ConcurrentStartsCreateOneSession(t *testing.T) {
	f := newFixture(t)
	uid := newUID()
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() { errs[i] = f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent"}, "sleep")) })
	}
	all.Wait()
	f.Expect(errs).To(HaveEach(BeNil()))
	f.Expect(f.sessionNames()).To(ConsistOf("agent"))

	for i := range errs {
		all.Go(func() { errs[i] = f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Session: "shared"}, "sleep")) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonSessionTaken))
		}
	}
	f.Expect(won).To(Equal(1))
	f.Expect(f.sessionNames()).To(ConsistOf("agent", "shared"))
	f.Expect(f.List(f.ctx)).To(HaveLen(2), "the other object has started no process")
}

// A session whose name only begins with the wanted name, such as claude-foobar for claude-foo, is a different session.
func TestSessionName_DoesNotMatchPrefix(t *testing.T) {
	f := newFixture(t)
	longer := f.newForeignSession("claude-foobar")
	uid := f.start(sessionConfig{Session: "claude-foo"}, "terminal")
	f.Expect(f.sessionNames()).To(ConsistOf("claude-foo", "claude-foobar"))
	f.killAndWait(uid)
	f.Expect(f.Forget(f.ctx, uid)).To(Succeed())
	f.Expect(f.sessionNames()).To(ConsistOf("claude-foobar"))
	f.expectAlive(longer)

	required := newUID()
	err := f.Start(f.ctx, f.process(required, 1, sessionConfig{Session: "claude-foo", Adopt: adoptRequired}))
	f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonNothingToAdopt))
	f.expectAlive(longer)
}

// The tmux configuration of the user, the default socket and the pane of the manager have no influence.
func TestStart_IgnoresTmuxConfigurationOfUser(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("TMUX", "/tmp/elsewhere,1,0")
	t.Setenv("TMUX_PANE", "%7")
	t.Setenv("A_SECRET_OF_THE_MANAGER", "hidden")
	g := NewWithT(t)
	g.Expect(os.WriteFile(filepath.Join(home, ".tmux.conf"), []byte("set -g base-index 7\nset -g remain-on-exit on\nset -g default-command false\n"), 0o600)).To(Succeed())
	f := newFixture(t)
	uid := f.start(sessionConfig{Session: "agent"}, "terminal")
	f.awaitText(uid, "ready")
	f.Expect(f.mustTmux("show-options", "-g", "-v", "base-index")).To(Equal("0"))
	f.Expect(f.mustTmux("show-environment", "-g")).NotTo(ContainSubstring("hidden"))
	f.Expect(filepath.Join(os.Getenv("TMUX_TMPDIR"), fmt.Sprintf("tmux-%d", os.Geteuid()), "default")).NotTo(BeAnExistingFile())

	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", f.observe(uid).PID))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(string(environ)).To(ContainSubstring("hidden"))
	f.Expect(string(environ)).NotTo(Or(ContainSubstring("\x00TMUX="), ContainSubstring("TMUX_PANE")), "the process does not inherit the pane of the manager")
}

func TestStart_RefusesForeignSession(t *testing.T) {
	f := newFixture(t)
	theirs := f.newForeignSession("agent")
	uid := newUID()
	p := f.process(uid, 1, sessionConfig{Session: "agent"})
	err := f.Start(f.ctx, p)
	f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonSessionTaken))
	f.Expect(err).To(MatchError(ContainSubstring("kill-session -t '=agent'")))
	f.Expect(reasonOf(f.Check(f.ctx, p))).To(Equal(v1alpha1.ReasonSessionTaken))
	f.Expect(f.observeAll(uid)).To(BeEmpty())
	f.expectAlive(theirs)
	f.Expect(f.mustTmux("show-options", "-t", "=agent:")).NotTo(ContainSubstring("@berth"))

	// Once the name is free, the object can use it.
	f.mustTmux("kill-session", "-t", "=agent")
	f.awaitExit(theirs)
	f.Expect(f.Check(f.ctx, p)).To(Succeed())
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
}

func TestSessionName_RefusesUnsafeNames(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"a.b", "a:b", "a#{pid}", "a\nb", "-a", `a\b`, "$x", strings.Repeat("a", 200)} {
		err := f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Session: name}))
		f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonInvalidSession), name)
	}
	f.Expect(checkSessionName("a\xff")).NotTo(Succeed())
	for _, name := range []string{"../a", "a b", "-a"} {
		f.Expect(reasonOf(f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Socket: name})))).To(Equal(v1alpha1.ReasonInvalidSession), name)
	}
	f.Expect(reasonOf(f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Adopt: "Maybe"})))).To(Equal(v1alpha1.ReasonInvalidSession))
	for _, name := range []string{"with space", "semicolon;", "größe", "it's", "{a}", "=a", "@1", "%1", "a*", "~"} {
		uid := f.start(sessionConfig{Session: name}, "terminal")
		f.awaitText(uid, "ready")
		f.Expect(f.sessionNames()).To(ContainElement(name))
		attach := exec.Command("sh", "-c", strings.Replace(f.AttachCommand(uid), "attach-session", "has-session", 1))
		out, err := attach.CombinedOutput()
		f.Expect(err).NotTo(HaveOccurred(), string(out))
	}
}

// A session stays open between incarnations, unless Keep is false for its UID.
func TestKeep_ControlsSessionAfterExit(t *testing.T) {
	f := newFixture(t)
	uid := f.start(sessionConfig{Session: "agent"}, "terminal")
	f.awaitWindow(uid)
	f.Keep(uid, false)
	f.Expect(f.Type(f.ctx, uid, runtime.Line("still here"))).To(Succeed())
	f.awaitText(uid, "got <still here>")
	f.killAndWait(uid)
	f.awaitNoSession(uid)
	f.Expect(f.observe(uid).Exit.Signal).To(Equal("SIGKILL"), "the recorded exit stays")
	f.Keep(uid, true)
	f.Expect(f.Start(f.ctx, f.process(uid, 2, sessionConfig{Session: "agent"}, "terminal"))).To(Succeed())
	f.awaitWindow(uid)
	f.killAndWait(uid)
	f.awaitWindow(uid)
	f.Keep(uid, false)
	f.awaitNoSession(uid)
}

// Tidy kills the session of an exited process, even if Keep is true for its UID. It does not affect a running process.
func TestTidy_KillsSessionOfExitedProcess(t *testing.T) {
	f := newFixture(t)
	uid := f.start(sessionConfig{Session: "agent"}, "terminal")
	f.Keep(uid, true)
	f.awaitWindow(uid)
	f.Expect(f.Tidy(f.ctx, uid)).To(Succeed())
	f.awaitWindow(uid)
	f.killAndWait(uid)
	f.Expect(f.Tidy(f.ctx, uid)).To(Succeed())
	f.Expect(f.sessionNames()).To(BeEmpty())
	f.Expect(f.Tidy(f.ctx, uid)).To(Succeed(), "a repeated Tidy")
	f.Expect(f.observe(uid).Exit).NotTo(BeNil(), "the recorded exit stays")
}

// A UID that the host forgets because its object was deleted leaves no session behind.
func TestForgottenUID_LeavesNoSession(t *testing.T) {
	f := newFixture(t)
	uid := f.start(sessionConfig{Session: "agent"}, "terminal")
	f.killAndWait(uid)
	f.reopen()
	f.awaitWindow(uid)
	f.Expect(f.machine.Forget(f.ctx, uid)).To(Succeed())
	f.reopen()
	f.awaitNoSession(uid)
	f.Eventually(func() (*record, error) { return f.read(uid) }).WithTimeout(patience).Should(BeNil())
}

// A tmux server that does not respond affects neither Observe nor Stop, because the shim holds the process.
func TestSilentServer_DoesNotBlockObserveAndStop(t *testing.T) {
	f := newFixture(t)
	uid := f.start(sessionConfig{Session: "agent"}, "terminal")
	before := f.observe(uid)
	server := f.tmuxServer()
	conformance.Signal(f.WithT, server, unix.SIGSTOP)
	defer conformance.Signal(f.WithT, server, unix.SIGCONT)
	f.Expect(f.observe(uid)).To(Equal(before), "the process belongs to the shim, and tmux is not queried")
	f.Expect(f.Stop(f.ctx, uid, 1)).To(Succeed())
	f.await(uid, 1, facts.Exited)
}

// TestInput_ReportsHowProgramReadsTerminal checks that the screen includes the cursor, and that the shim reports how the program reads the terminal. For an
// adopted session, the reader is unknown.
func TestInput_ReportsHowProgramReadsTerminal(t *testing.T) {
	f := newFixture(t)
	uid := newUID()
	p := f.process(uid, 1, sessionConfig{Session: "asks"})
	p.Command = []string{"/bin/sh", "-c", `echo "Settings"; printf "Deploy where "; read place`}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await(uid, 1, facts.Running)
	f.awaitText(uid, "Deploy where")
	f.Eventually(f.Capture).WithArguments(f.ctx, uid).WithTimeout(patience).Should(And(HaveField("Prompt", "Deploy where"), HaveField("Hidden", false), HaveField("FullScreen", false)))
	f.Eventually(f.Input).WithArguments(f.ctx, uid).WithTimeout(patience).
		Should(Equal(facts.Input{Reader: facts.ReaderRead, Program: "sh", Canonical: true, Echo: true}))

	f.newForeignSession("theirs", "terminal")
	adopted := f.adopt("theirs")
	f.awaitText(adopted, "ready")
	_, err := f.Input(f.ctx, adopted)
	f.Expect(err).To(MatchError(errors.ErrUnsupported))
}
