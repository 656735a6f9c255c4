// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/test/lspclient"
)

// goplsVersion is the version that the function gopls builds if make has not built gopls.
const goplsVersion = "golang.org/x/tools/gopls@v0.23.0"

// multiplexerPath and fakePath return the path of a program. Each builds its program on the first call.
var multiplexerPath, fakePath = programBuilder("berth-lsp", "../../cmd/berth-lsp"), programBuilder("lspfake", "../lspfake")

// programBuilder returns a function that builds a program on its first call and returns its path.
func programBuilder(name, source string) func(t *testing.T) string {
	var once sync.Once
	var path, failure string
	return func(t *testing.T) string {
		t.Helper()
		once.Do(func() {
			path = filepath.Join(filepath.Dir(shimPath), name)
			build := exec.Command("go", "build", "-trimpath", "-o", path, source)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				failure = fmt.Sprintf("build %s: %v\n%s", source, err, out)
			}
		})
		if failure != "" {
			t.Fatal(failure)
		}
		return path
	}
}

// gopls returns the path of the gopls that make has built. If make has not built gopls, it builds goplsVersion in the user's cache directory.
func gopls(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/gopls")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "berth-e2e", filepath.Base(goplsVersion))
	path = filepath.Join(dir, "gopls")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	install := exec.Command("go", "install", goplsVersion)
	install.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install %s: %v\n%s", goplsVersion, err, out)
	}
	return path
}

// multiplexer is a running berth-lsp; the test acts as its manager.
type multiplexer struct {
	t       *testing.T
	dir     string
	cmd     *exec.Cmd
	control *control.Client

	mu      sync.Mutex
	last    lsp.Report
	command int64
}

// startMultiplexer starts berth-lsp and waits for its first report.
func startMultiplexer(t *testing.T) *multiplexer {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "berth-bench-lsp-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &multiplexer{t: t, dir: dir, cmd: exec.Command(multiplexerPath(t), "--dir", dir)}
	var output bytes.Buffer
	m.cmd.Stderr = &output
	g.Expect(m.cmd.Start()).To(Succeed())
	t.Cleanup(func() {
		m.end()
		if t.Failed() {
			t.Logf("berth-lsp output:\n%s", output.Bytes()[max(0, output.Len()-4096):])
		}
	})
	g.Eventually(func() error {
		conn, err := control.Connect(t.Context(), filepath.Join(dir, lsp.ControlSocket))
		if err != nil {
			return err
		}
		m.control, err = control.Converse(t.Context(), conn, m.setReport)
		return err
	}).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Succeed())
	m.await("reports", func(r lsp.Report) bool { return r.Protocol == lsp.Protocol })
	return m
}

func (m *multiplexer) setReport(r lsp.Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = r
}

func (m *multiplexer) report() lsp.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// await waits until condition returns true for the latest report.
func (m *multiplexer) await(what string, condition func(lsp.Report) bool) {
	m.t.Helper()
	NewWithT(m.t).Eventually(func() bool { return condition(m.report()) }).WithTimeout(patience).WithPolling(time.Millisecond).
		Should(BeTrue(), func() string { return fmt.Sprintf("%s: %+v", what, m.report()) })
}

// sendCommand sends a command as the manager does.
func (m *multiplexer) sendCommand(command lsp.Command) {
	m.t.Helper()
	m.command++
	command.ID = m.command
	ctx, cancel := context.WithTimeout(backgroundContext, patience)
	defer cancel()
	answer, err := m.control.Do(ctx, command)
	if err != nil || answer.Code != "" {
		m.t.Fatalf("%s: %v %+v", command.Verb, err, answer)
	}
}

// serve starts an incarnation of a server and waits until it is initialized.
func (m *multiplexer) serve(incarnation int64, config lsp.Config, dir string, command ...string) {
	m.t.Helper()
	m.sendCommand(lsp.Command{Verb: lsp.Start, Incarnation: incarnation, Launch: &lsp.Launch{
		Incarnation: incarnation, Command: command, Env: os.Environ(), Dir: dir, StopSignal: "SIGTERM", Grace: 10 * time.Second, Config: config,
	}})
	m.await("serves", func(r lsp.Report) bool { return r.Incarnation == incarnation && r.Initialized })
}

