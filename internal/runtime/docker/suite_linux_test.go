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
)

const (
	testLogLimit = 256 << 10
	testImage    = "berth-workload:latest"
)

// engineHere is the engine of all tests. Tests may kill it, because the tests of this package do not run in parallel.
var engineHere *dockertest.Engine

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) (code int) {
	if slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.fuzz") }) {
		return m.Run() // parsers need no engine
	}
	defer conformance.RemoveWorkload()
	engine, err := dockertest.Start()
	if errors.Is(err, dockertest.ErrUnavailable) && os.Getenv("CI") == "" {
		fmt.Fprintln(os.Stderr, "tests that need a Docker Engine are skipped:", err)
		return m.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	engineHere = engine
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

// bench is a Runtime with its own directory on the shared engine. It cleans up after the test.
type bench struct {
	testing.TB
	*WithT
	*Runtime
	options Options
	ctx     context.Context
}

func newBench(t testing.TB) *bench {
	t.Helper()
	if engineHere == nil {
		t.Skip("there is no Docker Engine")
	}
	b := &bench{TB: t, WithT: NewWithT(t), ctx: context.Background(),
		options: Options{Host: engineHere.Host, Dir: t.TempDir(), LogLimit: testLogLimit}}
	b.Expect(engineHere.Image(b.ctx, testImage, conformance.Workload(t))).To(Succeed())
	b.open()
	t.Cleanup(b.clean)
	return b
}

func (b *bench) open() {
	b.Helper()
	r, err := New(b.options)
	b.Expect(err).NotTo(HaveOccurred())
	b.Runtime = r
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
		b.Eventually(func() error { return b.Forget(b.ctx, types.UID(i.UID)) }).WithTimeout(conformance.Timeout).WithPolling(20 * time.Millisecond).Should(Succeed())
	}
	b.Expect(os.ReadDir(filepath.Join(b.Runtime.options.Dir, "run"))).To(BeEmpty())
	b.Expect(b.list(b.ctx, "")).To(BeEmpty(), "containers are left")
	b.Expect(b.Close()).To(Succeed())
	b.Expect(b.Close()).To(Succeed(), "again")
}

// config returns the configuration of a container that can read the files of the tests.
func config(change func(*Config)) []byte {
	c := Config{Image: testImage, Mounts: []Mount{{Source: os.TempDir(), Target: os.TempDir()}}}
	if change != nil {
		change(&c)
	}
	text, _ := json.Marshal(c)
	return text
}

func (b *bench) process(uid types.UID, incarnation int64, mode ...string) runtime.Process {
	return runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "tests/default/" + string(uid), Dir: "/", StopSignal: "SIGTERM",
		Command: append([]string{"/workload"}, mode...), Config: config(nil),
	}
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

// await waits for a phase and observes only after events. It also waits for an engine that does not respond.
func (b *bench) await(uid types.UID, phase facts.Phase) facts.Incarnation {
	b.Helper()
	timeout := time.After(conformance.Timeout)
	for {
		var now facts.Incarnation
		found, err := b.Observe(b.ctx, uid)
		if err == nil && len(found) > 0 {
			now = found[0]
		}
		if now.Phase == phase {
			return now
		}
		select {
		case <-b.Events():
		case <-timeout:
			b.Fatalf("%s did not become %s: %+v, %v", uid, phase, now, err)
		}
	}
}

// output returns a function that reads the log of a UID.
func (b *bench) output(uid types.UID) func() string {
	return func() string {
		log, err := b.OpenLog(b.ctx, uid)
		if err != nil {
			return ""
		}
		defer func() { _ = log.Close() }()
		first, end, err := log.Bounds()
		b.Expect(err).NotTo(HaveOccurred())
		text := make([]byte, end-first)
		n, _ := log.ReadAt(text, first)
		return string(text[:n])
	}
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		b := newBench(t)
		return conformance.Harness{
			Features: conformance.Features{Processes: true, Terminal: true, Logs: true, LogLimit: testLogLimit, Container: true},
			Runtime:  b.Runtime,
			Program:  conformance.Workload(t),
			Prepare:  func(p *runtime.Process) { p.Config = config(nil) },
			Reopen: func(t *testing.T) runtime.Runtime {
				t.Helper()
				b.reopen()
				return b.Runtime
			},
			Usage: func(t *testing.T, uid types.UID) int64 {
				t.Helper()
				var st unix.Stat_t
				b.Expect(unix.Stat(filepath.Join(b.dir(uid), logFile), &st)).To(Succeed())
				return st.Blocks * 512
			},
		}
	})
}
