// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	patience = 60 * time.Second
	often    = 10 * time.Millisecond

	testLogLimit = 1 << 20
)

// programs holds berth-shim.
var programs string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.fuzz") }) {
		return m.Run() // parsers need neither tmux nor programs
	}
	if _, err := exec.LookPath("tmux"); err != nil && os.Getenv("CI") == "" {
		fmt.Println("tmux is not installed: none of the tests of the tmux runtime was run")
		return 0
	}
	dir, err := os.MkdirTemp("", "berth-tmux-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	defer conformance.RemoveWorkload()
	programs = dir
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "github.com/berth-dev/berth/cmd/berth-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build berth-shim: %v\n%s", err, out)
		return 1
	}
	// Use a separate socket directory, so that the servers of the user and of other test runs are not affected. The path of a socket must be short.
	if err := os.Setenv("TMUX_TMPDIR", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
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

// bench is a host with tmux sessions on its own socket. It cleans up after the test.
type bench struct {
	testing.TB
	*WithT
	*Runtime
	machine *host.Host
	dir     string
	socket  string
	woken   chan types.UID
	ctx     context.Context
}

func newBench(t testing.TB) *bench {
	t.Helper()
	// The directory is longer than the maximum length of a socket path.
	b := &bench{
		TB: t, WithT: NewWithT(t), dir: filepath.Join(t.TempDir(), strings.Repeat("long", 30)), socket: "t-" + string(uuid.NewUUID())[:13],
		woken: make(chan types.UID, 1000), ctx: context.Background(),
	}
	t.Cleanup(func() { _, _ = b.tmux("kill-server") }) // also after a test that fails before its clean-up
	b.open()
	t.Cleanup(b.clean)
	return b
}

func (b *bench) open() {
	b.Helper()
	var err error
	shimPath := filepath.Join(programs, "berth-shim")
	b.machine, err = host.New(host.Options{StateDir: filepath.Join(b.dir, "host"), ShimPath: shimPath, LogLimit: testLogLimit})
	b.Expect(err).NotTo(HaveOccurred())
	b.Runtime, err = New(b.machine, Options{Dir: filepath.Join(b.dir, "tmux"), Shim: shimPath, Socket: b.socket, Wake: func(uid types.UID) {
		select {
		case b.woken <- uid:
		default:
		}
	}})
	b.Expect(err).NotTo(HaveOccurred())
}

func (b *bench) reopen() {
	b.Helper()
	b.close()
	b.open()
}

func (b *bench) close() {
	b.Helper()
	b.Runtime.Close()
	b.Expect(b.machine.Close()).To(Succeed())
}

// clean forgets everything and checks that nothing is left.
func (b *bench) clean() {
	b.Helper()
	uids, err := b.recorded()
	b.Expect(err).NotTo(HaveOccurred())
	all, err := b.List(b.ctx)
	b.Expect(err).NotTo(HaveOccurred())
	for _, i := range all {
		uids = append(uids, types.UID(i.UID))
	}
	for _, uid := range uids {
		b.Eventually(func() error {
			for _, i := range b.all(uid) {
				_ = b.Kill(b.ctx, uid, i.Number)
			}
			return b.Forget(b.ctx, uid)
		}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	}
	b.Expect(os.ReadDir(filepath.Join(b.dir, "tmux"))).To(BeEmpty())
	b.Expect(os.ReadDir(filepath.Join(b.dir, "host", "run"))).To(BeEmpty())
	b.close()
	_, _ = b.tmux("kill-server")
	b.Eventually(b.processes).WithTimeout(patience).WithPolling(often).Should(BeEmpty(), "processes are left")
}

// processes returns the processes that use files or the socket of this bench.
func (b *bench) processes() []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		dir, _ := os.Readlink(link)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if strings.HasPrefix(dir, b.dir) || strings.Contains(string(line), b.dir) || strings.Contains(string(line), b.socket) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// tmux runs a tmux command on the socket of the bench, as a user would.
func (b *bench) tmux(args ...string) (string, error) {
	return byHand(b.ctx, b.socket, args...)
}

func byHand(ctx context.Context, socket string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "tmux", append([]string{"-u", "-L", socket, "-f", os.DevNull}, args...)...)
	cmd.Env = append(os.Environ(), "TMUX=", "TMUX_PANE=")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (b *bench) mustTmux(args ...string) string {
	b.Helper()
	out, err := b.tmux(args...)
	b.Expect(err).NotTo(HaveOccurred(), out)
	return out
}

// foreign creates a session without Berth that runs the workload, and returns the process of its pane.
func (b *bench) foreign(name string, mode ...string) shim.Process {
	b.Helper()
	args := append([]string{"new-session", "-d", "-P", "-F", "#{pane_pid}", "-s", name, "--", conformance.Workload(b.TB)}, mode...)
	if len(mode) == 0 {
		args = append(args, "sleep")
	}
	process, err := shim.Identify(number(b.mustTmux(args...)))
	b.Expect(err).NotTo(HaveOccurred())
	return process
}

func (b *bench) sessionNames() []string {
	b.Helper()
	all, err := b.Sessions(b.ctx, "")
	b.Expect(err).NotTo(HaveOccurred())
	names := []string{}
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names
}

func (b *bench) process(uid types.UID, incarnation int64, config Config, mode ...string) runtime.Process {
	b.Helper()
	data, err := json.Marshal(config)
	b.Expect(err).NotTo(HaveOccurred())
	return runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "instances/default/" + string(uid)[:8], Dir: "/", StopSignal: "SIGTERM", Config: data,
		Command: append([]string{conformance.Workload(b.TB)}, mode...), Terminal: &runtime.Terminal{Columns: 90, Rows: 30},
	}
}

func newUID() types.UID { return uuid.NewUUID() }

// start starts a process with a new UID and waits until it runs.
func (b *bench) start(config Config, mode ...string) types.UID {
	b.Helper()
	uid := newUID()
	b.Expect(b.Start(b.ctx, b.process(uid, 1, config, mode...))).To(Succeed())
	b.await(uid, 1, facts.Running)
	return uid
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		b := newBench(t)
		return conformance.Harness{
			Features: conformance.Features{Processes: true, Terminal: true, Logs: true, LogLimit: testLogLimit, Sockets: true},
			Runtime:  b.Runtime,
			Program:  conformance.Workload(t),
			Reopen: func(t *testing.T) runtime.Runtime {
				t.Helper()
				b.reopen()
				return b.Runtime
			},
			Usage: func(t *testing.T, uid types.UID) int64 {
				t.Helper()
				var st unix.Stat_t
				b.Expect(unix.Stat(filepath.Join(b.machine.Directory(uid), shim.LogFile), &st)).To(Succeed())
				return st.Blocks * 512
			},
		}
	})
}
