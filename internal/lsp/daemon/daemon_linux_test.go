// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	patience = 60 * time.Second
	often    = 5 * time.Millisecond
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVariable); mode != "" {
		languageServer(mode)
	}
	goleak.VerifyTestMain(m)
}

// fixture is a multiplexer that runs in the test process.
type fixture struct {
	*testing.T
	*WithT
	dir    string
	cancel context.CancelFunc
	ended  chan error
	*control.Client

	mu     sync.Mutex
	report lsp.Report
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{T: t, WithT: NewWithT(t), dir: filepath.Join(t.TempDir(), "lsp"), ended: make(chan error, 1)}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	b.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() {
		b.ended <- run(ctx, b.dir, log)
		_ = log.Close()
	}()
	t.Cleanup(func() {
		cancel()
		b.expectCleanExit()
		text, _ := os.ReadFile(log.Name())
		if t.Failed() {
			t.Logf("output of the multiplexer:\n%s", text)
		}
	})
	b.dial()
	return b
}

func (b *fixture) dial() {
	b.Helper()
	b.Eventually(func() error {
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		defer cancel()
		conn, err := control.Connect(ctx, filepath.Join(b.dir, lsp.ControlSocket))
		if err != nil {
			return err
		}
		b.Client, err = control.Converse(ctx, conn, func(r lsp.Report) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.report = r
		})
		return err
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
}

// expectCleanExit waits until the multiplexer has exited, and checks that no process and no socket is left.
func (b *fixture) expectCleanExit() {
	b.Helper()
	b.Eventually(b.ended).WithTimeout(patience).Should(Receive(BeNil()))
	b.ended <- nil
	b.Eventually(b.Ended()).WithTimeout(patience).Should(BeClosed())
	_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
	b.Expect(err).To(MatchError(unix.ECHILD), "a process is left")
	b.Expect(filepath.Join(b.dir, lsp.ClientSocket)).NotTo(BeAnExistingFile())
	b.Expect(filepath.Join(b.dir, lsp.ControlSocket)).NotTo(BeAnExistingFile())
}

func (b *fixture) currentReport() lsp.Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.report
}

func (b *fixture) await(matcher types.GomegaMatcher) {
	b.Helper()
	b.Eventually(b.currentReport).WithTimeout(patience).WithPolling(often).Should(matcher)
}

func (b *fixture) execute(command lsp.Command) string {
	b.Helper()
	answer, err := b.Do(b.Context(), command)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(answer.Error == "").To(Equal(answer.Code == "")) //nolint:ginkgolinter // compares both fields
	return answer.Code
}

func (b *fixture) launch(incarnation int64, mode string) lsp.Command {
	return lsp.Command{Verb: lsp.Start, Incarnation: incarnation, Launch: &lsp.Launch{
		Incarnation: incarnation, Command: []string{os.Args[0], "-test.run=none"}, Dir: b.dir, StopSignal: "SIGTERM", Grace: 2 * time.Second,
		Env: []string{modeVariable + "=" + mode, "SECRET=not-for-the-disk"},
	}}
}

func (b *fixture) readState() (state lsp.Report) {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, lsp.StateFile))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(json.Unmarshal(text, &state)).To(Succeed())
	b.Expect(string(text)).NotTo(ContainSubstring("SECRET"))
	return state
}

