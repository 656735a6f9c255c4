// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVariable); mode != "" {
		workload(mode)
	}
	goleak.VerifyTestMain(m)
}

// fixture checks that a test leaves no process, descriptor or goroutine behind.
type fixture struct {
	*testing.T
	*WithT
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{T: t, WithT: NewWithT(t)}
	// The Go runtime opens its poller with the first pipe and never closes it. Open a pipe now, so that the list of descriptors before the test includes the
	// poller.
	warm, other, err := os.Pipe()
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(errors.Join(warm.Close(), other.Close())).To(Succeed())
	before, routines := descriptors(), goleak.IgnoreCurrent()
	t.Cleanup(func() {
		b.expectNoChildren()
		b.Eventually(descriptors).WithTimeout(patience).Should(Equal(before))
		b.Eventually(func() error { return goleak.Find(routines) }).WithTimeout(patience).Should(Succeed())
		b.Expect(occupied.Load()).To(BeFalse())
	})
	return b
}

func (b *fixture) expectNoChildren() {
	b.Helper()
	b.Eventually(func() error {
		_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		return err
	}).WithTimeout(patience).Should(MatchError(unix.ECHILD))
}

func descriptors() []string {
	entries, _ := os.ReadDir("/proc/self/fd")
	var open []string
	for _, entry := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && !strings.HasPrefix(target, "/proc/") {
			open = append(open, entry.Name()+" "+target)
		}
	}
	return open
}

