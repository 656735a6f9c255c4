// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

const uid = types.UID("first")

func TestStart_RunsServerAsRequested(t *testing.T) {
	t.Setenv("BERTH_SECRET", "hidden")
	t.Setenv("KUBECONFIG", "hidden")
	t.Setenv("KUBERNETES_SERVICE_HOST", "hidden")
	t.Setenv("INHERITED", "from-the-manager")
	f := newFixture(t)
	f.Expect(f.observe(uid)).To(BeZero())
	running := f.start(uid, 1)
	f.Expect(procstat.Identify(int(running.PID))).To(Equal(identity(running)))
	f.Expect(running).To(And(HaveField("UID", string(uid)), HaveField("StartedAt", Not(BeZero())), HaveField("BootID", Not(BeEmpty())),
		HaveField("Containment", Not(BeEmpty())), HaveField("Name", "languageservers/default/first")))
	f.awaitReady(uid, 1)
	report, _ := f.Report(uid)
	f.Expect(report).To(And(HaveField("ServerName", "tester"), HaveField("Counters.Incarnations", int64(1))))

	// Discard the events of the start, until none arrives for some time. An event that arrives even later only makes the test weaker.
	f.Eventually(func(g Gomega) {
		g.Consistently(f.Events()).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
	}).WithTimeout(patience).Should(Succeed())
	said := f.connect(uid).hover()
	f.Eventually(f.Events()).WithTimeout(patience).Should(Receive(Equal(uid)), "the multiplexer reports the client")
	f.Expect(said[:2]).To(Equal([]string{strconv.Itoa(int(running.PID)), f.dir}))
	f.Expect(said).To(ContainElements("ASKED_FOR=this", "INHERITED=from-the-manager"))
	f.Expect(said).NotTo(ContainElement(ContainSubstring("hidden")))
	info, err := os.Stat(f.Endpoint(uid))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	info, err = os.Stat(filepath.Dir(f.Endpoint(uid)))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o700)))
	state, err := os.ReadFile(filepath.Dir(f.Endpoint(uid)) + "/state.json")
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(string(state)).NotTo(ContainSubstring("ASKED_FOR"), "the environment is not written to disk")
}

func TestRestart_KeepsClientConnections(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	e := f.connect(uid)
	multiplexer := f.multiplexer(uid)
	for incarnation := int64(1); incarnation <= 3; incarnation++ {
		running := f.await(uid, incarnation, facts.Running)
		f.Expect(e.hover()[0]).To(Equal(strconv.Itoa(int(running.PID))))
		conformance.Signal(f.WithT, identity(running), unix.SIGKILL)
		ended := f.await(uid, incarnation, facts.Exited)
		f.Expect(ended.Exit).To(And(HaveField("Known", true), HaveField("Signal", "SIGKILL"), HaveField("FinishedAt", Not(BeZero()))))
		f.Expect(f.Start(t.Context(), f.process(uid, incarnation+1))).To(Succeed())
	}
	f.Expect(f.multiplexer(uid)).To(Equal(multiplexer), "the multiplexer stays the same")
}

func TestExit_ReportsExitCode(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	e := f.connect(uid)
	e.send(map[string]any{"jsonrpc": "2.0", "id": 99, "method": "textDocument/definition", "params": anyPosition})
	f.Expect(f.await(uid, 1, facts.Exited).Exit).To(And(HaveField("Known", true), HaveField("Code", int32(3))))
}

func TestStop_ShutsServerDownGracefully(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	f.Expect(f.Stop(t.Context(), uid, 2)).To(Succeed(), "a stop of another incarnation has no effect")
	f.Expect(f.observe(uid)).To(And(HaveField("Phase", facts.Running), HaveField("StopSent", false)))
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.observe(uid).StopSent).To(BeTrue(), "the stop is visible immediately")
	f.Expect(f.await(uid, 1, facts.Exited).Exit).To(And(HaveField("Known", true), HaveField("Code", int32(0)), HaveField("Signal", "")), "shutdown and exit of the protocol")
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed(), "a second stop has no effect")
	f.Expect(f.Kill(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.multiplexer(uid)).NotTo(BeZero(), "the multiplexer keeps running")
}

