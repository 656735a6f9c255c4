// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/internal/lsp"
)

const patience = 60 * time.Second

// hasLongPaths reports whether Listen and Connect accept paths of any length.
const hasLongPaths = runtime.GOOS == "linux"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// multiplexer is a handler that records the commands.
type multiplexer struct {
	changes, urgent chan struct{}

	mu       sync.Mutex
	report   lsp.Report
	commands []lsp.Command
}

func (m *multiplexer) Do(command lsp.Command) lsp.Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commands = append(m.commands, command)
	if command.Incarnation < m.report.Incarnation {
		return lsp.Answer{Code: lsp.CodeStale, Error: "too old"}
	}
	m.report.Incarnation = command.Incarnation
	return lsp.Answer{}
}

func (m *multiplexer) Report() lsp.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.report
}

func (m *multiplexer) Changes() <-chan struct{} { return m.changes }
func (m *multiplexer) Urgent() <-chan struct{}  { return m.urgent }

func (m *multiplexer) change(number int64, told chan struct{}) {
	m.mu.Lock()
	m.report.PID = number
	m.mu.Unlock()
	select {
	case told <- struct{}{}:
	default:
	}
}

// fixture is a server on a socket whose path exceeds the maximum length of a socket address.
type fixture struct {
	*WithT
	*multiplexer
	path string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if !hasLongPaths {
		dir = filepath.Dir(dir)
	}
	b := &fixture{WithT: NewWithT(t), path: filepath.Join(dir, "c"), multiplexer: &multiplexer{
		changes: make(chan struct{}, 1), urgent: make(chan struct{}, 1), report: lsp.Report{Protocol: lsp.Protocol},
	}}
	b.Expect(os.MkdirAll(dir, 0o700)).To(Succeed())
	b.Expect(os.WriteFile(b.path, []byte("stale"), 0o600)).To(Succeed())
	listener, err := Listen(b.path)
	b.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, b.multiplexer) }()
	t.Cleanup(func() {
		cancel()
		b.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
	})
	return b
}

// manager is a client that records the reports.
type manager struct {
	*Client

	mu      sync.Mutex
	reports []lsp.Report
}

func dial(ctx context.Context, path string, onReport func(lsp.Report)) (*Client, error) {
	conn, err := Connect(ctx, path)
	if err != nil {
		return nil, err
	}
	return Converse(ctx, conn, onReport)
}

func (b *fixture) dial(t *testing.T) *manager {
	t.Helper()
	m := &manager{}
	var err error
	m.Client, err = dial(t.Context(), b.path, func(r lsp.Report) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.reports = append(m.reports, r)
	})
	b.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		m.Close()
		b.Eventually(m.Ended()).WithTimeout(patience).Should(BeClosed())
	})
	return m
}

func (m *manager) received() []lsp.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]lsp.Report(nil), m.reports...)
}

func (m *manager) lastReport() lsp.Report {
	all := m.received()
	return all[len(all)-1]
}

func TestDo_ReportArrivesBeforeAnswer(t *testing.T) {
	b := newFixture(t)
	info, err := os.Stat(b.path)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	m := b.dial(t)
	b.Expect(m.received()).To(HaveLen(1), "the first message is a report")

	launch := &lsp.Launch{Incarnation: 3, Command: []string{"gopls"}, Env: []string{"LARGE=" + strings.Repeat("x", 1<<20)}}
	answer, err := m.Do(t.Context(), lsp.Command{Verb: lsp.Start, Incarnation: 3, Launch: launch})
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(answer.Code).To(BeEmpty())
	b.Expect(m.lastReport().Incarnation).To(Equal(int64(3)), "the report arrives before the answer")
	b.Expect(b.commands[0].Launch).To(Equal(launch))

	answer, err = m.Do(t.Context(), lsp.Command{Verb: lsp.Stop, Incarnation: 2})
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(answer).To(Equal(lsp.Answer{ID: 2, Code: lsp.CodeStale, Error: "too old"}))
}

func TestDo_ConcurrentCommandsGetTheirOwnAnswers(t *testing.T) {
	b := newFixture(t)
	m := b.dial(t)
	b.Expect(m.Do(t.Context(), lsp.Command{Verb: lsp.Start, Incarnation: 50})).NotTo(BeNil())
	var all sync.WaitGroup
	for i := range int64(100) {
		all.Go(func() {
			answer, err := m.Do(t.Context(), lsp.Command{Verb: lsp.Stop, Incarnation: 50 * (i % 2)})
			if err != nil || (answer.Code == lsp.CodeStale) != (i%2 == 0) {
				t.Errorf("command %d was answered with %+v, %v", i, answer, err)
			}
		})
	}
	all.Wait()
}

