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

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

func identity(i facts.Incarnation) shim.Process {
	return shim.Process{PID: int(i.PID), Ticks: uint64(i.StartTicks)}
}

// adopt adopts a session and waits until it is observed as running.
func (b *bench) adopt(name string) types.UID {
	b.Helper()
	return b.start(Config{Session: name, Adopt: Required})
}

// branches waits for the processes that the modes "tree" and "leave" start.
func (b *bench) branches(dir string) []shim.Process {
	b.Helper()
	var found []shim.Process
	b.Eventually(func(g Gomega) {
		names, _ := filepath.Glob(filepath.Join(dir, "pid-*"))
		g.Expect(names).To(HaveLen(3))
		found = nil
		for _, name := range names {
			_, pid, _ := strings.Cut(filepath.Base(name), "-")
			p, err := shim.Identify(number(pid))
			g.Expect(err).To(Or(BeNil(), MatchError(shim.ErrGone))) // it may have exited already
			found = append(found, p)
		}
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return found
}

func TestAdopt(t *testing.T) {
	b := newBench(t)
	before := time.Now()
	theirs := b.foreign("agent", "terminal")
	uid := newUID()
	p := b.process(uid, 3, Config{Session: "agent", Adopt: IfExists}, "exit", "1")
	b.Expect(b.Check(b.ctx, p)).To(Succeed())
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	b.Expect(b.Start(b.ctx, p)).To(Succeed(), "again")
	now := b.await(uid, 3, facts.Running)
	b.Expect(identity(now)).To(Equal(theirs))
	b.Expect(now.StartedAt).To(BeTemporally("~", before, patience), "the time of its exec")
	b.Expect(now.Containment).To(BeEmpty())
	b.Expect(b.Start(b.ctx, b.process(uid, 2, Config{Session: "agent", Adopt: IfExists}))).To(MatchError(runtime.ErrStale))
	b.Expect(b.Start(b.ctx, b.process(uid, 4, Config{Session: "agent", Adopt: IfExists}))).To(MatchError(runtime.ErrOldAlive))
	b.Expect(b.List(b.ctx)).To(ConsistOf(now))
	b.Expect(now.Adopted).To(BeTrue(), "adopted processes are not stopped without a request")
	b.Expect(b.Forget(b.ctx, uid)).NotTo(Succeed(), "it is still running")
	for _, other := range []int64{0, 2, 4} {
		b.Expect(b.Stop(b.ctx, uid, other)).To(Succeed())
		b.Expect(b.Kill(b.ctx, uid, other)).To(Succeed())
	}
	b.lives(theirs)
	place, _ := b.Place(uid)
	b.Expect(place.Adopted).To(BeTrue())

	b.see(uid, "ready")
	b.Expect(b.Type(b.ctx, uid, []byte("Enter; C-c -x 'größe';\r"))).To(Succeed())
	b.see(uid, "got <Enter; C-c -x 'größe';>")
	long := strings.Repeat("é", 1900) // a terminal in line mode takes 4095 bytes
	b.Expect(b.Type(b.ctx, uid, []byte(long))).To(Succeed())
	b.Expect(b.Type(b.ctx, uid, []byte("\r"))).To(Succeed())
	b.see(uid, "é>")

	// A new manager still knows the adopted session.
	b.reopen()
	b.Expect(b.observe(uid)).To(Equal(now))
	b.Expect(b.Stop(b.ctx, uid, 3)).To(Succeed())
	ended := b.await(uid, 3, facts.Exited)
	b.Expect(ended.Exit.Known).To(BeFalse(), "tmux does not keep the exit code")
	b.Expect(ended.Exit.Message).NotTo(BeEmpty())
	b.Expect(ended.StopSent).To(BeTrue())
	b.isGone(theirs)
	b.Expect(b.observe(uid)).To(Equal(ended), "a second observation is the same")
	b.reopen()
	b.Expect(b.observe(uid)).To(Equal(ended))

	// The next incarnation is a process of Berth.
	b.Expect(b.Start(b.ctx, b.process(uid, 4, Config{Session: "agent", Adopt: IfExists}, "terminal"))).To(Succeed())
	b.await(uid, 4, facts.Running)
	b.Expect(b.adopted(b.ctx)).To(BeEmpty())
	b.windowOf(uid)
}

func TestAdoptionPolicies(t *testing.T) {
	b := newBench(t)
	uid := newUID()
	err := b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent", Adopt: Required}))
	b.Expect(reasonOf(err)).To(Equal(ReasonSessionMissing))
	b.Expect(err).To(MatchError(ContainSubstring("agent")))
	b.Expect(b.all(uid)).To(BeEmpty())

	theirs := b.foreign("agent")
	b.Expect(reasonOf(b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent", Adopt: Never})))).To(Equal(ReasonSessionTaken))
	b.Expect(b.Start(b.ctx, b.process(uid, 1, Config{Session: "agent", Adopt: Required}))).To(Succeed())
	b.Expect(identity(b.await(uid, 1, facts.Running))).To(Equal(theirs))

	for _, adopt := range []Adoption{Never, IfExists, Required} {
		other := newUID()
		err := b.Start(b.ctx, b.process(other, 1, Config{Session: "agent", Adopt: adopt}))
		b.Expect(reasonOf(err)).To(Equal(ReasonSessionTaken), "%s: the first object has the session", adopt)
		b.Expect(b.all(other)).To(BeEmpty())
	}
	b.lives(theirs)

	absent := b.start(Config{Session: "new", Adopt: IfExists}, "sleep")
	b.Expect(b.adopted(b.ctx)).To(HaveLen(1))
	b.windowOf(absent)
}

// If many objects try to adopt one session at the same time, exactly one succeeds.
func TestAdoptAtOnce(t *testing.T) {
	b := newBench(t)
	theirs := b.foreign("agent")
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = b.Start(b.ctx, b.process(newUID(), 1, Config{Session: "agent", Adopt: IfExists})) })
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
	b.Expect(b.List(b.ctx)).To(ConsistOf(HaveField("Adopted", true)))
	b.lives(theirs)
}

func TestRelease(t *testing.T) {
	b := newBench(t)
	theirs := b.foreign("agent", "terminal")
	before := b.mustTmux("show-options", "-t", "=agent:")
	uid := b.adopt("agent")
	b.Expect(b.mustTmux("show-options", "-t", "=agent:")).To(ContainSubstring(string(uid)))
	b.Expect(b.Release(b.ctx, uid)).To(Succeed())
	b.Expect(b.Release(b.ctx, uid)).To(Succeed(), "again")
	b.Expect(b.all(uid)).To(BeEmpty())
	b.Expect(b.Forget(b.ctx, uid)).To(Succeed())
	b.lives(theirs)
	b.Expect(b.mustTmux("show-options", "-t", "=agent:")).To(Equal(before))
	b.Expect(b.sessionNames()).To(ConsistOf("agent"))

	// The next object can adopt the session, and Release also works without the tmux server.
	other := b.adopt("agent")
	server := b.server()
	b.signal(server, unix.SIGKILL)
	b.isGone(server)
	b.Expect(b.Release(b.ctx, other)).To(Succeed())
	b.Expect(b.all(other)).To(BeEmpty())

	held := b.start(Config{Session: "held"}, "sleep")
	b.Expect(b.Release(b.ctx, held)).NotTo(Succeed())
}

// Stopping an adopted program also ends the processes that it has started, including those that have left its session.
func TestAdoptedTree(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	leader := b.foreign("killed", "tree", dir)
	bystander := b.foreign("bystander")
	branches := b.branches(dir)
	uid := b.adopt("killed")
	b.Expect(b.Kill(b.ctx, uid, 1)).To(Succeed())
	b.await(uid, 1, facts.Exited)
	for _, p := range append(branches, leader) {
		b.Expect(lives(p)).To(BeFalse())
	}
	b.lives(bystander)
	b.Expect(b.sessionNames()).To(ConsistOf("bystander"))

	// After a stop signal the program exits, and the remaining processes, which ignore the signal, end soon after it.
	dir = t.TempDir()
	b.foreign("stopped", "tree", dir)
	branches = b.branches(dir)
	uid = b.adopt("stopped")
	b.Expect(b.Stop(b.ctx, uid, 1)).To(Succeed())
	b.await(uid, 1, facts.Exited)
	for _, p := range branches {
		b.Expect(lives(p)).To(BeFalse())
	}

	// The remaining processes of a program that exits by itself end too. The exit code of the program is known if tmux keeps it.
	dir = t.TempDir()
	b.mustTmux("set-option", "-g", "remain-on-exit", "on")
	waiting := filepath.Join(dir, "go")
	script := `until [ -e "$1" ]; do read -t 0.05 _ <> <(:); done; exec "$2" leave "$3" 7`
	b.mustTmux("new-session", "-d", "-s", "left", "--", "bash", "-c", script, "bash", waiting, conformance.Workload(t), dir)
	uid = b.adopt("left")
	b.Expect(os.WriteFile(waiting, nil, 0o600)).To(Succeed())
	branches = b.branches(dir)
	ended := b.await(uid, 1, facts.Exited)
	b.Expect(ended.Exit.Known).To(BeTrue(), ended.Exit.Message)
	b.Expect(ended.Exit.Code).To(BeEquivalentTo(7))
	for _, p := range branches {
		b.Expect(lives(p)).To(BeFalse())
	}
	b.lives(bystander)
}

// An adopted session keeps its other panes, and the next incarnation gets a new pane.
func TestAdoptedWithOtherPanes(t *testing.T) {
	b := newBench(t)
	leader := b.foreign("agent", "terminal")
	b.mustTmux("split-window", "-d", "-t", "=agent:", "sleep 1000")
	uid := b.adopt("agent")
	b.Expect(identity(b.observe(uid))).To(Equal(leader), "the oldest pane")
	b.see(uid, "ready")
	b.Expect(b.Type(b.ctx, uid, []byte("\x03"))).To(Succeed())
	b.await(uid, 1, facts.Exited)
	b.isGone(leader)
	b.Expect(b.Start(b.ctx, b.process(uid, 2, Config{Session: "agent", Adopt: IfExists}, "terminal"))).To(Succeed())
	b.await(uid, 2, facts.Running)
	s := b.windowOf(uid)
	b.Expect(s.panes).To(HaveLen(2))
	b.see(uid, "ready")
	b.end(uid)
	b.Expect(b.Forget(b.ctx, uid)).To(Succeed())
	all, err := b.Sessions(b.ctx, "")
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(all).To(HaveLen(1))
	b.Expect(all[0].panes).To(HaveLen(1), "the pane of the user")
	b.Expect(all[0].UID).To(BeEmpty())
}

// Berth distinguishes a killed server, a closed session and a server that does not respond. In none of these cases does the program count as alive.
func TestAdoptedLost(t *testing.T) {
	b := newBench(t)
	theirs := b.foreign("agent", "ignore")
	uid := b.adopt("agent")
	b.see(uid, "ready") // from now on the program ignores signals
	b.mustTmux("set-option", "-g", "exit-empty", "off")
	b.mustTmux("kill-session", "-t", "=agent")
	now := b.await(uid, 1, facts.Unknown)
	b.Expect(now.Message).To(ContainSubstring("session or pane was closed"))
	b.lives(theirs)
	b.Expect(b.Start(b.ctx, b.process(uid, 2, Config{Session: "agent", Adopt: IfExists}))).To(MatchError(runtime.ErrOldAlive))
	b.Expect(b.Kill(b.ctx, uid, 1)).To(Succeed())
	b.await(uid, 1, facts.Exited)
	b.isGone(theirs)

	theirs = b.foreign("other", "ignore")
	other := b.adopt("other")
	b.see(other, "ready")
	server := b.server()
	b.signal(server, unix.SIGKILL)
	b.isGone(server)
	now = b.observe(other)
	b.Expect(now.Phase).To(Equal(facts.Unknown))
	b.Expect(now.Message).To(ContainSubstring("the tmux server has exited, but the program"))
	b.lives(theirs)
	b.foreign("other") // a session of another server with the same name and ID
	b.Expect(b.observe(other).Phase).To(Equal(facts.Unknown))
	b.signal(theirs, unix.SIGKILL)
	ended := b.await(other, 1, facts.Exited)
	b.Expect(ended.Exit.Known).To(BeFalse())
	b.Expect(ended.Exit.Message).To(ContainSubstring("the tmux server has exited"))

	third := b.adopt("other")
	before := b.observe(third)
	server = b.server()
	b.signal(server, unix.SIGSTOP)
	now = b.observe(third)
	b.signal(server, unix.SIGCONT)
	b.Expect(now.Phase).To(Equal(facts.Unknown))
	b.Expect(now.Message).To(ContainSubstring("did not respond"))
	b.Eventually(func() facts.Incarnation { return b.observe(third) }).WithTimeout(patience).WithPolling(often).Should(Equal(before), "the server was only silent")
}

// The exit of an adopted program causes an event without polling by the caller.
func TestAdoptedEndIsTold(t *testing.T) {
	b := newBench(t)
	theirs := b.foreign("agent")
	uid := b.adopt("agent")
	b.Eventually(b.woken).WithTimeout(patience).Should(Receive(Equal(uid)), "the event of the adoption")
	for len(b.woken) > 0 {
		<-b.woken
	}
	b.signal(theirs, unix.SIGKILL)
	b.Eventually(b.woken).WithTimeout(patience).Should(Receive(Equal(uid)))
	b.await(uid, 1, facts.Exited)
}

// display collects the output of an attached client.
type display struct {
	mu   sync.Mutex
	text strings.Builder
}

func (v *display) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.Write(p)
}

func (v *display) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.String()
}

