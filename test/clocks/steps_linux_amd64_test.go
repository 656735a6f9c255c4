// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package clocks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-dev/berth/test/lspclient"
)

const (
	// patience bounds each wait for an expected event.
	patience = 30 * time.Second
	// timed is how long the states last that end by themselves. The clock is stepped while the objects are in these states.
	timed = 4 * time.Second
	// late is how much later than expected such a state may end on a busy machine. It is shorter than every step.
	late = 10 * time.Second
	// usual bounds the start of berth up, and the time until a new object is served, on a busy machine.
	usual = 10 * time.Second
	// steady is how long the other states last: less than the smallest step, and more than the test takes.
	steady = 10 * time.Minute
	// day is longer than every step. A new manager cannot know of a step before its start, and counts a step forward as elapsed time.
	day = 24 * time.Hour
)

// step is a step of the wall clock.
type step struct {
	by time.Duration
	// asleep is how long Berth stands still during the step, as at a suspend of the machine.
	asleep time.Duration
}

func (s step) String() string {
	if s.asleep > 0 {
		return fmt.Sprintf("a suspend of %s", s.by)
	}
	return fmt.Sprintf("a step of %s", s.by)
}

// steps returns the steps of the clock: by default as few as possible, so that each step undoes another one, and each of them with its opposite if the environment
// variable CLOCKS_LONG is set.
func steps() []step {
	short := []step{{by: -15 * time.Minute}, {by: 15 * time.Minute, asleep: time.Second}, {by: -time.Hour}, {by: time.Hour}, {by: 3 * time.Hour}}
	if os.Getenv("CLOCKS_LONG") == "" {
		return short
	}
	var long []step
	for _, s := range append(short, step{by: 15 * time.Minute}, step{by: 3 * time.Hour, asleep: time.Second}) {
		long = append(long, s, step{by: -s.by})
	}
	return long
}

// TestSteps steps the clock while a manager runs, and then before the start of a manager, which cannot know of the step.
func TestSteps(t *testing.T) {
	m := newMachine(t)
	m.start()
	objects := m.createSteady("steady", steady)
	before := m.settledStates(objects)
	for i, s := range steps() {
		m.stepWhileTimed(fmt.Sprint(i), s)
		m.expectUnchanged(objects, before, "steady", s)
		m.expectSaneOutput("steady", s)
	}
	m.delete(objects)

	objects = m.createSteady("day", day)
	before = m.settledStates(objects)
	for i, s := range steps() {
		m.step(s)
		m.restart(i%2 == 0)
		m.expectServed(s)
		m.expectUnchanged(objects, before, "day", s)
		m.expectSaneOutput("day", s)
	}
	m.Expect(m.stop()).To(Succeed())
}

// restart kills berth up, and its control plane if everything is set, and starts berth up again.
func (m *machine) restart(everything bool) {
	m.Helper()
	m.kill()
	if everything {
		for _, pid := range m.processes() {
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.HasPrefix(string(name), "berth-apiserver") {
				m.Expect(unix.Kill(pid, unix.SIGKILL)).To(Succeed())
			}
		}
	}
	m.Expect(m.start()).To(BeNumerically("<", usual), "time that berth up takes to start")
}

// expectServed checks that a new object is served within the usual time.
func (m *machine) expectServed(s step) {
	m.Helper()
	began := time.Now()
	objects := m.create("kind: Instance\nmetadata: {name: new}\nspec: {process: {command: [sleep, '9000']}}", "", 0)
	m.Eventually(func() string { return stateOf(m.get("Instance", "new"))["Ready"] }).WithTimeout(patience).Should(Equal("True Running"))
	m.Expect(time.Since(began)).To(BeNumerically("<", usual), "time to serve a new object after %s", s)
	m.delete(objects)
}

// createSteady creates the objects whose state does not change by itself within timeout, and waits until they have this state.
func (m *machine) createSteady(set string, timeout time.Duration) []*unstructured.Unstructured {
	m.Helper()
	m.Expect(os.Mkdir(filepath.Join(m.dir, "lsp-"+set), 0o700)).To(Succeed())
	m.Expect(os.WriteFile(filepath.Join(m.dir, "lsp-"+set+".json"), []byte("{}"), 0o600)).To(Succeed())
	objects := m.create(steadyYAML, set, timeout)
	m.await("Strategy", "bad-"+set, "Open", "status", "breaker", "state")
	m.await("Strategy", "half-"+set, "HalfOpen", "status", "breaker", "state")
	objects = append(objects, m.create(laterYAML, set, timeout)...)
	m.await("Strategy", "half-"+set, "half-"+set+"-trial", "status", "breaker", "trialName")
	objects = append(objects, m.create(lastYAML, set, timeout)...)
	m.connect("lsp-" + set)
	for name, reason := range map[string]string{
		"Instance/running-": "Running", "Instance/active-": "Running", "Instance/asleep-": "Idle", "Instance/finished-": "Completed", "Instance/open-": "CircuitOpen",
		"DevServer/web-": "Running", "LanguageServer/lsp-": "Running",
		"StrategyRun/slow-": "Running", "StrategyRun/disabled-": "Disabled", "StrategyRun/half-SET-trial": "Running", "StrategyRun/half-SET-waits": "CircuitHalfOpen",
		"StrategyRun/bad-SET-skipped": "SkippedCircuitOpen", "Plan/phase-": "Processing", "Plan/approval-": "AwaitingApproval", "Plan/applied-": "Applied",
	} {
		kind, name, _ := strings.Cut(name, "/")
		if name = strings.ReplaceAll(name, "SET", set); strings.HasSuffix(name, "-") {
			name += set
		}
		m.Eventually(func() string { return stateOf(m.get(kind, name))["Ready"] }).WithTimeout(patience).Should(HaveSuffix(" "+reason), "%s %s", kind, name)
	}
	m.Eventually(func() []launch { return m.launches("slow-" + set) }).WithTimeout(patience).Should(HaveLen(2), "a run and a plan use the strategy slow")
	return objects
}

