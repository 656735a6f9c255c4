// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance is the test suite for runtime backends. A backend's test calls Run with a function that creates a new Harness.
package conformance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// Timeout is how long any operation may take on a busy machine.
const Timeout = 60 * time.Second

// Features select the tests that apply to a backend.
type Features struct {
	// Processes: programs run as processes of this machine, so that their PIDs can be checked.
	Processes bool
	// Terminal: the backend implements runtime.Terminals.
	Terminal bool
	// Logs: the backend implements runtime.Logs.
	Logs bool
	// LogLimit is the disk space of a log, in bytes; 0 if it is not bounded.
	LogLimit int64
	// Sockets: the backend implements Listeners and PortOwner of runtime.Inspection.
	Sockets bool
	// Container: programs run in the PID namespace and with the environment of a container. A signal is reported as exit code 128+n, unless Berth sent the signal.
	Container bool
	// Unchecked: CheckProgram does not know the programs, for example because they are in an image.
	Unchecked bool
	// Results: the backend implements runtime.ResultStore.
	Results bool
	// MostResult is the maximum size of a result file, in bytes, if it is less than runtime.MostResultBytes; otherwise 0.
	MostResult int64
	// PoliteKill: a kill sends the stop signal shortly before SIGKILL.
	PoliteKill bool
	// Window: besides the attached clients, the terminal always has a window with the size of its start.
	Window bool
	// LogSnapshot: a log contains the output of the newest incarnation at the time when the log was opened.
	LogSnapshot bool
}

// Harness is one backend without objects, used by one test. Its creator registers the cleanup with t.Cleanup.
type Harness struct {
	Features
	Runtime runtime.Runtime
	// Program is the path of the workload program (see Workload). A backend without processes simulates the program: "sleep" and "ignore" (which ignores
	// SIGTERM) keep running, "exit N" and "signal N" exit immediately.
	Program string
	// Prepare adds backend-specific settings to each process; nil if there are none.
	Prepare func(p *runtime.Process)
	// Reopen replaces the manager without notice to the processes, and returns the runtime of the new manager, which uses the same state. It is nil if the
	// backend keeps no state.
	Reopen func(t *testing.T) runtime.Runtime
	// Without names the tests that this backend skips, with the reason.
	Without map[string]string
	// PID returns the PID of an incarnation's program on this machine, for a backend that reports 0 as Incarnation.PID. It is nil for other backends.
	PID func(t *testing.T, i facts.Incarnation) int64
	// Usage returns the disk space of the log of a UID, in bytes; required with LogLimit.
	Usage func(t *testing.T, uid types.UID) int64
}

var workload = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "berth-workload-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "workload")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/berth-dev/berth/internal/runtime/conformance/workload")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", &exec.Error{Name: "go build: " + string(out), Err: err}
	}
	return path, nil
})

// Workload builds the workload program once per test binary, and returns its path. Call RemoveWorkload from TestMain.
func Workload(t testing.TB) string {
	t.Helper()
	path, err := workload()
	if err != nil {
		t.Fatalf("build the workload: %v", err)
	}
	return path
}

// RemoveWorkload removes what Workload has built.
func RemoveWorkload() {
	if path, err := workload(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
}

// Run runs the whole suite, each test with its own Harness.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	for _, test := range []struct {
		name  string
		needs func(Harness) bool
		run   func(*suite)
	}{
		{"starts once for repeated requests", nil, testRepeatedStart},
		{"starts one process for concurrent requests", nil, testConcurrentStarts},
		{"refuses older incarnations, and newer ones while an older one lives", nil, testOtherIncarnationsRefused},
		{"reports exit codes and signals", nil, testExits},
		{"keeps the exit for later observers", nil, testExitBeforeObserve},
		{"stops and kills repeatedly", nil, testRepeatedStopAndKill},
		{"acts only on the named incarnation", nil, testStopOfOtherIncarnation},
		{"does not lose a stop while it is starting", nil, testStopWhileStarting},
		{"kills a process that ignores the stop signal", nil, testKill},
		{"forgets an object completely, but only after its process has exited", nil, testForget},
		{"reports the exit of the previous incarnation", keepsPreviousExit, testPreviousExit},
		{"reports the origin of an incarnation", keepsOrigin, testOrigin},
		{"lists everything", nil, testList},
		{"accepts an unknown UID", nil, testUnknownUID},
		{"continues after a crash of the manager", canReopen, testManagerCrash},
		{"observes exits that happened without a manager", canReopen, testExitWithoutManager},
		{"distinguishes incarnations after a crash of the manager", canReopen, testIncarnationsAcrossManagers},
		{"explains why a program cannot be executed", hasProcesses, testStartErrors},
		{"kills the whole tree", hasProcesses, testKillTree},
		{"terminates the processes that a program leaves behind", hasProcesses, testProcessesLeftBehind},
		{"terminates a program that SIGSTOP has stopped", hasProcesses, testStoppedProgram},
		{"sets up environment, directory and stdin", hasLogs, testEnvironment},
		{"keeps the log across incarnations, with valid cursors", hasLogs, testLogCursors},
		{"waits for output", hasLogs, testLogWait},
		{"limits the log of a program that floods its output", hasLogLimit, testLogFlood},
		{"reports the time of the last output", reportsActivity, testActivity},
		{"lists the processes of a tree", listsMembers, testMembers},
		{"finds the sockets of a tree", hasSockets, testListeners},
		{"keeps results across managers until Forget", keepsResults, testResults},
		{"accepts results up to a size and reports larger ones", keepsResults, testLargeResults},
		{"attaches to terminals", hasTerminals, testAttach},
		{"has the size of one client", hasTerminals, testSize},
		{"answers each question of a program once", hasTerminals, testQuestions},
		{"answers one question with one answer", hasTerminals, testMenus},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := harness(t)
			if test.needs != nil && !test.needs(h) {
				return // the backend lacks the feature
			}
			if why, left := h.Without[test.name]; left {
				t.Logf("skipped: %s", why)
				return
			}
			test.run(&suite{T: t, Harness: h, WithT: NewWithT(t), ctx: t.Context()})
		})
	}
}

