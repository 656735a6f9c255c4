// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

func identity(i facts.Incarnation) procstat.Process {
	return procstat.Process{PID: int(i.PID), Ticks: uint64(i.StartTicks)}
}

// adopt adopts a session and waits until it is observed as running.
func (f *fixture) adopt(name string) types.UID {
	f.Helper()
	return f.start(sessionConfig{Session: name, Adopt: adoptRequired})
}

// treeProcesses waits for the processes that the modes "tree" and "leave" start.
func (f *fixture) treeProcesses(dir string) []procstat.Process {
	f.Helper()
	var found []procstat.Process
	f.Eventually(func(g Gomega) {
		names, _ := filepath.Glob(filepath.Join(dir, "pid-*"))
		g.Expect(names).To(HaveLen(3))
		found = nil
		for _, name := range names {
			_, pid, _ := strings.Cut(filepath.Base(name), "-")
			p, err := procstat.Identify(number(pid))
			g.Expect(err).To(Or(BeNil(), MatchError(procstat.ErrGone))) // the process may have exited already
			found = append(found, p)
		}
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return found
}

// A restart would end the program of the user, and with adoption Required nothing could be started after it.
func TestCheck_RefusesNextIncarnationOfRequiredSession(t *testing.T) {
	f := newFixture(t)
	f.newForeignSession("agent", "terminal")
	uid := newUID()
	required, ifExists := sessionConfig{Session: "agent", Adopt: adoptRequired}, sessionConfig{Session: "agent", Adopt: adoptIfExists}
	f.Expect(f.Check(f.ctx, f.process(uid, 1, required))).To(Succeed())
	f.Expect(f.Start(f.ctx, f.process(uid, 1, required))).To(Succeed())
	f.await(uid, 1, facts.Running)
	f.Expect(f.Check(f.ctx, f.process(uid, 1, required))).To(Succeed(), "the adopted program is this incarnation")
	f.Expect(reasonOf(f.Check(f.ctx, f.process(uid, 2, required)))).To(Equal(v1alpha1.ReasonNothingToAdopt))
	f.Expect(f.Check(f.ctx, f.process(uid, 2, ifExists))).To(Succeed(), "a new program replaces it")
	f.Expect(f.Kill(f.ctx, uid, 1)).To(Succeed())
	f.await(uid, 1, facts.Exited)
	f.Expect(reasonOf(f.Start(f.ctx, f.process(uid, 2, required)))).To(Equal(v1alpha1.ReasonNothingToAdopt), "the check was right")
}

func TestAdopt_ControlsForeignSession(t *testing.T) {
	f := newFixture(t)
	before := time.Now()
	theirs := f.newForeignSession("agent", "terminal")
	uid := newUID()
	p := f.process(uid, 3, sessionConfig{Session: "agent", Adopt: adoptIfExists}, "exit", "1")
	f.Expect(f.Check(f.ctx, p)).To(Succeed())
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.Expect(f.Start(f.ctx, p)).To(Succeed(), "a repeated Start")
	now := f.await(uid, 3, facts.Running)
	f.Expect(identity(now)).To(Equal(theirs))
	f.Expect(now.StartedAt).To(BeTemporally("~", before, patience), "the time at which the program was executed")
	f.Expect(now.Containment).To(BeEmpty())
	f.Expect(f.Start(f.ctx, f.process(uid, 2, sessionConfig{Session: "agent", Adopt: adoptIfExists}))).To(MatchError(runtime.ErrStale))
	f.Expect(f.Start(f.ctx, f.process(uid, 4, sessionConfig{Session: "agent", Adopt: adoptIfExists}))).To(MatchError(runtime.ErrOldAlive))
	f.Expect(f.List(f.ctx)).To(ConsistOf(now))
	f.Expect(now.Adopted).To(BeTrue(), "adopted processes are not stopped without a request")
	f.Expect(f.Forget(f.ctx, uid)).NotTo(Succeed(), "the program is still running")
	for _, other := range []int64{0, 2, 4} {
		f.Expect(f.Stop(f.ctx, uid, other)).To(Succeed())
		f.Expect(f.Kill(f.ctx, uid, other)).To(Succeed())
	}
	f.expectAlive(theirs)
	place, _ := f.Place(uid)
	f.Expect(place.Adopted).To(BeTrue())

	f.awaitText(uid, "ready")
	f.Expect(f.Type(f.ctx, uid, runtime.Line("Enter; C-c -x 'größe';"))).To(Succeed())
	f.awaitText(uid, "got <Enter; C-c -x 'größe';>")
	long := strings.Repeat("é", 1900) // a terminal in line mode takes 4095 bytes
	f.Expect(f.Type(f.ctx, uid, runtime.Keystrokes{Text: long})).To(Succeed())
	f.Expect(f.Type(f.ctx, uid, runtime.Keystrokes{Keys: []runtime.Key{runtime.KeyEnter}})).To(Succeed())
	f.awaitText(uid, "é>")

	// A new manager still knows the adopted session.
	f.reopen()
	f.Expect(f.observe(uid)).To(Equal(now))
	f.Expect(f.Stop(f.ctx, uid, 3)).To(Succeed())
	ended := f.await(uid, 3, facts.Exited)
	f.Expect(ended.Exit.Known).To(BeFalse(), "tmux does not keep the exit code")
	f.Expect(ended.Exit.Message).NotTo(BeEmpty())
	f.Expect(ended.StopSent).To(BeTrue())
	f.awaitExit(theirs)
	f.Expect(f.observe(uid)).To(Equal(ended), "a second observation is the same")
	f.reopen()
	f.Expect(f.observe(uid)).To(Equal(ended))

	// The next incarnation is a process of Berth.
	f.Expect(f.Start(f.ctx, f.process(uid, 4, sessionConfig{Session: "agent", Adopt: adoptIfExists}, "terminal"))).To(Succeed())
	f.await(uid, 4, facts.Running)
	f.Expect(f.adopted(f.ctx)).To(BeEmpty())
	f.awaitWindow(uid)
}

func TestAdopt_FollowsPolicy(t *testing.T) {
	f := newFixture(t)
	uid := newUID()
	err := f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent", Adopt: adoptRequired}))
	f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonNothingToAdopt))
	f.Expect(err).To(MatchError(ContainSubstring("agent")))
	f.Expect(f.observeAll(uid)).To(BeEmpty())

	theirs := f.newForeignSession("agent")
	f.Expect(reasonOf(f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent", Adopt: adoptNever})))).To(Equal(v1alpha1.ReasonSessionTaken))
	f.Expect(f.Start(f.ctx, f.process(uid, 1, sessionConfig{Session: "agent", Adopt: adoptRequired}))).To(Succeed())
	f.Expect(identity(f.await(uid, 1, facts.Running))).To(Equal(theirs))

	for _, adopt := range []adoption{adoptNever, adoptIfExists, adoptRequired} {
		other := newUID()
		err := f.Start(f.ctx, f.process(other, 1, sessionConfig{Session: "agent", Adopt: adopt}))
		f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonSessionTaken), "%s: the first object has the session", adopt)
		f.Expect(f.observeAll(other)).To(BeEmpty())
	}
	f.expectAlive(theirs)

	absent := f.start(sessionConfig{Session: "new", Adopt: adoptIfExists}, "sleep")
	f.Expect(f.adopted(f.ctx)).To(HaveLen(1))
	f.awaitWindow(absent)
}