func (b *fixture) launch(mode string) lsp.Launch {
	return lsp.Launch{
		Incarnation: 1, Command: []string{os.Args[0], "-test.run=none"}, Dir: b.TempDir(), StopSignal: "SIGTERM",
		Env: []string{modeVariable + "=" + mode, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"},
	}
}

// stderr returns a file for the diagnostics of a server.
func (b *fixture) stderr() *os.File {
	b.Helper()
	file, err := os.Create(filepath.Join(b.TempDir(), "log"))
	b.Expect(err).NotTo(HaveOccurred())
	b.Cleanup(func() { _ = file.Close() })
	return file
}

func (b *fixture) start(mode string) (*Process, *bufio.Reader) {
	b.Helper()
	p, failed := Start(b.launch(mode), b.stderr())
	b.Expect(failed).NotTo(HaveOccurred())
	b.Cleanup(func() {
		_ = p.Kill()
		<-p.Done()
		p.Close()
	})
	return p, bufio.NewReader(p.Stdout)
}

func (b *fixture) readLine(r *bufio.Reader) string {
	b.Helper()
	line, err := r.ReadString('\n')
	b.Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(line)
}

func (b *fixture) waitExit(p *Process) *facts.Exit {
	b.Helper()
	b.Eventually(p.Done()).WithTimeout(patience).Should(BeClosed())
	return p.Exit()
}

// unansweredShutdown is a shutdown that a server does not answer.
func unansweredShutdown(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// refusedShutdown is a shutdown that a server answers with an error.
func refusedShutdown(context.Context) error { return errors.New("no") }

func TestProcess_RunsAndStopsByProtocol(t *testing.T) {
	b := newFixture(t)
	p, out := b.start("serve")
	b.Expect(b.readLine(out)).To(Equal("ready"))
	b.Expect(procstat.Identify(p.Identity.PID)).To(Equal(p.Identity))
	_, err := io.WriteString(p.Stdin, "hello\n")
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.readLine(out)).To(Equal("hello"))
	memory, _, err := p.Usage()
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(memory).To(BeNumerically(">", 1<<20))

	p.Stop(func(context.Context) error {
		_, err := io.WriteString(p.Stdin, "exit\n")
		return err
	}, time.Minute)
	b.Expect(b.waitExit(p)).To(And(HaveField("Known", true), HaveField("Code", int32(0)), HaveField("Signal", "")))
	b.Expect(io.ReadAll(out)).To(BeEmpty())
}

func TestStop_EscalatesUntilServerExits(t *testing.T) {
	for mode, exit := range map[string]facts.Exit{
		"serve":     {Known: true},                    // exits at the end of its input
		"deaf":      {Known: true, Signal: "SIGTERM"}, // does not exit at the end of its input
		"frozen":    {Known: true, Signal: "SIGTERM"}, // stops itself; SIGCONT is sent after the signal
		"polite":    {Known: true, Code: 7},           // handles SIGTERM
		"flood":     {Known: true, Signal: "SIGTERM"}, // its output is not read
		"mute":      {Known: true, Signal: "SIGTERM"}, // closes its output
		"unreading": {Known: true, Signal: "SIGTERM"}, // does not read, so that writers block
	} {
		t.Run(mode, func(t *testing.T) {
			b := newFixture(t)
			p, out := b.start(mode)
			b.Expect(b.readLine(out)).To(Equal("ready"))
			shutdown, grace := unansweredShutdown, 500*time.Millisecond
			switch mode {
			case "unreading":
				shutdown = func(context.Context) error {
					_, err := p.Stdin.Write(make([]byte, 1<<20)) // a write that ignores the context
					return err
				}
			case "serve":
				shutdown, grace = refusedShutdown, time.Minute // enough time for the step in which the server exits
			}
			p.Stop(shutdown, grace)
			p.Stop(shutdown, grace)
			got := b.waitExit(p)
			b.Expect(got.FinishedAt).NotTo(BeZero())
			got.FinishedAt = time.Time{}
			b.Expect(*got).To(Equal(exit))
		})
	}
}

func TestStop_DoesNotKillServerThatIgnoresSIGTERM(t *testing.T) {
	b := newFixture(t)
	p, out := b.start("stubborn")
	b.Expect(b.readLine(out)).To(Equal("ready"))
	p.Stop(unansweredShutdown, 100*time.Millisecond)
	b.Expect(b.readLine(out)).To(Equal("SIGTERM"), "the stop continues with the signal")
	b.Consistently(p.Done(), "200ms").ShouldNot(BeClosed())
	b.Expect(p.Kill()).To(Succeed())
	b.Expect(b.waitExit(p).Signal).To(Equal("SIGKILL"))
	b.Expect(p.Kill()).To(Succeed(), "killing an exited server succeeds")
}

func TestProcess_KillsChildrenAfterServerExits(t *testing.T) {
	for _, mode := range []string{"fork", "orphan"} {
		t.Run(mode, func(t *testing.T) {
			b := newFixture(t)
			p, out := b.start(mode)
			pid, err := strconv.Atoi(b.readLine(out))
			b.Expect(err).NotTo(HaveOccurred())
			left, err := procstat.Identify(pid)
			b.Expect(err).NotTo(HaveOccurred())
			// One listing of a tree may miss a process whose parent is just changing.
			b.Eventually(p.tree.Members).WithTimeout(patience).Should(ContainElement(left), "also with its own session")
			b.Expect(p.Stdin.Close()).To(Succeed())
			b.Eventually(p.LeaderDone()).WithTimeout(patience).Should(BeClosed())
			b.Expect(p.LeaderExit().Code).To(Equal(int32(4)))
			b.Expect(b.waitExit(p).Code).To(Equal(int32(4)), "the exit code is that of the server, not of the killed child")
			_, err = procstat.Open(left)
			b.Expect(err).To(MatchError(procstat.ErrGone))
		})
	}
}

func TestKill_KillsWholeProcessTree(t *testing.T) {
	b := newFixture(t)
	p, out := b.start("fork")
	pid, err := strconv.Atoi(b.readLine(out))
	b.Expect(err).NotTo(HaveOccurred())
	left, err := procstat.Identify(pid)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(p.Kill()).To(Succeed())
	b.Expect(b.waitExit(p).Signal).To(Equal("SIGKILL"))
	_, err = procstat.Open(left)
	b.Expect(err).To(MatchError(procstat.ErrGone))
}

func TestProcess_KeepsExitCodeAndOutputOfCrash(t *testing.T) {
	b := newFixture(t)
	said := b.stderr()
	p, failed := Start(b.launch("crash"), said)
	b.Expect(failed).NotTo(HaveOccurred())
	defer p.Close()
	b.Expect(b.waitExit(p)).To(And(HaveField("Known", true), HaveField("Code", int32(3))))
	b.Expect(os.ReadFile(said.Name())).To(BeEquivalentTo("going down\n"), "all diagnostics are available after the exit")
	b.Expect(io.ReadAll(p.Stdout)).To(BeEquivalentTo("ready\n"), "earlier output can still be read")
}

func TestStart_FailureReportsReasonAndLeavesNothing(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	NewWithT(t).Expect(os.WriteFile(script, []byte("#!/nowhere/interpreter\n"), 0o755)).To(Succeed())
	for name, c := range map[string]struct {
		change func(*lsp.Launch)
		reason string
	}{
		"no command":     {func(l *lsp.Launch) { l.Command = nil }, shim.ReasonCommandNotFound},
		"no program":     {func(l *lsp.Launch) { l.Command = []string{"there-is-no-such-server"} }, shim.ReasonCommandNotFound},
		"no interpreter": {func(l *lsp.Launch) { l.Command = []string{script} }, shim.ReasonCommandNotFound},
		"a directory":    {func(l *lsp.Launch) { l.Command = []string{"/etc"} }, shim.ReasonPermissionDenied},
		"no x bit":       {func(l *lsp.Launch) { l.Command = []string{"/etc/passwd"} }, shim.ReasonPermissionDenied},
		"no directory":   {func(l *lsp.Launch) { l.Dir = "/nowhere" }, shim.ReasonWorkingDirMissing},
		"no environment": {func(l *lsp.Launch) { l.Env = []string{"no equals sign"} }, shim.ReasonStartFailed},
		"too long":       {func(l *lsp.Launch) { l.Command = append(l.Command, strings.Repeat("x", 1<<20)) }, shim.ReasonStartFailed},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			launch := b.launch("serve")
			c.change(&launch)
			p, failed := Start(launch, b.stderr())
			b.Expect(p).To(BeNil())
			b.Expect(failed.Reason).To(Equal(c.reason), failed.Message)
			b.Expect(failed.Message).NotTo(BeEmpty())
		})
	}
}