func TestCommands_FollowContract(t *testing.T) {
	b := newFixture(t)
	b.Expect(b.currentReport()).To(And(HaveField("Phase", lsp.None), HaveField("Protocol", lsp.Protocol), HaveField("IdleSince", Not(BeZero()))))
	b.Expect(b.execute(lsp.Command{Verb: lsp.Start, Incarnation: 1})).To(Equal(lsp.CodeInvalid))
	b.Expect(b.execute(lsp.Command{Verb: "Dance"})).To(Equal(lsp.CodeInvalid))
	b.Expect(b.execute(lsp.Command{Verb: lsp.Stop, Incarnation: 1})).To(BeEmpty(), "stopping without a server succeeds")
	b.Expect(b.execute(lsp.Command{Verb: lsp.Kill, Incarnation: 1})).To(BeEmpty())

	b.Expect(b.execute(b.launch(2, "serve"))).To(BeEmpty())
	b.Expect(b.currentReport()).To(And(HaveField("Incarnation", int64(2)), HaveField("Phase", facts.Running), HaveField("PID", Not(BeZero()))), "the report arrives with the answer")
	b.Expect(b.readState()).To(And(HaveField("Phase", facts.Running), HaveField("PID", b.currentReport().PID), HaveField("Exit", BeNil())))
	b.Expect(b.execute(b.launch(2, "serve"))).To(BeEmpty(), "again")
	b.Expect(b.execute(b.launch(1, "serve"))).To(Equal(lsp.CodeStale))
	b.Expect(b.execute(b.launch(3, "serve"))).To(Equal(lsp.CodeOldAlive))
	b.Expect(b.execute(lsp.Command{Verb: lsp.Quit})).To(Equal(lsp.CodeOldAlive))
	b.await(HaveField("Initialized", true))
	b.Expect(b.currentReport().Counters.Incarnations).To(Equal(int64(1)))

	b.Expect(b.execute(lsp.Command{Verb: lsp.Stop, Incarnation: 2})).To(BeEmpty())
	b.Expect(b.currentReport().StopSent).To(BeTrue())
	b.await(HaveField("Phase", facts.Exited))
	b.Expect(b.currentReport().Exit).To(And(HaveField("Known", true), HaveField("Code", int32(0))))
	b.Expect(b.readState().Exit).To(Equal(b.currentReport().Exit))
	b.Expect(b.execute(b.launch(2, "serve"))).To(BeEmpty(), "regardless of the outcome of the first start")
	b.Expect(b.currentReport().Phase).To(Equal(facts.Exited))

	broken := b.launch(3, "serve")
	broken.Launch.Command = []string{"there-is-no-such-server"}
	b.Expect(b.execute(broken)).To(BeEmpty())
	b.Expect(b.currentReport()).To(And(HaveField("Phase", facts.Failed), HaveField("StartError.Reason", shim.ReasonCommandNotFound)))
	b.Expect(b.readState().StartError).To(Equal(b.currentReport().StartError))
	b.Expect(b.execute(b.launch(4, "serve"))).To(BeEmpty())
	b.Expect(b.execute(lsp.Command{Verb: lsp.Kill, Incarnation: 4})).To(BeEmpty())
	b.await(And(HaveField("Phase", facts.Exited), HaveField("Exit.Signal", "SIGKILL")))
	_, _ = b.Do(t.Context(), lsp.Command{Verb: lsp.Quit}) // the multiplexer may close the connection before it answers
	b.expectCleanExit()
}

func TestCrash_IsReportedAndClientsStayConnected(t *testing.T) {
	b := newFixture(t)
	b.Expect(b.execute(b.launch(1, "serve"))).To(BeEmpty())
	conn, err := control.Connect(t.Context(), filepath.Join(b.dir, lsp.ClientSocket))
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	b.await(HaveField("Clients", 1))
	for incarnation := int64(1); incarnation <= 3; incarnation++ {
		b.await(And(HaveField("Incarnation", incarnation), HaveField("Initialized", true)))
		now := b.currentReport()
		b.kill(procstat.Process{PID: int(now.PID), Ticks: uint64(now.StartTicks)})
		b.await(And(HaveField("Phase", facts.Exited), HaveField("Exit.Signal", "SIGKILL"), HaveField("StopSent", false)))
		b.Expect(b.currentReport().Clients).To(Equal(1))
		b.Expect(b.execute(b.launch(incarnation+1, "serve"))).To(BeEmpty())
	}
	b.dial() // another manager gets the same report
	b.Expect(b.currentReport()).To(And(HaveField("Incarnation", int64(4)), HaveField("Phase", facts.Running), HaveField("Clients", 1)))
}

// awaitIgnored waits until the server ignores a signal.
func (b *fixture) awaitIgnored(sig unix.Signal) {
	b.Helper()
	b.Eventually(func(g Gomega) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.currentReport().PID))
		g.Expect(err).NotTo(HaveOccurred())
		_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
		hex, _, _ := strings.Cut(rest, "\n")
		ignored, err := strconv.ParseUint(hex, 16, 64)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(ignored >> (sig - 1) & 1).To(BeEquivalentTo(1))
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
}

func (b *fixture) kill(p procstat.Process) {
	b.Helper()
	fd, err := procstat.Open(p)
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	b.Expect(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)).To(Succeed())
}