// If many objects try to adopt one session at the same time, exactly one succeeds.
func TestAdopt_LetsOneConcurrentAdopterSucceed(t *testing.T) {
	f := newFixture(t)
	theirs := f.newForeignSession("agent")
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			errs[i] = f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Session: "agent", Adopt: adoptIfExists}))
		})
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
	f.Expect(f.List(f.ctx)).To(ConsistOf(HaveField("Adopted", true)))
	f.expectAlive(theirs)
}

// tmux keeps the title of a pane, but no notification of its program.
func TestTold_IsTheTitleOfAnAdoptedSession(t *testing.T) {
	f := newFixture(t)
	f.newForeignSession("agent", "terminal")
	uid := f.adopt("agent")
	f.mustTmux("select-pane", "-t", "=agent:", "-T", "✋  Action Required (project)")
	told, err := f.Told(f.ctx, uid)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(told).To(Equal(facts.Signals{Title: facts.Signal{Text: "✋  Action Required (project)"}}))
	f.Expect(f.Release(f.ctx, uid)).To(Succeed())
	_, err = f.Told(f.ctx, uid)
	f.Expect(err).To(HaveOccurred())
}

func TestRelease_KeepsSessionRunning(t *testing.T) {
	f := newFixture(t)
	theirs := f.newForeignSession("agent", "terminal")
	before := f.mustTmux("show-options", "-t", "=agent:")
	uid := f.adopt("agent")
	f.Expect(f.mustTmux("show-options", "-t", "=agent:")).To(ContainSubstring(string(uid)))
	f.Expect(f.Release(f.ctx, uid)).To(Succeed())
	f.Expect(f.Release(f.ctx, uid)).To(Succeed(), "a repeated Release")
	f.Expect(f.observeAll(uid)).To(BeEmpty())
	f.Expect(f.Forget(f.ctx, uid)).To(Succeed())
	f.expectAlive(theirs)
	f.Expect(f.mustTmux("show-options", "-t", "=agent:")).To(Equal(before))
	f.Expect(f.sessionNames()).To(ConsistOf("agent"))

	// The next object can adopt the session, and Release also works without the tmux server.
	other := f.adopt("agent")
	server := f.tmuxServer()
	conformance.Signal(f.WithT, server, unix.SIGKILL)
	f.awaitExit(server)
	f.Expect(f.Release(f.ctx, other)).To(Succeed())
	f.Expect(f.observeAll(other)).To(BeEmpty())

	held := f.start(sessionConfig{Session: "held"}, "sleep")
	f.Expect(f.Release(f.ctx, held)).NotTo(Succeed())
}