// connect connects to a language server, which starts it, and disconnects.
func (m *machine) connect(name string) {
	m.Helper()
	program, err := lspclient.Start(m.command("lsp", "connect", name))
	m.Expect(err).NotTo(HaveOccurred())
	editor := lspclient.New(program, lspclient.Options{})
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	_, err = editor.Initialize(ctx, filepath.Join(m.dir, name))
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(editor.Shutdown(ctx)).To(Succeed())
}

// await waits until a field of an object has a value.
func (m *machine) await(kind, name, value string, path ...string) {
	m.Helper()
	m.Eventually(func() string { return field(m.get(kind, name), path...) }).WithTimeout(patience).Should(Equal(value), name)
}

// settledStates returns the states of the objects once they do not change anymore.
func (m *machine) settledStates(objects []*unstructured.Unstructured) (settled map[string]map[string]string) {
	m.Helper()
	m.Eventually(func() map[string]map[string]string {
		before := settled
		settled = m.states(objects)
		return before
	}).WithTimeout(patience).WithPolling(500 * time.Millisecond).Should(WithTransform(func(before map[string]map[string]string) bool { return reflect.DeepEqual(before, settled) }, BeTrue()))
	return settled
}

// states returns the state of each object.
func (m *machine) states(objects []*unstructured.Unstructured) map[string]map[string]string {
	m.Helper()
	all := map[string]map[string]string{}
	for _, o := range objects {
		all[o.GetKind()+"/"+o.GetName()] = stateOf(m.get(o.GetKind(), o.GetName()))
	}
	return all
}

// expectUnchanged checks that the objects and their processes are what they were before, and that no program was started a second time.
func (m *machine) expectUnchanged(objects []*unstructured.Unstructured, before map[string]map[string]string, set string, s step) {
	m.Helper()
	for name, state := range m.states(objects) {
		m.Expect(state).To(Equal(before[name]), "%s after %s", name, s)
	}
	// Two objects run the strategy slow: a run and a plan.
	for name, starts := range map[string]int{"running": 1, "active": 1, "asleep": 1, "finished": 1, "open": 1, "slow": 2, "half": 1} {
		found := m.launches(name + "-" + set)
		m.Expect(found).To(HaveLen(starts), "starts of %s after %s", name, s)
		for _, one := range found {
			ended := name == "asleep" || name == "finished" || name == "open"
			m.Expect(ended || m.lives(one.pid)).To(BeTrue(), "process of %s after %s", name, s)
		}
	}
}

// wait is a wait of one object.
type wait struct {
	name string
	// began returns when the wait began, and ended when it ended. A time is zero as long as it is unknown.
	began, ended func() time.Time
	least, most  time.Duration
}

// stepWhileTimed steps the clock while objects are in states that end after a known time, and checks that these states end on time.
func (m *machine) stepWhileTimed(set string, s step) {
	m.Helper()
	stopped := time.Time{}
	waits := m.waits(set, &stopped)
	objects := m.create(timedYAML, set, timed)
	m.Eventually(func() []launch { return m.launches("stop-" + set) }).WithTimeout(patience).Should(HaveLen(1))
	m.await("Instance", "stop-"+set, "1", "status", "process", "incarnation")
	m.patch("Instance", "stop-"+set, `{"state":"Stopped"}`)
	stopped = time.Now()
	m.await("Strategy", "trial-"+set, "Open", "status", "breaker", "state")
	m.await("Instance", "stop-"+set, "1", "status", "stopping", "incarnation")
	for _, w := range waits {
		m.Eventually(w.began).WithTimeout(patience).ShouldNot(BeZero(), w.name)
	}
	m.step(s)
	m.killOnce()
	m.expectOnTime(waits, s)
	m.expectFastCreation(s)
	m.delete(objects)
}

