// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategyrun

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/elapsed/elapsedtest"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/plan"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

func TestSummary_IsOnePrintableLine(t *testing.T) {
	for name, test := range map[string]struct{ head, want string }{
		"a sentence":          {"2 findings.\n", "2 findings."},
		"several lines":       {"one\r\n\ttwo\n\n three", "one two three"},
		"no printable text":   {" \n\x00", ""},
		"control characters":  {"a\x1b[31mb\x07\u202ec\u0085d\x7f", "a[31mbc d"},
		"invalid UTF-8":       {"a\xff\xfeb", "ab"},
		"a truncated rune":    {"caf\xc3", "caf"},
		"the maximum length":  {strings.Repeat("x", longestSummary), strings.Repeat("x", longestSummary)},
		"a byte longer":       {strings.Repeat("x", longestSummary+1), strings.Repeat("x", longestSummary-3) + "…"},
		"a cut at a space":    {strings.Repeat("x", longestSummary-4) + " yyyy", strings.Repeat("x", longestSummary-4) + "…"},
		"a cut between runes": {strings.Repeat("é", longestSummary), strings.Repeat("é", (longestSummary-3)/2) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got := summary([]byte(test.head), int64(len(test.head)))
			g.Expect(got).To(Equal(test.want))
			g.Expect(utf8.ValidString(got)).To(BeTrue())
			g.Expect(len(got)).To(BeNumerically("<=", longestSummary))
		})
	}
	NewWithT(t).Expect(summary([]byte("the beginning "), 1<<20)).To(Equal("the beginning…"), "the file is longer")
}

func TestResultOf_OmitsPrivatePaths(t *testing.T) {
	g := NewWithT(t)
	place := runtime.ResultPaths{File: "/r/result", Artifacts: "/r/artifacts"}
	g.Expect(resultOf(place, runtime.Results{})).To(BeNil())
	g.Expect(resultOf(place, runtime.Results{Artifacts: true})).To(Equal(&v1alpha1.RunResult{Artifacts: "/r/artifacts"}))
	g.Expect(resultOf(place, runtime.Results{File: true, Size: 2, SHA256: "abc", Head: []byte("ok")})).To(
		Equal(&v1alpha1.RunResult{Summary: "ok", File: "/r/result", Size: 2, SHA256: "abc"}))
	g.Expect(resultOf(place, runtime.Results{File: true, Size: 1 << 60, Problem: "It is\ntoo large."})).To(
		Equal(&v1alpha1.RunResult{Problem: "It is too large.", File: "/r/result", Size: 1 << 50}))

	place.Private = true
	g.Expect(resultOf(place, runtime.Results{File: true, Size: 2, SHA256: "abc", Head: []byte("ok"), Artifacts: true})).To(
		Equal(&v1alpha1.RunResult{Summary: "ok", Size: 2, SHA256: "abc"}), "private paths mean nothing to other readers")
}

// A run receives the results of the earlier phases of its plan, in one file for each phase, and the paths for its own results.
func TestSetResultPaths_PassesEarlierResultsAsInputs(t *testing.T) {
	g := NewWithT(t)
	backend := fake.New(t.Context(), clock.RealClock{})
	kind := New(nil, nil, runtime.NewRegistry(backend, logr.Discard()), nil)
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	run.Spec.Inputs = []v1alpha1.PlanResult{
		{Run: "p-0", Strategy: "list", Phase: v1alpha1.PhaseStrategize, Attempt: 1, Outcome: v1alpha1.OutcomeSucceeded, Result: &v1alpha1.RunResult{File: "/f", SHA256: "abc"}},
		{Run: "p-1", Strategy: "search", Phase: v1alpha1.PhaseExecute, Outcome: v1alpha1.OutcomeFailed},
		{Run: "p-2", Strategy: "test", Phase: v1alpha1.PhaseExecute, Outcome: v1alpha1.OutcomeSucceeded},
		{Run: "p-3", Strategy: "report", Phase: v1alpha1.PhaseApply, Outcome: v1alpha1.OutcomeSucceeded},
	}
	start := &process.StartSpec{Variables: map[string]string{}}
	g.Expect(kind.setResultPaths(run, start)).To(Succeed())
	place := backend.Place("u")
	g.Expect(start.Variables).To(Equal(map[string]string{
		"BERTH_RESULT_FILE": place.File, "BERTH_ARTIFACTS": place.Artifacts,
		"BERTH_RESULTS_STRATEGIZE": place.Inputs + "/strategize.jsonl", "BERTH_RESULTS_EXECUTE": place.Inputs + "/execute.jsonl",
	}))
	g.Expect(start.Process.Results).To(BeTrue())
	g.Expect(start.Process.Inputs).To(HaveLen(2))
	g.Expect(string(start.Process.Inputs["strategize.jsonl"])).To(Equal(
		`{"run":"p-0","strategy":"list","phase":"Strategize","attempt":1,"outcome":"Succeeded","result":{"file":"/f","sha256":"abc"}}` + "\n"))
	g.Expect(strings.Count(string(start.Process.Inputs["execute.jsonl"]), "\n")).To(Equal(2))
}

func TestSetResultPaths_DoesNothingWithoutResultSupport(t *testing.T) {
	g := NewWithT(t)
	run := &v1alpha1.StrategyRun{}
	run.Status.Incarnation, run.Status.Outcome = 1, v1alpha1.OutcomeSucceeded
	start := &process.StartSpec{Variables: map[string]string{}}
	kind := New(nil, nil, runtime.NewRegistry(runtime.NoRuntime{}, logr.Discard()), nil)
	g.Expect(kind.setResultPaths(run, start)).To(Succeed())
	g.Expect(start.Variables).To(BeEmpty())
	kind.collect(run, lifecycle.Step{})
	g.Expect(run.Status.Result).To(BeNil())
}