func TestAttachToAdopted(t *testing.T) {
	b := newBench(t)
	b.foreign("agent", "terminal")
	uid := b.adopt("agent")
	b.see(uid, "ready")
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	in, keys := io.Pipe()
	view, resize, ended := &display{}, make(chan runtime.Terminal, 1), make(chan error, 1)
	resize <- runtime.Terminal{Columns: 77, Rows: 22}
	go func() { ended <- b.Attach(ctx, uid, in, view, resize) }()
	b.Eventually(view.String).WithTimeout(patience).Should(ContainSubstring("ready"))
	b.see(uid, "size 77x21") // tmux uses one line for its status
	resize <- runtime.Terminal{Columns: 88, Rows: 25}
	b.see(uid, "size 88x24")
	_, err := io.WriteString(keys, "hello\r")
	b.Expect(err).NotTo(HaveOccurred())
	b.Eventually(view.String).WithTimeout(patience).Should(ContainSubstring("got <hello>"))
	b.Expect(b.Sessions(b.ctx, "")).To(ConsistOf(HaveField("Attached", 1)))

	idle, idleIn := io.Pipe()
	stop, detach := context.WithCancel(b.ctx)
	left, other := make(chan error, 1), &display{}
	go func() { left <- b.Attach(stop, uid, idle, other, nil) }()
	b.Eventually(other.String).WithTimeout(patience).Should(ContainSubstring("hello"))
	detach()
	b.Eventually(left).WithTimeout(patience).Should(Receive(BeNil()))
	b.Expect(idleIn.Close()).To(Succeed())

	b.Expect(keys.Close()).To(Succeed())
	b.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
	b.Expect(b.observe(uid).Phase).To(Equal(facts.Running))
	b.end(uid)
	b.Expect(b.Attach(ctx, uid, idle, view, nil)).To(MatchError(runtime.ErrNotFound))
}
