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
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/shim"
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
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// bench is a host with language servers in its own directory.
type bench struct {
	*testing.T
	*WithT
	*Runtime
	machine *host.Host
	dir     string
	woken   chan types.UID
}

func newBench(t *testing.T) *bench {
	t.Helper()
	// The directory is longer than the maximum length of a socket path.
	b := &bench{T: t, WithT: NewWithT(t), dir: filepath.Join(t.TempDir(), strings.Repeat("long", 30)), woken: make(chan types.UID, 1000)}
	b.open()
	t.Cleanup(b.clean)
	return b
}

func (b *bench) open() {
	b.Helper()
	var err error
	b.machine, err = host.New(host.Options{StateDir: filepath.Join(b.dir, "host"), ShimPath: filepath.Join(programs, "berth-shim")})
	b.Expect(err).NotTo(HaveOccurred())
	b.Runtime, err = New(b.machine, Options{Dir: filepath.Join(b.dir, "lsp"), Program: filepath.Join(programs, "berth-lsp"), Wake: func(uid types.UID) {
		select {
		case b.woken <- uid:
		default:
		}
	}})
	b.Expect(err).NotTo(HaveOccurred())
}

// use sets the program that later multiplexers run.
func (b *bench) use(program string) {
	b.site.(*onHost).program = program
}

func (b *bench) close() {
	b.Helper()
	b.Runtime.Close()
	b.Expect(b.machine.Close()).To(Succeed())
}

// clean forgets everything and checks that nothing is left.
func (b *bench) clean() {
	b.Helper()
	ctx := context.Background()
	all, err := b.List(ctx)
	b.Expect(err).NotTo(HaveOccurred())
	for _, i := range all {
		b.Expect(b.machine.Kill(ctx, types.UID(i.UID), i.Number)).To(Succeed())
		b.Eventually(func() error { return b.Forget(ctx, types.UID(i.UID)) }).WithTimeout(patience).WithPolling(often).Should(Succeed())
	}
	b.Expect(filepath.Glob(filepath.Join(b.dir, "lsp", "*"))).To(BeEmpty())
	b.close()
	b.Eventually(b.processes).WithTimeout(patience).WithPolling(often).Should(BeEmpty())
}

// processes returns the command lines of the processes whose directory or arguments are in the directory of this bench.
func (b *bench) processes() []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		dir, _ := os.Readlink(link)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if strings.HasPrefix(dir, b.dir) || strings.Contains(string(line), b.dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func (b *bench) process(uid types.UID, incarnation int64, args ...string) runtime.Process {
	b.Helper()
	config, err := json.Marshal(lsp.Config{Language: "test", Folders: []string{b.dir}})
	b.Expect(err).NotTo(HaveOccurred())
	return runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "languageservers/default/" + string(uid), Dir: b.dir, StopSignal: "SIGTERM", Grace: 10 * time.Second,
		Command: append([]string{filepath.Join(programs, "server")}, args...), Config: config, Env: []string{"ASKED_FOR=this", "MARK=" + string(uid)},
	}
}

func (b *bench) start(uid types.UID, incarnation int64, args ...string) facts.Incarnation {
	b.Helper()
	b.Expect(b.Start(b.Context(), b.process(uid, incarnation, args...))).To(Succeed())
	return b.await(uid, incarnation, facts.Running)
}

func (b *bench) observe(uid types.UID) facts.Incarnation {
	b.Helper()
	found, err := b.Observe(context.Background(), uid)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(len(found)).To(BeNumerically("<=", 1))
	if len(found) == 0 {
		return facts.Incarnation{}
	}
	return found[0]
}

func (b *bench) await(uid types.UID, incarnation int64, phase facts.Phase) facts.Incarnation {
	b.Helper()
	var now facts.Incarnation
	b.Eventually(func(g Gomega) {
		now = b.observe(uid)
		held, _ := b.machine.Observe(context.Background(), uid)
		g.Expect(now).To(And(HaveField("Number", incarnation), HaveField("Phase", phase)), "its multiplexer: %+v", held)
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	return now
}

// ready waits until the server has answered initialize.
func (b *bench) ready(uid types.UID, incarnation int64) {
	b.Helper()
	b.Eventually(func() bool {
		report, known := b.Report(uid)
		return known && report.Incarnation == incarnation && report.Initialized
	}).WithTimeout(patience).WithPolling(often).Should(BeTrue())
}

// multiplexer returns the process of the multiplexer of a UID.
func (b *bench) multiplexer(uid types.UID) shim.Process {
	b.Helper()
	found, err := b.machine.Observe(context.Background(), uid)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(found).To(HaveLen(1))
	b.Expect(found[0].Phase).To(Equal(facts.Running))
	return shim.Process{PID: int(found[0].PID), Ticks: uint64(found[0].StartTicks)}
}

// signal sends a signal to exactly this process.
func (b *bench) signal(p shim.Process, signal unix.Signal) {
	b.Helper()
	fd, err := shim.Open(p)
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	b.Expect(unix.PidfdSendSignal(fd, signal, nil, 0)).To(Succeed())
	if signal == unix.SIGSTOP {
		b.Eventually(func() (string, error) {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
			_, after, _ := strings.Cut(string(stat), ") ")
			return after, err
		}).WithTimeout(patience).WithPolling(often).Should(HavePrefix("T"))
	}
}

func (b *bench) isGone(p shim.Process) {
	b.Helper()
	b.Eventually(func() bool {
		fd, err := shim.Open(p)
		if err != nil {
			return true
		}
		defer func() { _ = unix.Close(fd) }()
		ended, _ := shim.Ended(fd)
		return ended
	}).WithTimeout(patience).WithPolling(often).Should(BeTrue())
}

func identity(i facts.Incarnation) shim.Process {
	return shim.Process{PID: int(i.PID), Ticks: uint64(i.StartTicks)}
}

// editor is a client of a language server.
type editor struct {
	*bench
	conn   net.Conn
	reader *bufio.Reader
	next   int
}

func (b *bench) connect(uid types.UID) *editor {
	b.Helper()
	conn, err := control.Connect(b.Context(), b.Endpoint(uid))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(conn.SetDeadline(time.Now().Add(2 * patience))).To(Succeed())
	return b.edit(conn)
}

// edit returns an editor that has initialized the server at the other end of a connection.
func (b *bench) edit(conn net.Conn) *editor {
	b.Helper()
	b.Cleanup(func() { _ = conn.Close() })
	e := &editor{bench: b, conn: conn, reader: bufio.NewReader(conn)}
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

var anywhere = map[string]any{"textDocument": map[string]any{"uri": "file:///nowhere.test"}, "position": map[string]any{"line": 0, "character": 0}}

// hover returns the identity of the server: its PID, directory and environment.
func (e *editor) hover() []string {
	e.Helper()
	got := e.call("textDocument/hover", anywhere)
	e.Expect(got.Error).To(BeNil())
	var said struct{ Contents string }
	e.Expect(json.Unmarshal(got.Result, &said)).To(Succeed())
	return strings.Fields(said.Contents)
}
