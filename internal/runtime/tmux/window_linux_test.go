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

	"github.com/berth-dev/berth/internal/facts"
)

func reasonOf(err error) string {
	var refused *facts.StartError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return fmt.Sprint("no StartError: ", err)
}

// The window shows the terminal of the shim: input arrives, and the terminal has the size of the window.
func TestWindow(t *testing.T) {
	b := newBench(t)
	uid := b.start(Config{Session: "agent", Columns: 100, Rows: 33}, "terminal")
	b.see(uid, "ready")
	s := b.windowOf(uid)
	b.Expect(s.Name).To(Equal("agent"))
	b.Expect(s.Attached).To(BeZero())
	b.Expect(s.UID).To(Equal(uid))
	b.see(uid, "size 100x33")

	b.Expect(b.Type(b.ctx, uid, []byte("by berth; 100% $(x) Enter\r"))).To(Succeed())
	b.see(uid, "got <by berth; 100% $(x) Enter>")
	b.mustTmux("send-keys", "-t", "=agent:", "-l", "by tmux")
	b.mustTmux("send-keys", "-t", "=agent:", "Enter")
	b.see(uid, "got <by tmux>")
	b.mustTmux("resize-window", "-t", "=agent:", "-x", "70", "-y", "20")
	b.see(uid, "size 70x20")

	b.Expect(b.Type(b.ctx, uid, []byte("\x03"))).To(Succeed())
	ended := b.await(uid, 1, facts.Exited)
	b.Expect(ended.Exit.Signal).To(Equal("SIGINT"))
	b.see(uid, "incarnation 1 was terminated by SIGINT")

	// The next incarnation uses the same window.
	b.Expect(b.Start(b.ctx, b.process(uid, 2, Config{Session: "agent"}, "terminal"))).To(Succeed())
	b.await(uid, 2, facts.Running)
	b.Expect(b.Type(b.ctx, uid, []byte("again\r"))).To(Succeed())
	b.see(uid, "got <again>")
	b.Expect(b.windowOf(uid).PanePID).To(Equal(s.PanePID))
	b.Expect(b.sessionNames()).To(ConsistOf("agent"))
	b.Expect(b.mustTmux("show-options", "-v", "-t", "=agent:", markIncarnation)).To(Equal("2"))

	place, found := b.Place(uid)
	b.Expect(found).To(BeTrue())
	b.Expect(place).To(Equal(Place{Socket: b.socket, Session: "agent", ID: s.ID}))
	command := b.AttachCommand(uid)
	b.Expect(command).To(HaveSuffix("tmux -L " + b.socket + " attach-session -t '=agent'"))
	b.end(uid)
	b.Expect(b.Forget(b.ctx, uid)).To(Succeed())
	b.Expect(b.sessionNames()).To(BeEmpty())
}

// Processes survive the tmux server, and their sessions are opened again.
func TestServerKilled(t *testing.T) {
	b := newBench(t)
	uid, other := b.start(Config{Session: "one"}, "terminal"), b.start(Config{Session: "two"}, "terminal")
	before := b.observe(uid)
	b.see(uid, "ready")
	old := b.server()
	b.signal(old, unix.SIGKILL)
	b.isGone(old)
	b.Expect(b.observe(uid)).To(Equal(before), "the process belongs to the shim")
	b.windowOf(uid)
	b.windowOf(other)
	b.Expect(b.server()).NotTo(Equal(old))
	b.Expect(b.sessionNames()).To(ConsistOf("one", "two"))
	b.see(uid, "ready") // earlier output is shown again
	b.Expect(b.Type(b.ctx, uid, []byte("hello\r"))).To(Succeed())
	b.see(uid, "got <hello>")
	b.Expect(b.observe(uid)).To(Equal(before))
}