// TestStart_LeavesNothingAfterAnyFailure starts servers that fail in every way after their exec. expectCleanExit checks that nothing is left.
func TestStart_LeavesNothingAfterAnyFailure(t *testing.T) {
	for _, mode := range []string{"exit", "silent", "garbage", "oversize", "refuse", "log-first", "late-exit", "deaf", "stubborn", "mute", "fork"} {
		t.Run(mode, func(t *testing.T) {
			b := newFixture(t)
			b.Expect(b.execute(b.launch(1, mode))).To(BeEmpty())
			switch mode {
			case "exit", "late-exit":
				b.await(And(HaveField("Phase", facts.Exited), HaveField("Exit.Code", int32(9))))
			case "garbage", "oversize", "mute":
				b.await(HaveField("Restart", true))
			case "log-first":
				b.await(HaveField("Initialized", true))
			default:
				b.await(HaveField("Phase", facts.Running))
			}
			b.Expect(b.execute(lsp.Command{Verb: lsp.Stop, Incarnation: 1})).To(BeEmpty())
			if mode == "stubborn" || mode == "fork" {
				b.Expect(b.execute(lsp.Command{Verb: lsp.Kill, Incarnation: 1})).To(BeEmpty())
			}
			b.await(HaveField("Phase", facts.Exited))
			b.Expect(b.readState().Exit).NotTo(BeNil())
		})
	}
}

func TestRun_KillsServerWhenCanceled(t *testing.T) {
	b := newFixture(t)
	b.Expect(b.execute(b.launch(1, "stubborn"))).To(BeEmpty())
	b.awaitIgnored(unix.SIGTERM)
	b.cancel() // as SIGTERM does
	b.expectCleanExit()
	b.Expect(b.readState()).To(And(HaveField("Phase", facts.Exited), HaveField("Exit.Signal", "SIGKILL"), HaveField("StopSent", true)))
}

func TestMemoryLimit_RequestsRestart(t *testing.T) {
	b := newFixture(t)
	command := b.launch(1, "serve")
	command.Launch.Config.Limits.MemoryBytes = 1
	b.Expect(b.execute(command)).To(BeEmpty())
	b.await(And(HaveField("Unhealthy", lsp.ReasonMemoryLimit), HaveField("Restart", true), HaveField("MemoryBytes", BeNumerically(">", 1)), HaveField("Message", ContainSubstring("limit"))))
	b.Expect(quiet(lsp.Report{OldestRequest: time.Now().Add(-time.Minute)})).To(BeFalse(), "not while a request is in flight")
}

func TestRun_RefusesDirectoryInUse(t *testing.T) {
	b := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	b.Expect(run(ctx, b.dir, os.Stderr)).To(MatchError(ContainSubstring("another multiplexer")))
	b.Expect(b.execute(lsp.Command{Verb: lsp.Stop})).To(BeEmpty(), "the first multiplexer still runs")
	b.Expect(Main([]string{"berth-lsp"})).To(Equal(2))
	b.Expect(Main([]string{"berth-lsp", "--no-such-flag"})).To(Equal(2))
}

// modeVariable turns this binary into the server of a test.
const modeVariable = "LSP_PROGRAM_TEST_MODE"

func languageServer(mode string) {
	switch mode {
	case "exit":
		os.Exit(9)
	case "garbage":
		fmt.Print("Content-Length: many\r\n\r\n")
	case "oversize":
		fmt.Print("Content-Length: 99999999999\r\n\r\n")
	case "log-first":
		reply(`{"jsonrpc":"2.0","method":"window/logMessage","params":{"type":3,"message":"hello"}}`)
	case "mute":
		_ = os.Stdout.Close()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	case "fork":
		_ = os.Setenv(modeVariable, "stubborn")
		_, _ = syscall.ForkExec(os.Args[0], os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
		mode = "deaf"
	}
	for reader := bufio.NewReader(os.Stdin); mode != "silent" && mode != "deaf" && mode != "stubborn"; {
		if !answerMessage(reader, mode) {
			os.Exit(0)
		}
	}
	for {
		time.Sleep(time.Hour)
	}
}

// answerMessage answers one message. It returns false at the end of the input.
func answerMessage(reader *bufio.Reader, mode string) bool {
	length := 0
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return false
		}
		if line = strings.TrimSpace(line); line == "" {
			break
		}
		if value, found := strings.CutPrefix(line, "Content-Length: "); found {
			length, _ = strconv.Atoi(value)
		}
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(reader, body); err != nil {
		return false
	}
	var message struct {
		ID     *json.RawMessage `json:"id"`
		Method string           `json:"method"`
	}
	_ = json.Unmarshal(body, &message)
	switch {
	case message.Method == "exit":
		return false
	case message.ID == nil || message.Method == "":
		return true
	case message.Method == "initialize" && mode == "refuse":
		reply(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"no"}}`, *message.ID))
	case message.Method == "initialize":
		reply(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"capabilities":{}}}`, *message.ID))
		if mode == "late-exit" {
			os.Exit(9)
		}
	default:
		reply(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":null}`, *message.ID))
	}
	return true
}

func reply(body string) { fmt.Printf("Content-Length: %d\r\n\r\n%s", len(body), body) }
