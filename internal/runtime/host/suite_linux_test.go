// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
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
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
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

// tiers returns the tiers that can be tested here. The tier Cgroup needs a writable cgroup.
func tiers(t *testing.T) []string {
	root, err := contain(Options{StateDir: t.TempDir(), ShimPath: shimPath})
	if err != nil {
		t.Fatal(err)
	}
	if root == nil {
		t.Log("no writable cgroup: only the tier Subreaper is tested")
		return []string{shim.Subreaper}
	}
	_ = os.Remove(root.Name())
	_ = root.Close()
	return []string{shim.Cgroup, shim.Subreaper}
}

// forTiers runs a test in every tier.
func forTiers(t *testing.T, run func(*bench)) {
	for _, tier := range tiers(t) {
		t.Run(tier, func(t *testing.T) { run(newBench(t, tier)) })
	}
}

// bench is a Host with its own state directory. It cleans up after the test.
type bench struct {
	*testing.T
	*WithT
	*Host
	options Options
	ctx     context.Context
}

func newBench(t *testing.T, tier string) *bench {
	t.Helper()
	// Longer than the maximum length of a socket path.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	b := &bench{T: t, WithT: NewWithT(t), ctx: context.Background(), options: Options{StateDir: dir, ShimPath: shimPath, Containment: tier, LogLimit: testLogLimit}}
	b.open()
	t.Cleanup(b.clean)
	return b
}

func (b *bench) open() {
	b.Helper()
	h, err := New(b.options)
	b.Expect(err).NotTo(HaveOccurred())
	b.Host = h
}

func (b *bench) reopen() {
	b.Helper()
	b.Expect(b.Close()).To(Succeed())
	b.open()
}

// clean stops and forgets everything, and checks that nothing is left.
func (b *bench) clean() {
	b.Helper()
	all, err := b.List(b.ctx)
	b.Expect(err).NotTo(HaveOccurred())
	for _, i := range all {
		b.Expect(b.Kill(b.ctx, types.UID(i.UID), i.Number)).To(Succeed())
	}
	for _, i := range all {
		b.Eventually(func() error { return b.Forget(b.ctx, types.UID(i.UID)) }).WithTimeout(conformance.Timeout).WithPolling(10 * time.Millisecond).Should(Succeed())
	}
	b.Expect(os.ReadDir(b.runDir())).To(BeEmpty())
	cgroup := b.cgroup
	b.Expect(b.Close()).To(Succeed())
	b.Expect(b.Close()).To(Succeed(), "again")
	if cgroup != "" {
		b.Expect(cgroup).NotTo(BeADirectory(), "a cgroup is left")
	}
	b.Eventually(func() []string { return processesWith(b.options.StateDir) }).WithTimeout(conformance.Timeout).Should(BeEmpty(), "a shim is left")
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

func (b *bench) process(uid types.UID, incarnation int64, mode ...string) runtime.Process {
	return runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "tests/default/" + string(uid), Dir: "/", StopSignal: "SIGTERM",
		Command: append([]string{conformance.Workload(b.T)}, mode...),
	}
}

func (b *bench) start(uid types.UID, mode ...string) {
	b.Helper()
	b.Expect(b.Start(b.ctx, b.process(uid, 1, mode...))).To(Succeed())
}

func (b *bench) observe(uid types.UID) facts.Incarnation {
	b.Helper()
	found, err := b.Observe(b.ctx, uid)
	b.Expect(err).NotTo(HaveOccurred())
	if len(found) == 0 {
		return facts.Incarnation{}
	}
	return found[0]
}

// await waits for a phase and observes only after events.
func (b *bench) await(uid types.UID, phase facts.Phase) facts.Incarnation {
	b.Helper()
	timeout := time.After(conformance.Timeout)
	for {
		now := b.observe(uid)
		if now.Phase == phase {
			return now
		}
		select {
		case <-b.Events():
		case <-timeout:
			b.Fatalf("%s did not become %s: %+v", uid, phase, now)
		}
	}
}

// identity reads the identity file of the shim.
func (b *bench) identity(uid types.UID) shim.Identity {
	b.Helper()
	var identity shim.Identity
	found, err := shim.ReadFile(filepath.Join(b.dir(uid), shim.IdentityFile), &identity)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(found).To(BeTrue())
	return identity
}

// killShim kills only the shim, and not its process.
func (b *bench) killShim(uid types.UID) {
	b.Helper()
	fd, err := shim.Open(b.identity(uid).Shim)
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	b.Expect(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)).To(Succeed())
	b.Eventually(func() (bool, error) { return lockHeld(filepath.Join(b.dir(uid), shim.LockFile)) }).WithTimeout(conformance.Timeout).Should(BeFalse())
}

func lives(p shim.Process) bool {
	fd, err := shim.Open(p)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	ended, _ := shim.Ended(fd)
	return !ended
}

func TestConformance(t *testing.T) {
	for _, tier := range tiers(t) {
		t.Run(tier, func(t *testing.T) {
			conformance.Run(t, func(t *testing.T) conformance.Harness {
				b := newBench(t, tier)
				return conformance.Harness{
					Features: conformance.Features{Processes: true, Terminal: true, Logs: true, LogLimit: testLogLimit, Sockets: true, Results: true},
					Runtime:  b.Host,
					Program:  conformance.Workload(t),
					Reopen: func(t *testing.T) runtime.Runtime {
						t.Helper()
						b.reopen()
						return b.Host
					},
					Usage: func(t *testing.T, uid types.UID) int64 {
						t.Helper()
						var st unix.Stat_t
						b.Expect(unix.Stat(filepath.Join(b.dir(uid), shim.LogFile), &st)).To(Succeed())
						return st.Blocks * 512
					},
				}
			})
		})
	}
}