func TestStart_WithoutFreeDescriptorsLeaksNone(t *testing.T) {
	b := newFixture(t)
	var limit unix.Rlimit
	b.Expect(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)).To(Succeed())
	defer func() { b.Expect(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)).To(Succeed()) }()
	stderr := b.stderr()
	before := descriptors()
	for spare := range 6 { // each pipe and the fork fail once
		b.Expect(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(descriptorLimitFor(spare)), Max: limit.Max})).To(Succeed())
		p, failed := Start(b.launch("serve"), stderr)
		b.Expect(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)).To(Succeed())
		b.Expect(p).To(BeNil(), "with %d descriptors", spare)
		b.Expect(failed.Reason).To(Equal(shim.ReasonStartFailed))
		b.Expect(descriptors()).To(Equal(before))
	}
}

// descriptorLimitFor returns the descriptor limit that leaves the given number of free descriptors.
func descriptorLimitFor(spare int) (limit int) {
	for ; spare > 0; limit++ {
		if _, err := unix.FcntlInt(uintptr(limit), unix.F_GETFD, 0); err != nil {
			spare--
		}
	}
	return limit
}

func TestStart_RefusesSecondServer(t *testing.T) {
	b := newFixture(t)
	p, out := b.start("serve")
	b.readLine(out)
	_, failed := Start(b.launch("serve"), b.stderr())
	b.Expect(failed.Message).To(ContainSubstring("another server"))
	b.Expect(p.Kill()).To(Succeed())
	b.waitExit(p)
	second, out := b.start("serve")
	b.Expect(b.readLine(out)).To(Equal("ready"))
	b.Expect(p.Kill()).To(Succeed(), "a late kill has no effect on the next server")
	b.Consistently(second.Done(), "100ms").ShouldNot(BeClosed())
}

func TestRung_FitsGracePeriod(t *testing.T) {
	g := NewWithT(t)
	g.Expect(rung(shutdownRung, time.Minute)).To(Equal(5 * time.Second))
	g.Expect(rung(shutdownRung, 0)).To(Equal(5 * time.Second))
	g.Expect(rung(shutdownRung, time.Second)).To(Equal(500 * time.Millisecond))
	g.Expect(rung(exitRung, time.Second) + rung(stdinRung, time.Second)).To(Equal(300 * time.Millisecond))
}

// modeVariable turns this binary into the server of a test.
const modeVariable = "LSP_SERVER_TEST_MODE"

func workload(mode string) {
	switch mode {
	case "serve", "crash":
		fmt.Println("ready")
		if mode == "crash" {
			fmt.Fprintln(os.Stderr, "going down")
			os.Exit(3)
		}
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if lines.Text() == "exit" {
				os.Exit(0)
			}
			fmt.Println(lines.Text())
		}
		os.Exit(0)
	case "stubborn", "polite":
		notified := catchSignals()
		fmt.Println("ready")
		for signal := range notified {
			if mode == "polite" {
				os.Exit(7)
			}
			fmt.Println(unix.SignalName(signal.(syscall.Signal)))
		}
	case "frozen":
		fmt.Println("ready")
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	case "flood":
		fmt.Println("ready")
		for {
			_, _ = os.Stdout.Write(make([]byte, 64<<10))
		}
	case "mute":
		fmt.Println("ready")
		_ = os.Stdout.Close()
	case "deaf", "unreading":
		fmt.Println("ready")
	case "fork", "orphan":
		runWithChild(mode)
	case "grandchild":
		catchSignals()
	}
	sleepForever()
}

func sleepForever() {
	for {
		time.Sleep(time.Hour)
	}
}
