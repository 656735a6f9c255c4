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
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/test/need"
)

const (
	patience = 60 * time.Second
	often    = 10 * time.Millisecond

	testLogLimit = 1 << 20
)

// programs is the directory that contains berth-shim.
var programs string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.fuzz") }) {
		return m.Run() // parsers need neither tmux nor programs
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

// fixture is a host with tmux sessions on its own socket. It cleans up after the test.
type fixture struct {
	testing.TB
	*WithT
	*Runtime
	machine *host.Host
	dir     string
	socket  string
	runAs   *shim.User // the user that programs run as; nil means the user of the test
	ctx     context.Context
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	need.Programs(t, "tmux")
	// The directory is longer than the maximum length of a socket path.
	f := &fixture{
		TB: t, WithT: NewWithT(t), dir: filepath.Join(t.TempDir(), strings.Repeat("long", 30)), socket: "t-" + string(uuid.NewUUID())[:13],
		ctx: context.Background(),
	}
	t.Cleanup(func() { _, _ = f.tmux("kill-server") }) // also after a test that fails before its clean-up
	f.open()
	t.Cleanup(f.clean)
	return f
}

func (f *fixture) open() {
	f.Helper()
	var err error
	shimPath := filepath.Join(programs, "berth-shim")
	f.machine, err = host.New(host.Options{
		StateDir: filepath.Join(f.dir, "host"), ShimPath: shimPath, LogLimit: testLogLimit, RunAs: f.runAs, ResultsDir: filepath.Join(f.dir, "results"),
	})
	f.Expect(err).NotTo(HaveOccurred())
	f.Runtime, err = New(f.machine, Options{Dir: filepath.Join(f.dir, "tmux"), Shim: shimPath, Socket: f.socket, RunAs: f.runAs})
	f.Expect(err).NotTo(HaveOccurred())
}

func (f *fixture) reopen() {
	f.Helper()
	f.close()
	f.open()
}

func (f *fixture) close() {
	f.Helper()
	f.Runtime.Close()
	f.Expect(f.machine.Close()).To(Succeed())
}

// clean forgets everything and checks that nothing is left.
func (f *fixture) clean() {
	f.Helper()
	uids, err := f.recorded()
	f.Expect(err).NotTo(HaveOccurred())
	all, err := f.List(f.ctx)
	f.Expect(err).NotTo(HaveOccurred())
	for _, i := range all {
		uids = append(uids, types.UID(i.UID))
	}
	for _, uid := range uids {
		f.Eventually(func() error {
			for _, i := range f.observeAll(uid) {
				_ = f.Kill(f.ctx, uid, i.Number)
			}
			return f.Forget(f.ctx, uid)
		}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	}
	f.Expect(os.ReadDir(filepath.Join(f.dir, "tmux"))).To(BeEmpty())
	f.Expect(os.ReadDir(filepath.Join(f.dir, "host", "run"))).To(BeEmpty())
	f.close()
	_, _ = f.tmux("kill-server")
	f.Eventually(f.processes).WithTimeout(patience).WithPolling(often).Should(BeEmpty(), "processes are left")
}

// processes returns the processes that use files or the socket of this fixture.
func (f *fixture) processes() []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		dir, _ := os.Readlink(link)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if strings.HasPrefix(dir, f.dir) || strings.Contains(string(line), f.dir) || strings.Contains(string(line), f.socket) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// tmux runs a tmux command on the socket of the fixture, as a user would.
func (f *fixture) tmux(args ...string) (string, error) {
	return runTmux(f.ctx, f.socket, args...)
}

func runTmux(ctx context.Context, socket string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "tmux", append([]string{"-u", "-L", socket, "-f", os.DevNull}, args...)...)
	cmd.Env = append(os.Environ(), "TMUX=", "TMUX_PANE=")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (f *fixture) mustTmux(args ...string) string {
	f.Helper()
	out, err := f.tmux(args...)
	f.Expect(err).NotTo(HaveOccurred(), out)
	return out
}

// newForeignSession creates a session without Berth that runs the workload, and returns the process of its pane.
func (f *fixture) newForeignSession(name string, mode ...string) procstat.Process {
	f.Helper()
	args := append([]string{"new-session", "-d", "-P", "-F", "#{pane_pid}", "-s", name, "--", conformance.Workload(f.TB)}, mode...)
	if len(mode) == 0 {
		args = append(args, "sleep")
	}
	process, err := procstat.Identify(number(f.mustTmux(args...)))
	f.Expect(err).NotTo(HaveOccurred())
	return process
}

func (f *fixture) sessionNames() []string {
	f.Helper()
	all, err := f.Sessions(f.ctx, "")
	f.Expect(err).NotTo(HaveOccurred())
	names := []string{}
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names
}

func (f *fixture) process(uid types.UID, incarnation int64, config sessionConfig, mode ...string) runtime.Process {
	f.Helper()
	data, err := json.Marshal(config)
	f.Expect(err).NotTo(HaveOccurred())
	return runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "instances/default/" + string(uid)[:8], Dir: "/", StopSignal: "SIGTERM", Config: data,
		Command: append([]string{conformance.Workload(f.TB)}, mode...), Terminal: &runtime.Terminal{Columns: 90, Rows: 30},
	}
}

func newUID() types.UID { return uuid.NewUUID() }

// start starts a process with a new UID and waits until it runs.
func (f *fixture) start(config sessionConfig, mode ...string) types.UID {
	f.Helper()
	uid := newUID()
	f.Expect(f.Start(f.ctx, f.process(uid, 1, config, mode...))).To(Succeed())
	f.await(uid, 1, facts.Running)
	return uid
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		f := newFixture(t)
		return conformance.Harness{
			Features: conformance.Features{Processes: true, Terminal: true, Logs: true, LogLimit: testLogLimit, Sockets: true, Window: true},
			Runtime:  f.Runtime,
			Program:  conformance.Workload(t),
			Reopen: func(t *testing.T) runtime.Runtime {
				t.Helper()
				f.reopen()
				return f.Runtime
			},
			Usage: func(t *testing.T, uid types.UID) int64 {
				t.Helper()
				var st unix.Stat_t
				f.Expect(unix.Stat(filepath.Join(f.machine.Directory(uid), shim.LogFile), &st)).To(Succeed())
				return st.Blocks * 512
			},
		}
	})
}