// A closed session or window is opened again while its process runs, also if it was closed while no manager ran.
func TestSessionKilled(t *testing.T) {
	b := newBench(t)
	uid := b.start(Config{Session: "agent"}, "terminal")
	before := b.observe(uid)
	first := b.windowOf(uid)
	b.mustTmux("kill-session", "-t", "=agent")
	b.Eventually(func() int64 { return b.windowOf(uid).PanePID }).WithTimeout(patience).ShouldNot(Equal(first.PanePID))

	// A session with another pane stays and gets a new window.
	second := b.windowOf(uid)
	b.mustTmux("split-window", "-d", "-t", "=agent:", "sleep 1000")
	b.mustTmux("kill-pane", "-t", second.window().id)
	b.Eventually(func() string { return b.windowOf(uid).window().id }).WithTimeout(patience).ShouldNot(Equal(second.window().id))
	b.Expect(b.sessionNames()).To(ConsistOf("agent"))

	b.close()
	b.mustTmux("kill-server")
	b.open()
	b.windowOf(uid)
	b.Expect(b.observe(uid)).To(Equal(before))
}

// A renamed session is found by its mark.
func TestRenamed(t *testing.T) {
	b := newBench(t)
	uid := b.start(Config{Session: "agent"}, "terminal")
	b.mustTmux("rename-session", "-t", "=agent", "mine")
	b.end(uid)
	b.Expect(b.Start(b.ctx, b.process(uid, 2, Config{Session: "agent"}, "terminal"))).To(Succeed())
	b.await(uid, 2, facts.Running)
	b.Expect(b.sessionNames()).To(ConsistOf("mine"))
	b.end(uid)
	b.Expect(b.Forget(b.ctx, uid)).To(Succeed())
	b.Expect(b.sessionNames()).To(BeEmpty())
}