// Stopping an adopted program also ends the processes that it has started, including those that have left its session.
func TestAdoptedSession_StopKillsWholeTree(t *testing.T) {
	f := newFixture(t)
	dir := t.TempDir()
	leader := f.newForeignSession("killed", "tree", dir)
	bystander := f.newForeignSession("bystander")
	branches := f.treeProcesses(dir)
	uid := f.adopt("killed")
	f.Expect(f.Kill(f.ctx, uid, 1)).To(Succeed())
	f.await(uid, 1, facts.Exited)
	for _, p := range append(branches, leader) {
		f.Expect(procstat.Alive(p)).To(BeFalse())
	}
	f.expectAlive(bystander)
	f.Expect(f.sessionNames()).To(ConsistOf("bystander"))

	// After a stop signal the program exits. The remaining processes ignore the signal and are killed soon afterwards.
	dir = t.TempDir()
	f.newForeignSession("stopped", "tree", dir)
	branches = f.treeProcesses(dir)
	uid = f.adopt("stopped")
	f.Expect(f.Stop(f.ctx, uid, 1)).To(Succeed())
	f.await(uid, 1, facts.Exited)
	for _, p := range branches {
		f.Expect(procstat.Alive(p)).To(BeFalse())
	}

	// The remaining processes of a program that exits by itself are terminated too. The exit code of the program is known if tmux keeps it.
	dir = t.TempDir()
	f.mustTmux("set-option", "-g", "remain-on-exit", "on")
	waiting := filepath.Join(dir, "go")
	script := `until [ -e "$1" ]; do read -t 0.05 _ <> <(:); done; exec "$2" leave "$3" 7`
	f.mustTmux("new-session", "-d", "-s", "left", "--", "bash", "-c", script, "bash", waiting, conformance.Workload(t), dir)
	uid = f.adopt("left")
	f.Expect(os.WriteFile(waiting, nil, 0o600)).To(Succeed())
	branches = f.treeProcesses(dir)
	ended := f.await(uid, 1, facts.Exited)
	f.Expect(ended.Exit.Known).To(BeTrue(), ended.Exit.Message)
	f.Expect(ended.Exit.Code).To(BeEquivalentTo(7))
	for _, p := range branches {
		f.Expect(procstat.Alive(p)).To(BeFalse())
	}
	f.expectAlive(bystander)
}

