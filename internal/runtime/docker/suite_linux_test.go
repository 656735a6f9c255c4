// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	"github.com/berth-dev/berth/internal/runtime/docker/dockertest"
	"github.com/berth-dev/berth/test/need"
)

const (
	testLogLimit = 256 << 10
	testImage    = "berth-workload:latest"
)

// testEngine is the engine of all tests. Tests may kill it, because the tests of this package do not run in parallel.
var testEngine *dockertest.Engine

// errNoEngine is why there is no engine. Tests that need one are then skipped.
var errNoEngine error

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) (code int) {
	if slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.fuzz") }) {
		return m.Run() // parsers need no engine
	}
	defer conformance.RemoveWorkload()
	engine, err := dockertest.Start()
	if errors.Is(err, dockertest.ErrUnavailable) {
		errNoEngine = err
		return m.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	testEngine = engine
	defer func() {
		if err := engine.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "the engine was not cleaned up:", err)
			code = 1
		}
	}()
	if code = m.Run(); code == 0 {
		if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/berth-dev/berth/internal/runtime/docker/dockertest.(*Engine).Restart.func2")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// fixture is a Runtime with its own directory on the shared engine. It cleans up after the test.
type fixture struct {
	testing.TB
	*WithT
	*Runtime
	options Options
	ctx     context.Context
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	need.Available(t, errNoEngine)
	f := &fixture{TB: t, WithT: NewWithT(t), ctx: context.Background(),
		options: Options{Host: testEngine.Host, Dir: t.TempDir(), LogLimit: testLogLimit}}
	f.Expect(testEngine.Image(f.ctx, testImage, conformance.Workload(t))).To(Succeed())
	f.open()
	t.Cleanup(f.clean)
	return f
}

func (f *fixture) open() {
	f.Helper()
	r, err := New(f.options)
	f.Expect(err).NotTo(HaveOccurred())
	f.Runtime = r
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
		f.Eventually(func() error { return f.Forget(f.ctx, types.UID(i.UID)) }).WithTimeout(conformance.Timeout).WithPolling(20 * time.Millisecond).Should(Succeed())
	}
	f.Expect(os.ReadDir(filepath.Join(f.Runtime.options.Dir, "run"))).To(BeEmpty())
	f.Expect(f.list(f.ctx, "")).To(BeEmpty(), "containers are left")
	f.Expect(f.Close()).To(Succeed())
	f.Expect(f.Close()).To(Succeed(), "a second Close")
}

// config returns the configuration of a container that can read the files of the tests.
func config(change func(*containerConfig)) []byte {
	c := containerConfig{Image: testImage, Mounts: []bindMount{{Source: os.TempDir(), Target: os.TempDir()}}}
	if change != nil {
		change(&c)
	}
	text, _ := json.Marshal(c)
	return text
}

func (f *fixture) process(uid types.UID, incarnation int64, mode ...string) runtime.Process {
	return runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "tests/default/" + string(uid), Dir: "/", StopSignal: "SIGTERM",
		Command: append([]string{"/workload"}, mode...), Config: config(nil),
	}
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

// await waits until an incarnation of a UID is in the phase. It calls Observe again only after an event, so a lost event fails the test. It ignores errors of
// Observe, because the engine may not respond for a while.
func (f *fixture) await(uid types.UID, phase facts.Phase) facts.Incarnation {
	f.Helper()
	timeout := time.After(conformance.Timeout)
	for {
		var now facts.Incarnation
		found, err := f.Observe(f.ctx, uid)
		if err == nil && len(found) > 0 {
			now = found[0]
		}
		if now.Phase == phase {
			return now
		}
		select {
		case <-f.Events():
		case <-timeout:
			f.Fatalf("%s did not become %s: %+v, %v", uid, phase, now, err)
		}
	}
}

// output returns a function that reads the log of a UID.
func (f *fixture) output(uid types.UID) func() string {
	return func() string {
		log, err := f.OpenLog(f.ctx, uid)
		if err != nil {
			return ""
		}
		defer func() { _ = log.Close() }()
		first, end, err := log.Bounds()
		f.Expect(err).NotTo(HaveOccurred())
		text := make([]byte, end-first)
		n, _ := log.ReadAt(text, first)
		return string(text[:n])
	}
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		f := newFixture(t)
		return conformance.Harness{
			Features: conformance.Features{Processes: true, Terminal: true, Logs: true, LogLimit: testLogLimit, Container: true},
			Runtime:  f.Runtime,
			Program:  conformance.Workload(t),
			Prepare:  func(p *runtime.Process) { p.Config = config(nil) },
			Reopen: func(t *testing.T) runtime.Runtime {
				t.Helper()
				f.reopen()
				return f.Runtime
			},
			Usage: func(t *testing.T, uid types.UID) int64 {
				t.Helper()
				var st unix.Stat_t
				f.Expect(unix.Stat(filepath.Join(f.dir(uid), logFile), &st)).To(Succeed())
				return st.Blocks * 512
			},
		}
	})
}