// end stops the server and the multiplexer.
func (m *multiplexer) end() {
	if m.control != nil {
		if r := m.report(); r.Phase == facts.Running || r.Phase == facts.Starting {
			m.sendCommand(lsp.Command{Verb: lsp.Kill, Incarnation: r.Incarnation})
			m.await("has stopped its server", func(r lsp.Report) bool { return r.Phase != facts.Running && r.Phase != facts.Starting })
		}
		m.sendCommand(lsp.Command{Verb: lsp.Quit, Reason: "the benchmark has finished"})
		m.control.Close()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.cmd.Wait()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		_ = m.cmd.Process.Kill()
		<-done
		m.t.Error("berth-lsp did not exit after the quit command")
	}
}

// socket returns the path of the socket for clients.
func (m *multiplexer) socket() string { return filepath.Join(m.dir, lsp.ClientSocket) }

// client connects to the multiplexer and initializes a session.
func (m *multiplexer) client(t *testing.T, folder string) *lspclient.Client {
	t.Helper()
	client, err := lspclient.Dial(t.Context(), m.socket(), lspclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := client.Initialize(t.Context(), folder); err != nil {
		t.Fatal(err)
	}
	return client
}

// wireClient sends prepared frames, so that the measurement does not include the cost of encoding them.
type wireClient struct {
	io.Writer
	reader *bufio.Reader
}

// frame encodes a message; an id of 0 makes it a notification.
func frame(t *testing.T, id int, method string, params any) []byte {
	t.Helper()
	message := map[string]any{"jsonrpc": "2.0", "method": method, "params": params}
	if id > 0 {
		message["id"] = id
	}
	body, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return append(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n", len(body)), body...)
}

// request sends a request and reads until its response arrives.
func (c wireClient) request(t *testing.T, request []byte, id int) []byte {
	t.Helper()
	if _, err := c.Write(request); err != nil {
		t.Fatal(err)
	}
	mark := []byte(`"id":` + strconv.Itoa(id))
	for {
		body, err := lspclient.ReadFrame(c.reader)
		if err != nil {
			t.Fatal(err)
		}
		answers := !bytes.Contains(body[:min(len(body), 4096)], []byte(`"method"`)) && (bytes.Contains(body[:min(len(body), 200)], mark) || bytes.Contains(body[max(0, len(body)-200):], mark))
		if answers {
			if bytes.Contains(body[:min(len(body), 200)], []byte(`"error"`)) {
				t.Fatalf("error response: %s", body)
			}
			return body
		}
		if bytes.Contains(body, []byte(`"id"`)) {
			// Answer the requests that a server sends at startup.
			var question lspclient.Message
			if err := json.Unmarshal(body, &question); err != nil {
				t.Fatal(err)
			}
			answer := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":[null]}`, question.ID)
			if _, err := c.Write(append(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n", len(answer)), answer...)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// newSocketClient returns a client that is connected to the multiplexer.
func newSocketClient(t *testing.T, m *multiplexer) wireClient {
	t.Helper()
	conn, err := net.Dial("unix", m.socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return wireClient{Writer: conn, reader: bufio.NewReaderSize(conn, 64<<10)}
}

// newPipeClient starts a separate server and returns a client that is connected to its stdin and stdout.
func newPipeClient(t *testing.T, command ...string) wireClient {
	t.Helper()
	program, err := lspclient.Start(exec.Command(command[0], command[1:]...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Kill() })
	return wireClient{Writer: program, reader: bufio.NewReaderSize(program, 64<<10)}
}

// proportionalMemory returns the memory of the processes and all their descendants in MiB. A page that several processes share counts proportionally
// (PSS).
func proportionalMemory(t *testing.T, pids ...int) (mib float64) {
	t.Helper()
	for _, pid := range pids {
		// Ignore an error: a child process of the server may exit at any moment.
		if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)); err == nil {
			mib += float64(sumField(t, data, "Pss")) / 1024
		}
		mib += proportionalMemory(t, childrenOf(pid)...)
	}
	return mib
}

func childrenOf(pid int) (children []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		data, _ := os.ReadFile(list)
		for _, field := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}