// An adopted session keeps its other panes, and the next incarnation gets a new pane.
func TestAdoptedSession_KeepsOtherPanes(t *testing.T) {
	f := newFixture(t)
	leader := f.newForeignSession("agent", "terminal")
	f.mustTmux("split-window", "-d", "-t", "=agent:", "sleep 1000")
	uid := f.adopt("agent")
	f.Expect(identity(f.observe(uid))).To(Equal(leader), "the oldest pane")
	f.awaitText(uid, "ready")
	f.Expect(f.Type(f.ctx, uid, runtime.Keystrokes{Interrupt: true})).To(Succeed())
	f.await(uid, 1, facts.Exited)
	f.awaitExit(leader)
	f.Expect(f.Start(f.ctx, f.process(uid, 2, sessionConfig{Session: "agent", Adopt: adoptIfExists}, "terminal"))).To(Succeed())
	f.await(uid, 2, facts.Running)
	s := f.awaitWindow(uid)
	f.Expect(s.panes).To(HaveLen(2))
	f.awaitText(uid, "ready")
	f.killAndWait(uid)
	f.Expect(f.Forget(f.ctx, uid)).To(Succeed())
	all, err := f.Sessions(f.ctx, "")
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(all).To(HaveLen(1))
	f.Expect(all[0].panes).To(HaveLen(1), "the pane of the user")
	f.Expect(all[0].UID).To(BeEmpty())
}

// Berth distinguishes a killed server, a closed session and a server that does not respond. In each case the phase is Unknown while the program is alive.
func TestAdoptedSession_IsUnknownAfterSessionIsLost(t *testing.T) {
	f := newFixture(t)
	theirs := f.newForeignSession("agent", "ignore")
	uid := f.adopt("agent")
	f.awaitText(uid, "ready") // from now on the program ignores signals
	f.mustTmux("set-option", "-g", "exit-empty", "off")
	f.mustTmux("kill-session", "-t", "=agent")
	now := f.await(uid, 1, facts.Unknown)
	f.Expect(now.Message).To(ContainSubstring("session or pane was closed"))
	f.expectAlive(theirs)
	f.Expect(f.Start(f.ctx, f.process(uid, 2, sessionConfig{Session: "agent", Adopt: adoptIfExists}))).To(MatchError(runtime.ErrOldAlive))
	f.Expect(f.Kill(f.ctx, uid, 1)).To(Succeed())
	f.await(uid, 1, facts.Exited)
	f.awaitExit(theirs)

	theirs = f.newForeignSession("other", "ignore")
	other := f.adopt("other")
	f.awaitText(other, "ready")
	server := f.tmuxServer()
	conformance.Signal(f.WithT, server, unix.SIGKILL)
	f.awaitExit(server)
	now = f.observe(other)
	f.Expect(now.Phase).To(Equal(facts.Unknown))
	f.Expect(now.Message).To(ContainSubstring("the tmux server has exited, but the program"))
	f.expectAlive(theirs)
	f.newForeignSession("other") // a session of another server with the same name and ID
	f.Expect(f.observe(other).Phase).To(Equal(facts.Unknown))
	conformance.Signal(f.WithT, theirs, unix.SIGKILL)
	ended := f.await(other, 1, facts.Exited)
	f.Expect(ended.Exit.Known).To(BeFalse())
	f.Expect(ended.Exit.Message).To(ContainSubstring("the tmux server has exited"))

	third := f.adopt("other")
	before := f.observe(third)
	server = f.tmuxServer()
	conformance.Signal(f.WithT, server, unix.SIGSTOP)
	now = f.observe(third)
	conformance.Signal(f.WithT, server, unix.SIGCONT)
	f.Expect(now.Phase).To(Equal(facts.Unknown))
	f.Expect(now.Message).To(ContainSubstring("did not respond"))
	f.Eventually(func() facts.Incarnation { return f.observe(third) }).WithTimeout(patience).WithPolling(often).Should(Equal(before), "the server responds again")
}