// The start time of a program is recorded after its exit, even if it was not recorded while the program ran.
func TestStartedAt_IsRecordedAfterExit(t *testing.T) {
	g := NewWithT(t)
	at := ptr.To(metav1.NewMicroTime(time.Unix(1_800_000_000, 0)))
	run := &v1alpha1.StrategyRun{}
	kind := New(nil, nil, runtime.NewRegistry(runtime.NoRuntime{}, logr.Discard()), nil)
	kind.collect(run, lifecycle.Step{})
	g.Expect(run.Status.StartTime).To(BeNil())
	kind.collect(run, lifecycle.Step{Ended: &v1alpha1.ProcessReference{StartTime: at}})
	g.Expect(run.Status.StartTime).To(Equal(at))
	kind.collect(run, lifecycle.Step{Ended: &v1alpha1.ProcessReference{StartTime: ptr.To(metav1.NewMicroTime(at.Add(time.Hour)))}})
	g.Expect(run.Status.StartTime).To(Equal(at), "the start time never changes")
}

// A run of a plan starts only the program that the plan has pinned.
func TestPrepare_StartsOnlyPinnedProgram(t *testing.T) {
	g := NewWithT(t)
	strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Name: "build"}}
	strategy.Spec.Process.Command = []string{"build"}
	strategy.Status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	run.Spec.StrategyRef.Name, run.Spec.Program = "build", plan.Program(strategy)
	blocked := func() string {
		kind, start := New(nil, nil, runtime.NewRegistry(runtime.NoRuntime{}, logr.Discard()), nil), &process.StartSpec{}
		run.Status = v1alpha1.StrategyRunStatus{}
		*kind.found.Keep(run.UID) = strategy
		g.Expect(kind.Prepare(context.Background(), run, nil, start)).To(Succeed())
		if start.Blocked == nil {
			g.Expect(run.Status.Pinned.Process.Command).To(Equal(strategy.Spec.Process.Command))
			return ""
		}
		g.Expect(run.Status.Pinned).To(BeNil())
		return start.Blocked.Reason
	}
	g.Expect(blocked()).To(BeEmpty())
	strategy.Spec.TimeoutSeconds, strategy.Spec.Description = ptr.To[int32](5), "other"
	strategy.Generation = 7
	g.Expect(blocked()).To(BeEmpty(), "the timeout is not part of the program")
	for name, change := range map[string]func(*v1alpha1.StrategySpec){
		"command":     func(s *v1alpha1.StrategySpec) { s.Process.Command = []string{"build", "--fast"} },
		"directory":   func(s *v1alpha1.StrategySpec) { s.Process.WorkingDir = "/" },
		"environment": func(s *v1alpha1.StrategySpec) { s.Process.Env = []v1alpha1.EnvVar{{Name: "A", Value: "b"}} },
	} {
		before := strategy.DeepCopy()
		change(&strategy.Spec)
		g.Expect(blocked()).To(Equal(v1alpha1.ReasonStrategyChanged), name)
		run.Spec.Program = ""
		g.Expect(blocked()).To(BeEmpty(), "a run without a plan uses the current program")
		run.Spec.Program = plan.Program(before)
		strategy = before
	}
	g.Expect(blocked()).To(BeEmpty(), "the program is as it was")
}

// FuzzSummary checks that the summary of any result file is one short line of printable text.
func FuzzSummary(f *testing.F) {
	f.Add([]byte("done\n"), int64(5))
	f.Add([]byte("\x1b]0;title\a\u202e\xff text"), int64(1<<40))
	f.Add(bytes.Repeat([]byte("é"), 2000), int64(4000))
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		text := summary(head, size)
		if len(text) > longestSummary || !utf8.ValidString(text) {
			t.Errorf("%d bytes, valid %v: %q", len(text), utf8.ValidString(text), text)
		}
		for _, r := range text {
			if !unicode.IsPrint(r) {
				t.Errorf("%q has %U", text, r)
			}
		}
	})
}

// The time during which the machine was suspended does not count as run time, and setting the clock back does not give a run more time.
func TestTimeout_DoesNotChangeWithClock(t *testing.T) {
	for _, step := range elapsedtest.Steps {
		g := NewWithT(t)
		wall := elapsedtest.New(time.Unix(1_800_000_000, 0))
		now := elapsed.New(wall)
		kind := New(nil, nil, runtime.NewRegistry(runtime.NoRuntime{}, logr.Discard()), now)
		run := &v1alpha1.StrategyRun{}
		run.Status.Pinned = &v1alpha1.PinnedStrategy{TimeoutSeconds: 600}
		current := facts.Incarnation{Phase: facts.Running, StartedAt: now.Now()}
		look := func() (time.Duration, string) {
			observed := &lifecycle.Observed{}
			left, err := kind.ObserveRunning(t.Context(), run, current, observed)
			g.Expect(err).NotTo(HaveOccurred())
			return left, observed.UnhealthyReason
		}
		wall.Step(5 * time.Minute)
		wall.Set(step)
		wall.Step(5*time.Minute - time.Second)
		left, reason := look()
		g.Expect(left).To(Equal(time.Second), "step %s", step)
		g.Expect(reason).To(BeEmpty())
		wall.Step(time.Second)
		left, reason = look()
		g.Expect(left).To(BeZero())
		g.Expect(reason).To(Equal(v1alpha1.ReasonTimedOut), "step %s", step)
	}
}
