// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

const uid = types.UID("first")

func TestAServerIsStartedWithWhatWasAskedFor(t *testing.T) {
	t.Setenv("BERTH_SECRET", "hidden")
	t.Setenv("KUBECONFIG", "hidden")
	t.Setenv("KUBERNETES_SERVICE_HOST", "hidden")
	t.Setenv("INHERITED", "from-the-manager")
	b := newBench(t)
	b.Expect(b.observe(uid)).To(BeZero())
	running := b.start(uid, 1)
	b.Expect(shim.Identify(int(running.PID))).To(Equal(identity(running)))
	b.Expect(running).To(And(HaveField("UID", string(uid)), HaveField("StartedAt", Not(BeZero())), HaveField("BootID", Not(BeEmpty())),
		HaveField("Containment", Not(BeEmpty())), HaveField("Name", "languageservers/default/first")))
	b.ready(uid, 1)
	b.Expect(b.woken).To(Receive(Equal(uid)))
	report, _ := b.Report(uid)
	b.Expect(report).To(And(HaveField("ServerName", "tester"), HaveField("Counters.Incarnations", int64(1))))

	said := b.connect(uid).hover()
	b.Expect(said[:2]).To(Equal([]string{strconv.Itoa(int(running.PID)), b.dir}))
	b.Expect(said).To(ContainElements("ASKED_FOR=this", "INHERITED=from-the-manager"))
	b.Expect(said).NotTo(ContainElement(ContainSubstring("hidden")))
	info, err := os.Stat(b.Endpoint(uid))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	info, err = os.Stat(filepath.Dir(b.Endpoint(uid)))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o700)))
	state, err := os.ReadFile(filepath.Dir(b.Endpoint(uid)) + "/state.json")
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(string(state)).NotTo(ContainSubstring("ASKED_FOR"), "the environment is not written to disk")
}

func TestARestartKeepsConnections(t *testing.T) {
	b := newBench(t)
	b.start(uid, 1)
	e := b.connect(uid)
	multiplexer := b.multiplexer(uid)
	for incarnation := int64(1); incarnation <= 3; incarnation++ {
		running := b.await(uid, incarnation, facts.Running)
		b.Expect(e.hover()[0]).To(Equal(strconv.Itoa(int(running.PID))))
		b.signal(identity(running), unix.SIGKILL)
		ended := b.await(uid, incarnation, facts.Exited)
		b.Expect(ended.Exit).To(And(HaveField("Known", true), HaveField("Signal", "SIGKILL"), HaveField("FinishedAt", Not(BeZero()))))
		b.Expect(b.Start(t.Context(), b.process(uid, incarnation+1))).To(Succeed())
	}
	b.Expect(b.multiplexer(uid)).To(Equal(multiplexer), "the multiplexer stays the same")
}

func TestAnExitCodeIsTold(t *testing.T) {
	b := newBench(t)
	b.start(uid, 1)
	e := b.connect(uid)
	e.send(map[string]any{"jsonrpc": "2.0", "id": 99, "method": "textDocument/definition", "params": anywhere})
	b.Expect(b.await(uid, 1, facts.Exited).Exit).To(And(HaveField("Known", true), HaveField("Code", int32(3))))
}

func TestStopGoesDownTheLadder(t *testing.T) {
	b := newBench(t)
	b.start(uid, 1)
	b.ready(uid, 1)
	b.Expect(b.Stop(t.Context(), uid, 2)).To(Succeed(), "a stop of another incarnation has no effect")
	b.Expect(b.observe(uid)).To(And(HaveField("Phase", facts.Running), HaveField("StopSent", false)))
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.observe(uid).StopSent).To(BeTrue(), "the stop is visible immediately")
	b.Expect(b.await(uid, 1, facts.Exited).Exit).To(And(HaveField("Known", true), HaveField("Code", int32(0)), HaveField("Signal", "")), "shutdown and exit of the protocol")
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed(), "a second stop has no effect")
	b.Expect(b.Kill(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.multiplexer(uid)).NotTo(BeZero(), "the multiplexer keeps running")
}

