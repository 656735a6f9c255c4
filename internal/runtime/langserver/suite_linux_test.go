// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"bufio"
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
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/runtime/host"
)

const (
	patience = 60 * time.Second
	often    = 5 * time.Millisecond
)

// programs is the directory that contains the programs built for the tests: berth-shim, berth-lsp, berth-lsp-pod and server.
var programs string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "berth-langserver-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	programs = dir
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "github.com/berth-dev/berth/cmd/berth-shim", "github.com/berth-dev/berth/cmd/berth-lsp",
		"github.com/berth-dev/berth/cmd/berth-lsp-pod", "./testdata/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
		return 1
	}
	defer conformance.RemoveWorkload()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// fixture is a host with language servers in its own directory.
type fixture struct {
	testing.TB
	*WithT
	*Runtime
	machine *host.Host
	dir     string
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	// The path of the directory is longer than the maximum length of a socket path.
	f := &fixture{TB: t, WithT: NewWithT(t), dir: filepath.Join(t.TempDir(), strings.Repeat("long", 30))}
	f.open()
	t.Cleanup(f.clean)
	return f
}

func (f *fixture) open() {
	f.Helper()
	var err error
	f.machine, err = host.New(host.Options{StateDir: filepath.Join(f.dir, "host"), ShimPath: filepath.Join(programs, "berth-shim")})
	f.Expect(err).NotTo(HaveOccurred())
	f.Runtime, err = New(f.machine, Options{Dir: filepath.Join(f.dir, "lsp"), Program: filepath.Join(programs, "berth-lsp")})
	f.Expect(err).NotTo(HaveOccurred())
}

// setProgram sets the program that later multiplexers run.
func (f *fixture) setProgram(program string) {
	f.site.(*onHost).program = program
}

func (f *fixture) close() {
	f.Helper()
	f.Runtime.Close()
	f.Expect(f.machine.Close()).To(Succeed())
}

// clean forgets everything and checks that nothing is left.
func (f *fixture) clean() {
	f.Helper()
	ctx := context.Background()
	all, err := f.List(ctx)
	f.Expect(err).NotTo(HaveOccurred())
	for _, i := range all {
		f.Expect(f.machine.Kill(ctx, types.UID(i.UID), i.Number)).To(Succeed())
		f.Eventually(func() error { return f.Forget(ctx, types.UID(i.UID)) }).WithTimeout(patience).WithPolling(often).Should(Succeed())
	}
	f.Expect(filepath.Glob(filepath.Join(f.dir, "lsp", "*"))).To(BeEmpty())
	f.close()
	f.Eventually(f.processes).WithTimeout(patience).WithPolling(often).Should(BeEmpty())
}

// processes returns the command lines of the processes whose working directory is in the directory of this fixture, or whose arguments contain that directory.
func (f *fixture) processes() []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		dir, _ := os.Readlink(link)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if strings.HasPrefix(dir, f.dir) || strings.Contains(string(line), f.dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func (f *fixture) process(uid types.UID, incarnation int64, args ...string) runtime.Process {
	f.Helper()
	config, err := json.Marshal(lsp.Config{Language: "test", Folders: []string{f.dir}})
	f.Expect(err).NotTo(HaveOccurred())
	return runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "languageservers/default/" + string(uid), Dir: f.dir, StopSignal: "SIGTERM", Grace: 10 * time.Second,
		Command: append([]string{filepath.Join(programs, "server")}, args...), Config: config, Env: []string{"ASKED_FOR=this", "MARK=" + string(uid)},
	}
}

func (f *fixture) start(uid types.UID, incarnation int64, args ...string) facts.Incarnation {
	f.Helper()
	f.Expect(f.Start(f.Context(), f.process(uid, incarnation, args...))).To(Succeed())
	return f.await(uid, incarnation, facts.Running)
}

func (f *fixture) observe(uid types.UID) facts.Incarnation {
	f.Helper()
	found, err := f.Observe(context.Background(), uid)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(len(found)).To(BeNumerically("<=", 1))
	if len(found) == 0 {
		return facts.Incarnation{}
	}
	return found[0]
}