func canReopen(h Harness) bool    { return h.Reopen != nil }
func hasProcesses(h Harness) bool { return h.Processes }
func keepsPreviousExit(h Harness) bool {
	return h.Runtime.Capabilities().KeepsPreviousExit
}
func keepsOrigin(h Harness) bool  { return h.Runtime.Capabilities().KeepsOrigin }
func hasLogs(h Harness) bool      { return h.Processes && h.Logs }
func hasLogLimit(h Harness) bool  { return h.Processes && h.Logs && h.LogLimit > 0 }
func hasSockets(h Harness) bool   { return h.Processes && h.Sockets }
func keepsResults(h Harness) bool { return h.Processes && h.Results && h.Reopen != nil }
func hasTerminals(h Harness) bool { return h.Processes && h.Terminal }

type suite struct {
	*testing.T
	Harness
	*WithT
	ctx context.Context
}

func newUID() types.UID { return uuid.NewUUID() }

func (s *suite) process(uid types.UID, incarnation int64, mode ...string) runtime.Process {
	p := runtime.Process{
		UID: uid, Incarnation: incarnation, Name: "tests/" + strings.ReplaceAll(s.Name(), " ", "-"),
		Command: append([]string{s.Program}, mode...), Dir: os.TempDir(), StopSignal: "SIGTERM",
	}
	if s.Prepare != nil {
		s.Prepare(&p)
	}
	return p
}

// start starts a process with a new UID and returns the UID.
func (s *suite) start(mode ...string) types.UID {
	s.Helper()
	uid := newUID()
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 1, mode...))).To(Succeed())
	return uid
}

// observe returns the only incarnation of a UID, or the zero value if there is none.
func (s *suite) observe(uid types.UID) facts.Incarnation {
	s.Helper()
	found, err := s.Runtime.Observe(s.ctx, uid)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(len(found)).To(BeNumerically("<=", 1), "more than one incarnation: %v", found)
	if len(found) == 0 {
		return facts.Incarnation{}
	}
	return found[0]
}

// await waits until is(incarnation) returns true. It observes the incarnation again only after an event, so a lost event fails the test.
func (s *suite) await(uid types.UID, what string, is func(facts.Incarnation) bool) facts.Incarnation {
	s.Helper()
	timeout := time.After(Timeout)
	for {
		now := s.observe(uid)
		if is(now) {
			return now
		}
		select {
		case <-s.Runtime.Events():
		case <-timeout:
			s.Fatalf("%s did not become %s, but is %s (%+v)", uid, what, now.Phase, now)
		}
	}
}

func (s *suite) awaitPhase(uid types.UID, phase facts.Phase) facts.Incarnation {
	s.Helper()
	return s.await(uid, string(phase), func(i facts.Incarnation) bool { return i.Phase == phase })
}

// pid returns the PID of the program on this machine.
func (s *suite) pid(i facts.Incarnation) int64 {
	s.Helper()
	if s.PID != nil {
		return s.PID(s.T, i)
	}
	return i.PID
}

// killSignal matches the signals by which Kill may terminate a program that does not ignore SIGTERM.
func (s *suite) killSignal() gomegatypes.GomegaMatcher {
	if s.PoliteKill {
		return BeElementOf("SIGKILL", "SIGTERM")
	}
	return Equal("SIGKILL")
}

// stop stops an incarnation as internal/lifecycle does: it calls Stop again while the backend reports that the stop is deferred.
func (s *suite) stop(uid types.UID, incarnation int64) {
	s.Helper()
	deferred := func(i facts.Incarnation) bool { return i.Number == incarnation && i.StopDeferred }
	s.Eventually(func() bool {
		s.Expect(s.Runtime.Stop(s.ctx, uid, incarnation)).To(Succeed())
		found, err := s.Runtime.Observe(s.ctx, uid)
		s.Expect(err).NotTo(HaveOccurred())
		return slices.ContainsFunc(found, deferred)
	}).WithTimeout(Timeout).Should(BeFalse())
}

// killAndWait kills the incarnations of a UID and waits for their exit.
func (s *suite) killAndWait(uid types.UID) facts.Incarnation {
	s.Helper()
	s.Expect(s.Runtime.Kill(s.ctx, uid, s.observe(uid).Number)).To(Succeed())
	return s.await(uid, "ended", func(i facts.Incarnation) bool { return !i.Alive() })
}