// The exit of an adopted program causes an event without polling by the caller.
func TestAdoptedSession_ExitCausesEvent(t *testing.T) {
	f := newFixture(t)
	theirs := f.newForeignSession("agent")
	uid := f.adopt("agent")
	f.Eventually(f.Events()).WithTimeout(patience).Should(Receive(Equal(uid)), "the event of the adoption")
	// Discard further events of the adoption, until none arrives for some time. An event that arrives even later only makes the test weaker.
	f.Eventually(func(g Gomega) {
		g.Consistently(f.Events()).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
	}).WithTimeout(patience).Should(Succeed())
	conformance.Signal(f.WithT, theirs, unix.SIGKILL)
	f.Eventually(f.Events()).WithTimeout(patience).Should(Receive(Equal(uid)))
	f.await(uid, 1, facts.Exited)
}

// clientOutput collects the output of an attached client.
type clientOutput struct {
	mu   sync.Mutex
	text strings.Builder
}

func (v *clientOutput) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.Write(p)
}

func (v *clientOutput) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.String()
}

func TestAttach_WorksForAdoptedSession(t *testing.T) {
	f := newFixture(t)
	f.newForeignSession("agent", "terminal")
	uid := f.adopt("agent")
	f.awaitText(uid, "ready")
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	in, keys := io.Pipe()
	view, resize, ended := &clientOutput{}, make(chan runtime.Terminal, 1), make(chan error, 1)
	resize <- runtime.Terminal{Columns: 77, Rows: 22}
	go func() { ended <- f.Attach(ctx, uid, in, view, resize) }()
	f.Eventually(view.String).WithTimeout(patience).Should(ContainSubstring("ready"))
	f.awaitText(uid, "size 77x22")
	resize <- runtime.Terminal{Columns: 88, Rows: 25}
	f.awaitText(uid, "size 88x25")
	_, err := io.WriteString(keys, "hello\r")
	f.Expect(err).NotTo(HaveOccurred())
	f.Eventually(view.String).WithTimeout(patience).Should(ContainSubstring("got <hello>"))
	f.Expect(f.Sessions(f.ctx, "")).To(ConsistOf(HaveField("Attached", 1)))

	idle, idleIn := io.Pipe()
	stop, detach := context.WithCancel(f.ctx)
	left, other := make(chan error, 1), &clientOutput{}
	go func() { left <- f.Attach(stop, uid, idle, other, nil) }()
	f.Eventually(other.String).WithTimeout(patience).Should(ContainSubstring("hello"))
	detach()
	f.Eventually(left).WithTimeout(patience).Should(Receive(BeNil()))
	f.Expect(idleIn.Close()).To(Succeed())

	f.Expect(keys.Close()).To(Succeed())
	f.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
	f.Expect(f.observe(uid).Phase).To(Equal(facts.Running))
	f.killAndWait(uid)
	f.Expect(f.Attach(ctx, uid, idle, view, nil)).To(MatchError(runtime.ErrNotFound))
}