func TestReports_AreRateLimited(t *testing.T) {
	b := newFixture(t)
	m := b.dial(t)
	began := time.Now()
	for number := int64(1); time.Since(began) < 500*time.Millisecond; number++ {
		b.change(number, b.changes)
		if number%100 == 0 {
			time.Sleep(time.Millisecond) // let other goroutines run
		}
	}
	b.change(-1, b.changes)
	b.Eventually(func() int64 { return m.lastReport().PID }).WithTimeout(patience).Should(Equal(int64(-1)), "the last report is never dropped")
	b.Expect(len(m.received())).To(BeNumerically("<=", int(time.Since(began)/pace)+3))
}

func TestReports_UrgentOnesAreSentImmediately(t *testing.T) {
	b := newFixture(t)
	m := b.dial(t)
	for number := int64(1); number <= 20; number++ {
		b.change(number, b.urgent)
		b.Eventually(func() int64 { return m.lastReport().PID }).WithTimeout(patience).WithPolling(time.Millisecond).Should(Equal(number))
	}
}

func TestServe_NewManagerReplacesOldOne(t *testing.T) {
	b := newFixture(t)
	first := b.dial(t)
	second := b.dial(t)
	b.Eventually(first.Ended()).WithTimeout(patience).Should(BeClosed())
	_, err := first.Do(t.Context(), lsp.Command{Verb: lsp.Kill})
	b.Expect(err).To(HaveOccurred())
	b.Expect(second.Do(t.Context(), lsp.Command{Verb: lsp.Stop})).To(Equal(lsp.Answer{ID: 1}))
	b.Expect(b.commands).To(HaveLen(1), "no command of the first manager is executed")
}

func TestServe_InvalidInputClosesOnlyItsConnection(t *testing.T) {
	for name, line := range map[string]string{
		"invalid JSON": "{]\n", "half a line": `{"id":`, "endless line": strings.Repeat("x", maxLine+128<<10),
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			conn, err := Connect(t.Context(), b.path)
			b.Expect(err).NotTo(HaveOccurred())
			defer func() { _ = conn.Close() }()
			reader := bufio.NewReader(conn)
			_, err = reader.ReadString('\n')
			b.Expect(err).NotTo(HaveOccurred())
			_, _ = conn.Write([]byte(line)) // the server may close the connection before everything is written
			if name == "half a line" {
				b.Expect(conn.(*net.UnixConn).CloseWrite()).To(Succeed())
			}
			b.Expect(conn.SetReadDeadline(time.Now().Add(patience))).To(Succeed())
			_, err = reader.ReadString('\n')
			b.Expect(err).To(HaveOccurred())
			b.Expect(err).NotTo(MatchError(os.ErrDeadlineExceeded))
			b.Expect(b.dial(t).Do(t.Context(), lsp.Command{Verb: lsp.Stop})).To(Equal(lsp.Answer{ID: 1}))
		})
	}
}

func TestConverse_FailsWithoutServerOrReport(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "c")
	_, err := dial(t.Context(), path, func(lsp.Report) {})
	g.Expect(err).To(MatchError(os.ErrNotExist))
	listener, err := Listen(path)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(listener.Close()).To(Succeed()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = dial(ctx, path, func(lsp.Report) {})
	g.Expect(err).To(MatchError(context.DeadlineExceeded), "the peer sends nothing")
}

func TestDo_FailsWhenNoAnswerArrives(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "c")
	listener, err := Listen(path)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(listener.Close()).To(Succeed()) }()
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_ = writeLine(conn, lsp.Message{Report: &lsp.Report{Protocol: lsp.Protocol}})
			accepted <- conn
		}
	}()
	client, err := dial(t.Context(), path, func(lsp.Report) {})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = client.Do(ctx, lsp.Command{Verb: lsp.Kill})
	g.Expect(err).To(MatchError(context.DeadlineExceeded))
	g.Expect((<-accepted).Close()).To(Succeed())
	g.Eventually(client.Ended()).WithTimeout(patience).Should(BeClosed())
	_, err = client.Do(t.Context(), lsp.Command{Verb: lsp.Kill})
	g.Expect(err).To(HaveOccurred())
}