func TestKillTakesAStubbornServer(t *testing.T) {
	b := newBench(t)
	running := b.start(uid, 1, "stubborn")
	multiplexer := b.multiplexer(uid)
	b.Expect(b.Kill(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.await(uid, 1, facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
	b.isGone(identity(running))
	b.Expect(b.multiplexer(uid)).To(Equal(multiplexer))
}

func TestKillTakesAMultiplexerThatDoesNotAnswer(t *testing.T) {
	b := newBench(t)
	running := b.start(uid, 1)
	multiplexer := b.multiplexer(uid)
	b.signal(multiplexer, unix.SIGSTOP)
	b.Expect(b.Kill(t.Context(), uid, 1)).To(Succeed())
	ended := b.await(uid, 1, facts.Exited)
	b.Expect(ended.Exit.Known).To(BeFalse())
	b.isGone(multiplexer)
	b.isGone(identity(running))
}

func TestALostMultiplexerTakesItsServerWithIt(t *testing.T) {
	b := newBench(t)
	running := b.start(uid, 1, "stubborn")
	multiplexer := b.multiplexer(uid)
	b.signal(multiplexer, unix.SIGKILL)
	ended := b.await(uid, 1, facts.Exited)
	b.Expect(ended.Exit).To(And(HaveField("Known", false), HaveField("Message", ContainSubstring("SIGKILL")), HaveField("FinishedAt", Not(BeZero()))))
	b.isGone(identity(running))
	b.Eventually(func() bool {
		_, known := b.Report(uid)
		return known
	}).WithTimeout(patience).WithPolling(often).Should(BeFalse())
	b.close()
	b.open()
	b.Expect(b.observe(uid).Exit).To(Equal(ended.Exit), "another manager reports the same exit")

	b.start(uid, 2)
	b.Expect(b.multiplexer(uid)).NotTo(Equal(multiplexer))
	b.Expect(b.connect(uid).hover()).NotTo(BeEmpty())
}

func TestAnotherManagerFindsEverything(t *testing.T) {
	b := newBench(t)
	first := b.start(uid, 1)
	second := b.start("second", 4)
	b.ready(uid, 1)
	e := b.connect(uid)
	multiplexer := b.multiplexer(uid)
	b.close()
	b.Expect(e.hover()[0]).To(Equal(strconv.Itoa(int(first.PID))), "clients do not notice that no manager runs")
	b.open()
	b.Expect(b.observe(uid)).To(Equal(first), "immediately")
	b.Expect(b.observe("second")).To(Equal(second))
	report, known := b.Report(uid)
	b.Expect(known).To(BeTrue())
	b.Expect(report.Clients).To(Equal(1))
	b.Expect(b.multiplexer(uid)).To(Equal(multiplexer))
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	b.await(uid, 1, facts.Exited)
	b.Expect(b.Start(t.Context(), b.process(uid, 2))).To(Succeed())
	third := b.await(uid, 2, facts.Running)
	b.Expect(e.hover()[0]).To(Equal(strconv.Itoa(int(third.PID))))
}

func TestAStoppedObjectKeepsNothing(t *testing.T) {
	b := newBench(t)
	b.start(uid, 1)
	b.ready(uid, 1)
	multiplexer := b.multiplexer(uid)
	b.Expect(b.Forget(t.Context(), uid)).NotTo(Succeed(), "the server is still running")
	b.Expect(b.observe(uid).Phase).To(Equal(facts.Running))
	b.Keep(uid, false)
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	b.Eventually(func(g Gomega) {
		now := b.observe(uid)
		if now.Alive() {
			g.Expect(now.StopSent).To(BeTrue())
		}
		g.Expect(now.Phase).To(Equal(facts.Exited))
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	b.isGone(multiplexer) // the exit is not reported before the multiplexer has exited
	b.Expect(b.observe(uid).Exit).To(And(HaveField("Known", true), HaveField("Code", int32(0))))
	b.Expect(b.Endpoint(uid)).NotTo(BeAnExistingFile())

	b.Expect(b.Start(t.Context(), b.process(uid, 1))).To(Succeed())
	b.Expect(b.observe(uid).Phase).To(Equal(facts.Exited), "incarnation 1 does not start again")
	b.start(uid, 2)
	b.Keep(uid, false)
	b.Expect(b.Kill(t.Context(), uid, 2)).To(Succeed())
	b.await(uid, 2, facts.Exited)
	b.Expect(b.Forget(t.Context(), uid)).To(Succeed())
	b.Expect(filepath.Dir(b.Endpoint(uid))).NotTo(BeADirectory())
	b.Expect(b.observe(uid)).To(BeZero())
	b.Expect(b.Forget(t.Context(), uid)).To(Succeed(), "again")
}

func TestAMultiplexerThatDoesNotQuitIsKilled(t *testing.T) {
	b := newBench(t)
	b.start(uid, 1)
	b.ready(uid, 1)
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	ended := b.await(uid, 1, facts.Exited)
	multiplexer := b.multiplexer(uid)
	b.signal(multiplexer, unix.SIGSTOP) // the multiplexer cannot receive Quit
	b.Keep(uid, false)
	b.Expect(b.observe(uid)).To(Equal(ended), "a reported exit stays")
	b.Expect(b.Forget(t.Context(), uid)).NotTo(Succeed())
	b.Expect(b.Kill(t.Context(), uid, 1)).To(Succeed())
	b.isGone(multiplexer)
	b.Eventually(func() error { return b.Forget(t.Context(), uid) }).WithTimeout(patience).WithPolling(often).Should(Succeed())
}

func TestALostMultiplexerComesBackForAServerThatSleeps(t *testing.T) {
	b := newBench(t)
	b.Keep(uid, true)
	b.Expect(b.observe(uid)).To(BeZero(), "the first multiplexer starts with the first server")
	b.start(uid, 1)
	b.ready(uid, 1)
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	ended := b.await(uid, 1, facts.Exited)
	for _, managed := range []bool{true, false} {
		multiplexer := b.multiplexer(uid)
		if !managed {
			b.close()
		}
		b.signal(multiplexer, unix.SIGKILL)
		if !managed {
			b.isGone(multiplexer)
			b.open()
		}
		b.Eventually(func() bool {
			b.Keep(uid, true)
			b.Expect(b.observe(uid)).To(Equal(ended), "independent of the state of the multiplexer")
			report, known := b.Report(uid)
			found, err := b.machine.Observe(t.Context(), uid)
			b.Expect(err).NotTo(HaveOccurred())
			return known && report.Incarnation == 0 && found[0].Phase == facts.Running && found[0].PID != int64(multiplexer.PID)
		}).WithTimeout(patience).WithPolling(often).Should(BeTrue())
	}
	conn, err := control.Connect(t.Context(), b.Endpoint(uid))
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { b.Expect(conn.Close()).To(Succeed()) }()
	b.Eventually(func() int {
		report, _ := b.Report(uid)
		return report.Clients
	}).WithTimeout(patience).WithPolling(often).Should(Equal(1), "a connected client can wake the server")
	b.start(uid, 2)
	b.Expect(b.connect(uid).hover()).NotTo(BeEmpty())
}

func TestAStartThatFails(t *testing.T) {
	b := newBench(t)
	p := b.process(uid, 1)
	p.Command = []string{"there-is-no-such-server"}
	b.Expect(b.Start(t.Context(), p)).To(Succeed())
	b.Expect(b.await(uid, 1, facts.Failed).StartError).To(And(HaveField("Reason", shim.ReasonCommandNotFound), HaveField("Message", ContainSubstring("there-is-no-such-server"))))
	p = b.process(uid, 2)
	p.Dir = "/nowhere"
	b.Expect(b.Start(t.Context(), p)).To(Succeed())
	b.Expect(b.observe(uid)).To(And(HaveField("Number", int64(2)), HaveField("StartError.Reason", shim.ReasonWorkingDirMissing)))
	b.start(uid, 3)
}

func TestNumbersOnlyRise(t *testing.T) {
	b := newBench(t)
	running := b.start(uid, 5)
	b.Expect(b.Start(t.Context(), b.process(uid, 5))).To(Succeed())
	b.Expect(b.observe(uid)).To(Equal(running), "the same incarnation does not start again")
	b.Expect(b.Start(t.Context(), b.process(uid, 4))).To(MatchError(runtime.ErrStale))
	b.Expect(b.Start(t.Context(), b.process(uid, 6))).To(MatchError(runtime.ErrOldAlive))
	b.Expect(b.observe(uid)).To(Equal(running))
	b.signal(b.multiplexer(uid), unix.SIGKILL)
	b.await(uid, 5, facts.Exited)
	b.Expect(b.Start(t.Context(), b.process(uid, 4))).To(MatchError(runtime.ErrStale), "the number is remembered without a multiplexer")
	b.Expect(b.Start(t.Context(), runtime.Process{UID: "../up", Incarnation: 1, Command: []string{"x"}})).NotTo(Succeed())
}

func TestAMultiplexerThatCannotRun(t *testing.T) {
	b := newBench(t)
	b.use("/etc/passwd")
	b.Expect(b.Start(t.Context(), b.process(uid, 1))).To(Succeed())
	b.Expect(b.await(uid, 1, facts.Failed).StartError.Reason).To(Equal(shim.ReasonPermissionDenied))
	b.use("/bin/true") // it exits without a report
	b.Expect(b.Start(t.Context(), b.process(uid, 2))).To(Succeed())
	b.Expect(b.await(uid, 2, facts.Exited).Exit.Known).To(BeFalse())
}

func TestAnEndBeforeTheMultiplexerHeardOfTheStart(t *testing.T) {
	b := newBench(t)
	b.Expect(os.WriteFile(b.dir+"/silent", []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755)).To(Succeed())
	b.use(b.dir + "/silent")
	b.Expect(b.Start(t.Context(), b.process(uid, 1))).To(Succeed())
	b.Expect(b.observe(uid)).To(And(HaveField("Number", int64(1)), HaveField("Phase", facts.Starting)))
	b.Expect(b.Start(t.Context(), b.process(uid, 1))).To(Succeed(), "the start is in progress")
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.observe(uid).Phase).To(Equal(facts.Unknown), "this multiplexer does not respond")
	b.Expect(b.Kill(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.await(uid, 1, facts.Exited).Exit.Known).To(BeFalse())
}

func TestWhatWasForgottenByForceIsCleanedUp(t *testing.T) {
	b := newBench(t)
	b.start(uid, 1)
	found, err := b.machine.Observe(t.Context(), uid)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.machine.Stop(t.Context(), uid, found[0].Number)).To(Succeed(), "as the collector of orphans stops it")
	b.Expect(b.await(uid, 1, facts.Exited).Exit).To(HaveField("Known", true), "a multiplexer stops its server before it exits")
	b.Eventually(func() error { return b.machine.Forget(t.Context(), uid) }).WithTimeout(patience).WithPolling(often).Should(Succeed())
	b.close()
	b.open()
	b.Expect(filepath.Dir(b.Endpoint(uid))).NotTo(BeADirectory())
	b.Expect(b.observe(uid)).To(BeZero())
}

func TestTheLogHoldsWhatTheServerSays(t *testing.T) {
	b := newBench(t)
	b.start(uid, 1)
	b.Eventually(func(g Gomega) {
		log, err := b.OpenLog(context.Background(), uid)
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = log.Close() }()
		text := make([]byte, 64<<10)
		n, _ := log.ReadAt(text, 0)
		g.Expect(bytes.Contains(text[:n], []byte("incarnation 1 of the server is running"))).To(BeTrue())
	}).WithTimeout(patience).Should(Succeed())
}

func TestAClosedRuntimeStartsNothing(t *testing.T) {
	b := newBench(t)
	b.start(uid, 1)
	b.Runtime.Close()
	b.Runtime.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b.Expect(errors.Is(b.Start(ctx, b.process(uid, 2)), context.Canceled)).To(BeTrue())
}