// waits returns the waits of the objects in timed.yaml.
func (m *machine) waits(set string, stopped *time.Time) []wait {
	nth := func(name string, i int) func() time.Time {
		return func() time.Time {
			if all := m.launches(name + "-" + set); len(all) > i {
				return all[i].at
			}
			return time.Time{}
		}
	}
	once := func(condition func() bool) func() time.Time {
		var at time.Time
		return func() time.Time {
			if at.IsZero() && condition() {
				at = time.Now()
			}
			return at
		}
	}
	gone := func(name string) func() time.Time {
		return once(func() bool { all := m.launches(name + "-" + set); return len(all) > 0 && !m.lives(all[0].pid) })
	}
	deleted := func(kind, name string) func() time.Time {
		return once(func() bool { return m.get(kind, name+"-"+set) == nil })
	}
	has := func(kind, name, value string, path ...string) func() time.Time {
		return once(func() bool { return field(m.get(kind, name+"-"+set), path...) == value })
	}
	began := time.Now()
	created := func() time.Time { return began }
	return []wait{
		{"the delayed restart", nth("crash", 0), nth("crash", 1), timed * 3 / 4, timed * 5 / 4},
		{"the cool-down of an Instance", nth("open", 0), nth("open", 1), timed, timed},
		{"the grace period", func() time.Time { return *stopped }, gone("stop"), timed, timed},
		{"the TTL of an Instance", nth("ttl", 0), deleted("Instance", "ttl"), timed, timed},
		{"the idle timeout", nth("idle", 0), gone("idle"), timed, timed},
		{"the timeout of a run", nth("timeout", 0), has("StrategyRun", "timeout", "TimedOut", "status", "outcome"), timed, timed},
		{"the TTL of a run", nth("ttlrun", 0), deleted("StrategyRun", "ttlrun"), timed, timed},
		{"the cool-down of a Strategy", nth("trial", 0), has("Strategy", "trial", "HalfOpen", "status", "breaker", "state"), timed, timed},
		{"the timeout of a phase", created, has("Plan", "phase", "Errored", "status", "state"), timed, timed},
		{"the TTL of a Plan", created, deleted("Plan", "ttlplan"), timed, timed},
	}
}

// expectOnTime waits until all waits have ended, and checks how long they took.
func (m *machine) expectOnTime(waits []wait, s step) {
	m.Helper()
	limit := time.Now().Add(timed*5/4 + late)
	pending := waits
	for len(pending) > 0 && time.Now().Before(limit) {
		var rest []wait
		for _, w := range pending {
			if w.ended().IsZero() {
				rest = append(rest, w)
			}
		}
		pending = rest
		<-time.After(20 * time.Millisecond)
	}
	for _, w := range waits {
		if w.ended().IsZero() {
			m.Errorf("after %s, %s has not ended after %s", s, w.name, time.Since(w.began()))
			continue
		}
		// The observed beginning of a wait may be a little later than the real one.
		if took := w.ended().Sub(w.began()); took < w.least-300*time.Millisecond || took > w.most+late {
			m.Errorf("after %s, %s took %s", s, w.name, took)
		}
	}
}

// expectFastCreation checks that the API server does not delay the creation of objects. It needs a moment to notice the step.
func (m *machine) expectFastCreation(s step) {
	m.Helper()
	m.Eventually(func() time.Duration {
		began := time.Now()
		objects := m.create("kind: Strategy\nmetadata: {name: created}\nspec: {process: {command: [sh]}}", "", 0)
		took := time.Since(began)
		m.delete(objects)
		return took
	}).WithTimeout(late).Should(BeNumerically("<", time.Second), "time to create an object after %s", s)
}

// killOnce kills the process of an Instance, which has to restart at once.
func (m *machine) killOnce() {
	m.Helper()
	const name = "killed"
	if m.get("Instance", name) == nil {
		m.create("kind: Instance\nmetadata: {name: killed}\nspec: {backoff: {initialSeconds: 1, maxSeconds: 1}, breaker: {failureThreshold: 64}, process: {command: [sh, -c, 'START killed; exec sleep 9000']}}", "", 0)
		m.Eventually(func() []launch { return m.launches(name) }).WithTimeout(patience).Should(HaveLen(1))
	}
	before := m.launches(name)
	m.await("Instance", name, fmt.Sprint(before[len(before)-1].pid), "status", "process", "pid")
	m.Expect(unix.Kill(before[len(before)-1].pid, unix.SIGKILL)).To(Succeed())
	m.Eventually(func() []launch { return m.launches(name) }).WithTimeout(late).Should(HaveLen(len(before)+1), "a crashed process restarts after a step of the clock")
}

// expectSaneOutput checks what users see.
func (m *machine) expectSaneOutput(set string, s step) {
	m.Helper()
	for _, args := range [][]string{
		{"status"}, {"describe", "instance/active-" + set}, {"describe", "strategyrun/slow-" + set},
		{"status", "strategies"}, {"status", "plans"}, {"plan", "status", "phase-" + set}, {"events"},
	} {
		// Until the manager has renewed its Lease, berth status warns that the manager is silent.
		m.Eventually(func() string { return m.run(args...) }).WithTimeout(late/2).ShouldNot(
			MatchRegexp(`(^|\s)-\d+(\.\d+)?(ms|s|m|h|d|y)|<invalid>|warning:`), "berth %s after %s", strings.Join(args, " "), s)
	}
}
