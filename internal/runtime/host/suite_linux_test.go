// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
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

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
	"github.com/berth-dev/berth/test/need"
)

const testLogLimit = 1 << 20

var shimPath string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if os.Getenv(managerVariable) != "" {
		return m.Run() // the parent test provides the environment and kills this process
	}
	if slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.fuzz") }) {
		return m.Run() // the fuzz tests of parsers need no shim
	}
	dir, err := os.MkdirTemp("", "berth-host-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	defer conformance.RemoveWorkload()
	shimPath = filepath.Join(dir, "berth-shim")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", shimPath, "github.com/berth-dev/berth/cmd/berth-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build berth-shim: %v\n%s", err, out)
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

// errNoCgroup is why the tier Cgroup is not tested.
var errNoCgroup = errors.New("no writable cgroup, so the tier Cgroup is not tested")

// availableTiers returns the tiers that can be tested here. The tier Cgroup needs a writable cgroup.
func availableTiers(t *testing.T) []string {
	root, err := contain(Options{StateDir: t.TempDir(), ShimPath: shimPath})
	if err != nil {
		t.Fatal(err)
	}
	if root == nil {
		need.Note(t, errNoCgroup)
		return []string{shim.Subreaper}
	}
	_ = os.Remove(root.Name())
	_ = root.Close()
	return []string{shim.Cgroup, shim.Subreaper}
}

// forEachTier runs a test in every tier.
func forEachTier(t *testing.T, run func(*fixture)) {
	for _, tier := range availableTiers(t) {
		t.Run(tier, func(t *testing.T) { run(newFixture(t, tier)) })
	}
}

// fixture is a Host with its own state directory. It cleans up after the test.
type fixture struct {
	*testing.T
	*WithT
	*Host
	options Options
	ctx     context.Context
}

func newFixture(t *testing.T, tier string) *fixture {
	t.Helper()
	// The path is longer than the maximum length of a socket path.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	f := &fixture{T: t, WithT: NewWithT(t), ctx: context.Background(), options: Options{StateDir: dir, ShimPath: shimPath, Containment: tier, LogLimit: testLogLimit}}
	f.open()
	t.Cleanup(f.clean)
	return f
}

func (f *fixture) open() {
	f.Helper()
	h, err := New(f.options)
	f.Expect(err).NotTo(HaveOccurred())
	f.Host = h
}

func (f *fixture) reopen() {
	f.Helper()
	f.Expect(f.Close()).To(Succeed())
	f.open()
}

// clean stops and forgets everything, and checks that nothing is left.
func (f *fixture) clean() {
	f.Helper()
	all, err := f.List(f.ctx)
	f.Expect(err).NotTo(HaveOccurred())
	for _, i := range all {
		f.Expect(f.Kill(f.ctx, types.UID(i.UID), i.Number)).To(Succeed())
	}
	for _, i := range all {
		f.Eventually(func() error { return f.Forget(f.ctx, types.UID(i.UID)) }).WithTimeout(conformance.Timeout).WithPolling(10 * time.Millisecond).Should(Succeed())
	}
	f.Expect(os.ReadDir(f.runDir())).To(BeEmpty())
	cgroup := f.cgroup
	f.Expect(f.Close()).To(Succeed())
	f.Expect(f.Close()).To(Succeed(), "a second Close")
	if cgroup != "" {
		f.Expect(cgroup).NotTo(BeADirectory(), "a cgroup is left")
	}
	f.Eventually(func() []string { return processesWith(f.options.StateDir) }).WithTimeout(conformance.Timeout).Should(BeEmpty(), "a shim is left")
}

// processesWith returns the processes whose working directory is dir or below it.
func processesWith(dir string) []string {
	var found []string
	entries, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, entry := range entries {
		if target, err := os.Readlink(entry); err == nil && strings.HasPrefix(target, dir) {
			found = append(found, entry+" → "+target)
		}
	}
	return found
}

func (f *fixture) process(uid types.UID, incarnation int64, mode ...string) runtime.Process {
	return runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "tests/default/" + string(uid), Dir: "/", StopSignal: "SIGTERM",
		Command: append([]string{conformance.Workload(f.T)}, mode...),
	}
}

func (f *fixture) start(uid types.UID, mode ...string) {
	f.Helper()
	f.Expect(f.Start(f.ctx, f.process(uid, 1, mode...))).To(Succeed())
}

func (f *fixture) observe(uid types.UID) facts.Incarnation {
	f.Helper()
	found, err := f.Observe(f.ctx, uid)
	f.Expect(err).NotTo(HaveOccurred())
	if len(found) == 0 {
		return facts.Incarnation{}
	}
	return found[0]
}

// await waits until an incarnation of a UID is in the phase. It calls Observe again only after an event, so a lost event fails the test.
func (f *fixture) await(uid types.UID, phase facts.Phase) facts.Incarnation {
	f.Helper()
	timeout := time.After(conformance.Timeout)
	for {
		now := f.observe(uid)
		if now.Phase == phase {
			return now
		}
		select {
		case <-f.Events():
		case <-timeout:
			f.Fatalf("%s did not become %s: %+v", uid, phase, now)
		}
	}
}

// identity reads the identity file of the shim.
func (f *fixture) identity(uid types.UID) shim.Identity {
	f.Helper()
	var identity shim.Identity
	found, err := statedir.ReadJSON(filepath.Join(f.dir(uid), shim.IdentityFile), &identity)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(found).To(BeTrue())
	return identity
}

// killShim kills only the shim, and not its process.
func (f *fixture) killShim(uid types.UID) {
	f.Helper()
	fd, err := procstat.Open(f.identity(uid).Shim)
	f.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	f.Expect(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)).To(Succeed())
	f.Eventually(func() (bool, error) { return lockHeld(filepath.Join(f.dir(uid), shim.LockFile)) }).WithTimeout(conformance.Timeout).Should(BeFalse())
}

func isAlive(p procstat.Process) bool {
	fd, err := procstat.Open(p)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	ended, _ := procstat.Ended(fd)
	return !ended
}

func TestConformance(t *testing.T) {
	for _, tier := range availableTiers(t) {
		t.Run(tier, func(t *testing.T) {
			conformance.Run(t, func(t *testing.T) conformance.Harness {
				f := newFixture(t, tier)
				return conformance.Harness{
					Features: conformance.Features{Processes: true, Terminal: true, Logs: true, LogLimit: testLogLimit, Sockets: true, Results: true},
					Runtime:  f.Host,
					Program:  conformance.Workload(t),
					Reopen: func(t *testing.T) runtime.Runtime {
						t.Helper()
						f.reopen()
						return f.Host
					},
					Usage: func(t *testing.T, uid types.UID) int64 {
						t.Helper()
						var st unix.Stat_t
						f.Expect(unix.Stat(filepath.Join(f.dir(uid), shim.LogFile), &st)).To(Succeed())
						return st.Blocks * 512
					},
				}
			})
		})
	}
}