func TestKill_KillsStubbornServer(t *testing.T) {
	f := newFixture(t)
	running := f.start(uid, 1, "stubborn")
	multiplexer := f.multiplexer(uid)
	f.Expect(f.Kill(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.await(uid, 1, facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
	f.awaitExit(identity(running))
	f.Expect(f.multiplexer(uid)).To(Equal(multiplexer))
}

func TestKill_KillsUnresponsiveMultiplexer(t *testing.T) {
	f := newFixture(t)
	running := f.start(uid, 1)
	multiplexer := f.multiplexer(uid)
	conformance.Signal(f.WithT, multiplexer, unix.SIGSTOP)
	f.Expect(f.Kill(t.Context(), uid, 1)).To(Succeed())
	ended := f.await(uid, 1, facts.Exited)
	f.Expect(ended.Exit.Known).To(BeFalse())
	f.awaitExit(multiplexer)
	f.awaitExit(identity(running))
}

func TestLostMultiplexer_ServerIsKilled(t *testing.T) {
	f := newFixture(t)
	running := f.start(uid, 1, "stubborn")
	multiplexer := f.multiplexer(uid)
	conformance.Signal(f.WithT, multiplexer, unix.SIGKILL)
	ended := f.await(uid, 1, facts.Exited)
	f.Expect(ended.Exit).To(And(HaveField("Known", false), HaveField("Message", ContainSubstring("SIGKILL")), HaveField("FinishedAt", Not(BeZero()))))
	f.awaitExit(identity(running))
	f.Eventually(func() bool {
		_, known := f.Report(uid)
		return known
	}).WithTimeout(patience).WithPolling(often).Should(BeFalse())
	f.close()
	f.open()
	f.Expect(f.observe(uid).Exit).To(Equal(ended.Exit), "another manager reports the same exit")

	f.start(uid, 2)
	f.Expect(f.multiplexer(uid)).NotTo(Equal(multiplexer))
	f.Expect(f.connect(uid).hover()).NotTo(BeEmpty())
}

func TestNew_AdoptsRunningServers(t *testing.T) {
	f := newFixture(t)
	first := f.start(uid, 1)
	second := f.start("second", 4)
	f.awaitReady(uid, 1)
	e := f.connect(uid)
	multiplexer := f.multiplexer(uid)
	f.close()
	f.Expect(e.hover()[0]).To(Equal(strconv.Itoa(int(first.PID))), "clients do not notice that no manager runs")
	f.open()
	f.Expect(f.observe(uid)).To(Equal(first), "immediately")
	f.Expect(f.observe("second")).To(Equal(second))
	report, known := f.Report(uid)
	f.Expect(known).To(BeTrue())
	f.Expect(report.Clients).To(Equal(1))
	f.Expect(f.multiplexer(uid)).To(Equal(multiplexer))
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	f.await(uid, 1, facts.Exited)
	f.Expect(f.Start(t.Context(), f.process(uid, 2))).To(Succeed())
	third := f.await(uid, 2, facts.Running)
	f.Expect(e.hover()[0]).To(Equal(strconv.Itoa(int(third.PID))))
}

func TestKeep_StopsMultiplexerOfStoppedObject(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	multiplexer := f.multiplexer(uid)
	f.Expect(f.Forget(t.Context(), uid)).NotTo(Succeed(), "the server is still running")
	f.Expect(f.observe(uid).Phase).To(Equal(facts.Running))
	f.Keep(uid, false)
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	f.Eventually(func(g Gomega) {
		now := f.observe(uid)
		if now.Alive() {
			g.Expect(now.StopSent).To(BeTrue())
		}
		g.Expect(now.Phase).To(Equal(facts.Exited))
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	f.awaitExit(multiplexer) // the exit is not reported before the multiplexer has exited
	f.Expect(f.observe(uid).Exit).To(And(HaveField("Known", true), HaveField("Code", int32(0))))
	f.Expect(f.Endpoint(uid)).NotTo(BeAnExistingFile())

	f.Expect(f.Start(t.Context(), f.process(uid, 1))).To(Succeed())
	f.Expect(f.observe(uid).Phase).To(Equal(facts.Exited), "incarnation 1 does not start again")
	f.start(uid, 2)
	f.Keep(uid, false)
	f.Expect(f.Kill(t.Context(), uid, 2)).To(Succeed())
	f.await(uid, 2, facts.Exited)
	f.Expect(f.Forget(t.Context(), uid)).To(Succeed())
	f.Expect(filepath.Dir(f.Endpoint(uid))).NotTo(BeADirectory())
	f.Expect(f.observe(uid)).To(BeZero())
	f.Expect(f.Forget(t.Context(), uid)).To(Succeed(), "again")
}

func TestKill_KillsMultiplexerThatDoesNotQuit(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	ended := f.await(uid, 1, facts.Exited)
	multiplexer := f.multiplexer(uid)
	conformance.Signal(f.WithT, multiplexer, unix.SIGSTOP) // the multiplexer cannot receive Quit
	f.Keep(uid, false)
	f.Expect(f.observe(uid)).To(Equal(ended), "a reported exit stays")
	f.Expect(f.Forget(t.Context(), uid)).NotTo(Succeed())
	f.Expect(f.Kill(t.Context(), uid, 1)).To(Succeed())
	f.awaitExit(multiplexer)
	f.Eventually(func() error { return f.Forget(t.Context(), uid) }).WithTimeout(patience).WithPolling(often).Should(Succeed())
}

func TestLostMultiplexer_RestartsForIdleServer(t *testing.T) {
	f := newFixture(t)
	f.Keep(uid, true)
	f.Expect(f.observe(uid)).To(BeZero(), "the first multiplexer starts with the first server")
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	ended := f.await(uid, 1, facts.Exited)
	for _, managed := range []bool{true, false} {
		multiplexer := f.multiplexer(uid)
		if !managed {
			f.close()
		}
		conformance.Signal(f.WithT, multiplexer, unix.SIGKILL)
		if !managed {
			f.awaitExit(multiplexer)
			f.open()
		}
		f.Eventually(func() bool {
			f.Keep(uid, true)
			f.Expect(f.observe(uid)).To(Equal(ended), "independent of the state of the multiplexer")
			report, known := f.Report(uid)
			found, err := f.machine.Observe(t.Context(), uid)
			f.Expect(err).NotTo(HaveOccurred())
			return known && report.Incarnation == 0 && found[0].Phase == facts.Running && found[0].PID != int64(multiplexer.PID)
		}).WithTimeout(patience).WithPolling(often).Should(BeTrue())
	}
	conn, err := control.Connect(t.Context(), f.Endpoint(uid))
	f.Expect(err).NotTo(HaveOccurred())
	defer func() { f.Expect(conn.Close()).To(Succeed()) }()
	f.Eventually(func() int {
		report, _ := f.Report(uid)
		return report.Clients
	}).WithTimeout(patience).WithPolling(often).Should(Equal(1), "a connected client can wake the server")
	f.start(uid, 2)
	f.Expect(f.connect(uid).hover()).NotTo(BeEmpty())
}

func TestStart_ReportsStartErrors(t *testing.T) {
	f := newFixture(t)
	p := f.process(uid, 1)
	p.Command = []string{"there-is-no-such-server"}
	f.Expect(f.Start(t.Context(), p)).To(Succeed())
	f.Expect(f.await(uid, 1, facts.Failed).StartError).To(And(HaveField("Reason", shim.ReasonCommandNotFound), HaveField("Message", ContainSubstring("there-is-no-such-server"))))
	p = f.process(uid, 2)
	p.Dir = "/nowhere"
	f.Expect(f.Start(t.Context(), p)).To(Succeed())
	f.Expect(f.observe(uid)).To(And(HaveField("Number", int64(2)), HaveField("StartError.Reason", shim.ReasonWorkingDirMissing)))
	f.start(uid, 3)
}

func TestStart_RefusesOlderIncarnations(t *testing.T) {
	f := newFixture(t)
	running := f.start(uid, 5)
	f.Expect(f.Start(t.Context(), f.process(uid, 5))).To(Succeed())
	f.Expect(f.observe(uid)).To(Equal(running), "the same incarnation does not start again")
	f.Expect(f.Start(t.Context(), f.process(uid, 4))).To(MatchError(runtime.ErrStale))
	f.Expect(f.Start(t.Context(), f.process(uid, 6))).To(MatchError(runtime.ErrOldAlive))
	f.Expect(f.observe(uid)).To(Equal(running))
	conformance.Signal(f.WithT, f.multiplexer(uid), unix.SIGKILL)
	f.await(uid, 5, facts.Exited)
	f.Expect(f.Start(t.Context(), f.process(uid, 4))).To(MatchError(runtime.ErrStale), "the number is remembered without a multiplexer")
	f.Expect(f.Start(t.Context(), runtime.Process{UID: "../up", Incarnation: 1, Command: []string{"x"}})).NotTo(Succeed())
}

// slowHost is a Host that calls a function before a start returns.
type slowHost struct {
	Host
	during func()
}

func (h *slowHost) Start(ctx context.Context, p runtime.Process) error {
	err := h.Host.Start(ctx, p)
	h.during()
	return err
}

func TestStart_ConnectsAfterMultiplexerHasStarted(t *testing.T) {
	f := newFixture(t)
	slow := &slowHost{f.machine, func() {}}
	f.Runtime.host = slow
	f.start(uid, 1)
	conformance.Signal(f.WithT, f.multiplexer(uid), unix.SIGKILL)
	f.await(uid, 1, facts.Exited)
	slow.during = func() {
		f.observe(uid)
		f.Consistently(func() bool {
			l := f.known(uid)
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.client != nil
		}).WithTimeout(200*time.Millisecond).Should(BeFalse(), "it would count as the connection to the previous multiplexer")
	}
	f.start(uid, 2)
	f.awaitReady(uid, 2)
}

func TestStart_ReportsMultiplexerThatCannotRun(t *testing.T) {
	f := newFixture(t)
	f.setProgram("/etc/passwd")
	f.Expect(f.Start(t.Context(), f.process(uid, 1))).To(Succeed())
	f.Expect(f.await(uid, 1, facts.Failed).StartError.Reason).To(Equal(shim.ReasonPermissionDenied))
	f.setProgram("/bin/true") // it exits without a report
	f.Expect(f.Start(t.Context(), f.process(uid, 2))).To(Succeed())
	f.Expect(f.await(uid, 2, facts.Exited).Exit.Known).To(BeFalse())
}

func TestKill_WorksBeforeStartIsDelivered(t *testing.T) {
	f := newFixture(t)
	f.Expect(os.WriteFile(f.dir+"/silent", []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755)).To(Succeed())
	f.setProgram(f.dir + "/silent")
	f.Expect(f.Start(t.Context(), f.process(uid, 1))).To(Succeed())
	f.Expect(f.observe(uid)).To(And(HaveField("Number", int64(1)), HaveField("Phase", facts.Starting)))
	f.Expect(f.Start(t.Context(), f.process(uid, 1))).To(Succeed(), "the start is in progress")
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.observe(uid).Phase).To(Equal(facts.Unknown), "this multiplexer does not respond")
	f.Expect(f.Kill(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.await(uid, 1, facts.Exited).Exit.Known).To(BeFalse())
}

func TestNew_RemovesStateOfForgottenUIDs(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	found, err := f.machine.Observe(t.Context(), uid)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(f.machine.Stop(t.Context(), uid, found[0].Number)).To(Succeed(), "as the collector of orphans stops it")
	f.Expect(f.await(uid, 1, facts.Exited).Exit).To(HaveField("Known", true), "a multiplexer stops its server before it exits")
	f.Eventually(func() error { return f.machine.Forget(t.Context(), uid) }).WithTimeout(patience).WithPolling(often).Should(Succeed())
	f.close()
	f.open()
	f.Expect(filepath.Dir(f.Endpoint(uid))).NotTo(BeADirectory())
	f.Expect(f.observe(uid)).To(BeZero())
}

func TestOpenLog_ContainsMultiplexerOutput(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	f.Eventually(func(g Gomega) {
		log, err := f.OpenLog(context.Background(), uid)
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = log.Close() }()
		text := make([]byte, 64<<10)
		n, _ := log.ReadAt(text, 0)
		g.Expect(bytes.Contains(text[:n], []byte("incarnation 1 of the server is running"))).To(BeTrue())
	}).WithTimeout(patience).Should(Succeed())
}

func TestStart_OnClosedRuntimeReturnsContextError(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	f.Runtime.Close()
	f.Runtime.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.Expect(errors.Is(f.Start(ctx, f.process(uid, 2)), context.Canceled)).To(BeTrue())
}

func TestMultiplexer_ReturnsMemoryAfterLargeTexts(t *testing.T) {
	f := newFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	client := f.connect(uid)
	private := func() int64 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.multiplexer(uid).PID))
		f.Expect(err).NotTo(HaveOccurred())
		_, after, _ := strings.Cut(string(text), "RssAnon:")
		kibibytes, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
		f.Expect(err).NotTo(HaveOccurred())
		return kibibytes << 10
	}
	notify := func(method string, document map[string]any) {
		client.send(map[string]any{"jsonrpc": "2.0", "method": method, "params": map[string]any{"textDocument": document}})
	}
	text := strings.Repeat("one line of text\n", 1<<16)
	for i := range 8 {
		notify("textDocument/didOpen", map[string]any{"uri": fmt.Sprintf("file:///%d.test", i), "languageId": "test", "version": 1, "text": text})
	}
	client.hover()
	f.Expect(private()).To(BeNumerically(">", 16<<20))
	for i := range 8 {
		notify("textDocument/didClose", map[string]any{"uri": fmt.Sprintf("file:///%d.test", i)})
	}
	f.Eventually(private).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(BeNumerically("<", 12<<20))
}