// The tmux server exits with its last session. A start at that moment succeeds.
func TestStopAndStartBackToBack(t *testing.T) {
	b := newBench(t)
	for i := range 25 {
		uid := newUID()
		b.Expect(b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent"}, "sleep"))).To(Succeed(), "%d", i)
		b.await(uid, 1, facts.Running)
		b.end(uid)
		b.Expect(b.Forget(b.ctx, uid)).To(Succeed(), "%d", i)
	}
	for i := range 15 {
		uid := newUID()
		b.Expect(b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent"}, "sleep"))).To(Succeed(), "%d", i)
		_, _ = b.tmux("kill-server")
		next := newUID()
		b.Expect(b.Start(b.ctx, b.process(next, 1, Config{Session: "other"}, "sleep"))).To(Succeed(), "%d", i)
		for _, uid := range []types.UID{uid, next} {
			b.await(uid, 1, facts.Running)
			b.end(uid)
			b.Expect(b.Forget(b.ctx, uid)).To(Succeed(), "%d", i)
		}
	}
}

// Two starts of one incarnation create one session. If two objects want the same session name, exactly one gets it.
func TestStartsAtOnce(t *testing.T) {
	b := newBench(t)
	uid := newUID()
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() { errs[i] = b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent"}, "sleep")) })
	}
	all.Wait()
	b.Expect(errs).To(HaveEach(BeNil()))
	b.Expect(b.sessionNames()).To(ConsistOf("agent"))

	for i := range errs {
		all.Go(func() { errs[i] = b.Start(b.ctx, b.process(newUID(), 1, Config{Session: "shared"}, "sleep")) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			b.Expect(reasonOf(err)).To(Equal(ReasonSessionTaken))
		}
	}
	b.Expect(won).To(Equal(1))
	b.Expect(b.sessionNames()).To(ConsistOf("agent", "shared"))
	b.Expect(b.List(b.ctx)).To(HaveLen(2), "the other object has started no process")
}

// A session whose name only begins with the wanted name, such as claude-foobar for claude-foo, is a different session.
func TestNameThatBeginsAnother(t *testing.T) {
	b := newBench(t)
	longer := b.foreign("claude-foobar")
	uid := b.start(Config{Session: "claude-foo"}, "terminal")
	b.Expect(b.sessionNames()).To(ConsistOf("claude-foo", "claude-foobar"))
	b.end(uid)
	b.Expect(b.Forget(b.ctx, uid)).To(Succeed())
	b.Expect(b.sessionNames()).To(ConsistOf("claude-foobar"))
	b.lives(longer)

	required := newUID()
	err := b.Start(b.ctx, b.process(required, 1, Config{Session: "claude-foo", Adopt: Required}))
	b.Expect(reasonOf(err)).To(Equal(ReasonSessionMissing))
	b.lives(longer)
}

// The tmux configuration of the user, the default socket and the pane of the manager have no influence.
func TestSurroundings(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("TMUX", "/tmp/elsewhere,1,0")
	t.Setenv("TMUX_PANE", "%7")
	t.Setenv("A_SECRET_OF_THE_MANAGER", "hidden")
	g := NewWithT(t)
	g.Expect(os.WriteFile(filepath.Join(home, ".tmux.conf"), []byte("set -g base-index 7\nset -g remain-on-exit on\nset -g default-command false\n"), 0o600)).To(Succeed())
	b := newBench(t)
	uid := b.start(Config{Session: "agent"}, "terminal")
	b.see(uid, "ready")
	b.Expect(b.mustTmux("show-options", "-g", "-v", "base-index")).To(Equal("0"))
	b.Expect(b.mustTmux("show-environment", "-g")).NotTo(ContainSubstring("hidden"))
	b.Expect(filepath.Join(os.Getenv("TMUX_TMPDIR"), fmt.Sprintf("tmux-%d", os.Geteuid()), "default")).NotTo(BeAnExistingFile())

	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", b.observe(uid).PID))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(string(environ)).To(ContainSubstring("hidden"))
	b.Expect(string(environ)).NotTo(Or(ContainSubstring("\x00TMUX="), ContainSubstring("TMUX_PANE")), "the process does not inherit the pane of the manager")
}

func TestForeignSession(t *testing.T) {
	b := newBench(t)
	theirs := b.foreign("agent")
	uid := newUID()
	p := b.process(uid, 1, Config{Session: "agent"})
	err := b.Start(b.ctx, p)
	b.Expect(reasonOf(err)).To(Equal(ReasonSessionTaken))
	b.Expect(err).To(MatchError(ContainSubstring("kill-session -t '=agent'")))
	b.Expect(reasonOf(b.Check(b.ctx, p))).To(Equal(ReasonSessionTaken))
	b.Expect(b.all(uid)).To(BeEmpty())
	b.lives(theirs)
	b.Expect(b.mustTmux("show-options", "-t", "=agent:")).NotTo(ContainSubstring("@berth"))

	// Once the name is free, the object can use it.
	b.mustTmux("kill-session", "-t", "=agent")
	b.isGone(theirs)
	b.Expect(b.Check(b.ctx, p)).To(Succeed())
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
}

func TestBadNames(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"a.b", "a:b", "a#{pid}", "a\nb", "-a", `a\b`, "$x", strings.Repeat("a", 200)} {
		err := b.Start(b.ctx, b.process(newUID(), 1, Config{Session: name}))
		b.Expect(reasonOf(err)).To(Equal(ReasonInvalidSession), name)
	}
	b.Expect(CheckSessionName("a\xff")).NotTo(Succeed())
	for _, name := range []string{"../a", "a b", "-a"} {
		b.Expect(reasonOf(b.Start(b.ctx, b.process(newUID(), 1, Config{Socket: name})))).To(Equal(ReasonInvalidSession), name)
	}
	b.Expect(reasonOf(b.Start(b.ctx, b.process(newUID(), 1, Config{Adopt: "Maybe"})))).To(Equal(ReasonInvalidSession))
	for _, name := range []string{"with space", "semicolon;", "größe", "it's", "{a}", "=a", "@1", "%1", "a*", "~"} {
		uid := b.start(Config{Session: name}, "terminal")
		b.see(uid, "ready")
		b.Expect(b.sessionNames()).To(ContainElement(name))
		attach := exec.Command("sh", "-c", strings.Replace(b.AttachCommand(uid), "attach-session", "has-session", 1))
		out, err := attach.CombinedOutput()
		b.Expect(err).NotTo(HaveOccurred(), string(out))
	}
}

// A session stays open between incarnations, unless Keep is false for its UID.
func TestKeep(t *testing.T) {
	b := newBench(t)
	uid := b.start(Config{Session: "agent"}, "terminal")
	b.windowOf(uid)
	b.Keep(uid, false)
	b.Expect(b.Type(b.ctx, uid, []byte("still here\r"))).To(Succeed())
	b.see(uid, "got <still here>")
	b.end(uid)
	b.noSession(uid)
	b.Expect(b.observe(uid).Exit.Signal).To(Equal("SIGKILL"), "the recorded exit stays")
	b.Keep(uid, true)
	b.Expect(b.Start(b.ctx, b.process(uid, 2, Config{Session: "agent"}, "terminal"))).To(Succeed())
	b.windowOf(uid)
	b.end(uid)
	b.windowOf(uid)
	b.Keep(uid, false)
	b.noSession(uid)
}

// When everything is shut down, no session is kept for a next incarnation.
func TestTidy(t *testing.T) {
	b := newBench(t)
	uid := b.start(Config{Session: "agent"}, "terminal")
	b.Keep(uid, true)
	b.windowOf(uid)
	b.Expect(b.Tidy(b.ctx, uid)).To(Succeed())
	b.windowOf(uid)
	b.end(uid)
	b.Expect(b.Tidy(b.ctx, uid)).To(Succeed())
	b.Expect(b.sessionNames()).To(BeEmpty())
	b.Expect(b.Tidy(b.ctx, uid)).To(Succeed(), "again")
	b.Expect(b.observe(uid).Exit).NotTo(BeNil(), "the recorded exit stays")
}

// A UID that the host forgets because its object was deleted leaves no session behind.
func TestForgottenByForce(t *testing.T) {
	b := newBench(t)
	uid := b.start(Config{Session: "agent"}, "terminal")
	b.end(uid)
	b.reopen()
	b.windowOf(uid)
	b.Expect(b.machine.Forget(b.ctx, uid)).To(Succeed())
	b.reopen()
	b.noSession(uid)
	b.Eventually(func() (*record, error) { return b.read(uid) }).WithTimeout(patience).Should(BeNil())
}

// A tmux server that does not respond is neither alive nor dead.
func TestSilentServer(t *testing.T) {
	b := newBench(t)
	uid := b.start(Config{Session: "agent"}, "terminal")
	before := b.observe(uid)
	server := b.server()
	b.signal(server, unix.SIGSTOP)
	defer b.signal(server, unix.SIGCONT)
	b.Expect(b.observe(uid)).To(Equal(before), "the process belongs to the shim, and tmux is not queried")
	b.Expect(b.Stop(b.ctx, uid, 1)).To(Succeed())
	b.await(uid, 1, facts.Exited)
}

// TestInput checks that the screen includes the cursor, and that the shim reports how the program reads the terminal. For an adopted session, the reader
// is unknown.
func TestInput(t *testing.T) {
	b := newBench(t)
	uid := newUID()
	p := b.process(uid, 1, Config{Session: "asks"})
	p.Command = []string{"/bin/sh", "-c", `echo "Settings"; printf "Deploy where "; read place`}
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	b.await(uid, 1, facts.Running)
	b.see(uid, "Deploy where")
	b.Eventually(b.Capture).WithArguments(b.ctx, uid).WithTimeout(patience).Should(And(HaveField("Prompt", "Deploy where"), HaveField("Hidden", false), HaveField("FullScreen", false)))
	b.Eventually(b.Input).WithArguments(b.ctx, uid).WithTimeout(patience).
		Should(Equal(facts.Input{Reader: facts.ReaderRead, Program: "sh", Canonical: true, Echo: true}))

	b.foreign("theirs", "terminal")
	adopted := b.adopt("theirs")
	b.see(adopted, "ready")
	b.Expect(b.Input(b.ctx, adopted)).To(BeZero())
}