func (f *fixture) await(uid types.UID, incarnation int64, phase facts.Phase) facts.Incarnation {
	f.Helper()
	var now facts.Incarnation
	f.Eventually(func(g Gomega) {
		now = f.observe(uid)
		held, _ := f.machine.Observe(context.Background(), uid)
		g.Expect(now).To(And(HaveField("Number", incarnation), HaveField("Phase", phase)), "its multiplexer: %+v", held)
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return now
}

// awaitReady waits until the server has answered initialize.
func (f *fixture) awaitReady(uid types.UID, incarnation int64) {
	f.Helper()
	f.Eventually(func() bool {
		report, known := f.Report(uid)
		return known && report.Incarnation == incarnation && report.Initialized
	}).WithTimeout(patience).WithPolling(often).Should(BeTrue())
}

// multiplexer returns the process of the multiplexer of a UID. A server can be known to run before its multiplexer is.
func (f *fixture) multiplexer(uid types.UID) procstat.Process {
	f.Helper()
	var found []facts.Incarnation
	f.Eventually(func(g Gomega) {
		var err error
		found, err = f.machine.Observe(context.Background(), uid)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(1))
		g.Expect(found[0].Phase).To(Equal(facts.Running))
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return procstat.Process{PID: int(found[0].PID), Ticks: uint64(found[0].StartTicks)}
}

func (f *fixture) awaitExit(p procstat.Process) {
	f.Helper()
	f.Eventually(func() bool {
		fd, err := procstat.Open(p)
		if err != nil {
			return true
		}
		defer func() { _ = unix.Close(fd) }()
		ended, _ := procstat.Ended(fd)
		return ended
	}).WithTimeout(patience).WithPolling(often).Should(BeTrue())
}

func identity(i facts.Incarnation) procstat.Process {
	return procstat.Process{PID: int(i.PID), Ticks: uint64(i.StartTicks)}
}

// editor is a client of a language server.
type editor struct {
	*fixture
	conn   net.Conn
	reader *bufio.Reader
	next   int
}

func (f *fixture) connect(uid types.UID) *editor {
	f.Helper()
	conn, err := control.Connect(f.Context(), f.Endpoint(uid))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(conn.SetDeadline(time.Now().Add(2 * patience))).To(Succeed())
	return f.newEditor(conn)
}

// newEditor returns an editor that has initialized the server at the other end of a connection.
func (f *fixture) newEditor(conn net.Conn) *editor {
	f.Helper()
	f.Cleanup(func() { _ = conn.Close() })
	e := &editor{fixture: f, conn: conn, reader: bufio.NewReader(conn)}
	e.call("initialize", map[string]any{"processId": nil, "rootUri": nil, "capabilities": map[string]any{}})
	e.send(map[string]any{"jsonrpc": "2.0", "method": "initialized", "params": map[string]any{}})
	return e
}

func (e *editor) send(message any) {
	e.Helper()
	body, err := json.Marshal(message)
	e.Expect(err).NotTo(HaveOccurred())
	_, err = fmt.Fprintf(e.conn, "Content-Length: %d\r\n\r\n%s", len(body), body)
	e.Expect(err).NotTo(HaveOccurred())
}

type response struct {
	ID     *int            `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// call sends a request and returns its response. It ignores all other messages.
func (e *editor) call(method string, params any) response {
	e.Helper()
	e.next++
	e.send(map[string]any{"jsonrpc": "2.0", "id": e.next, "method": method, "params": params})
	for {
		got := e.receive()
		if got.Method == "" && got.ID != nil && *got.ID == e.next {
			return got
		}
	}
}

func (e *editor) receive() response {
	e.Helper()
	length := 0
	for {
		line, err := e.reader.ReadString('\n')
		e.Expect(err).NotTo(HaveOccurred())
		if line = strings.TrimSpace(line); line == "" {
			break
		}
		if value, found := strings.CutPrefix(line, "Content-Length:"); found {
			length, err = strconv.Atoi(strings.TrimSpace(value))
			e.Expect(err).NotTo(HaveOccurred())
		}
	}
	body := make([]byte, length)
	_, err := io.ReadFull(e.reader, body)
	e.Expect(err).NotTo(HaveOccurred())
	var got response
	e.Expect(json.Unmarshal(body, &got)).To(Succeed())
	return got
}

var anyPosition = map[string]any{"textDocument": map[string]any{"uri": "file:///nowhere.test"}, "position": map[string]any{"line": 0, "character": 0}}

// hover returns the identity of the server: its PID, directory and environment.
func (e *editor) hover() []string {
	e.Helper()
	got := e.call("textDocument/hover", anyPosition)
	e.Expect(got.Error).To(BeNil())
	var said struct{ Contents string }
	e.Expect(json.Unmarshal(got.Result, &said)).To(Succeed())
	return strings.Fields(said.Contents)
}
