// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions/conditionstest"
	"github.com/berth-dev/berth/internal/facts"
)

// node is a world and the path that led to it.
type node struct {
	world world
	from  *node
	by    string
}

func (n *node) path() string {
	var names []string
	for ; n.from != nil; n = n.from {
		names = append([]string{n.by}, names...)
	}
	return strings.Join(names, "\n  ")
}

// explore walks every interleaving from a world, breadth first, and checks every state. It returns the number of states and the first violation. whole reports
// whether there was no violation and all states were walked before the limit.
func explore(from world, limit int) (states int, whole bool, violation string) {
	seen := map[uint64]bool{from.key(): true}
	queue := []*node{{world: from}}
	w := new(world) // allocated once, because most moves are impossible or lead to a known state
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if problem := at.world.check(); problem != "" {
			return len(seen), false, problem + " after\n  " + at.path()
		}
		for _, m := range moves {
			*w = at.world.clone()
			if !m.do(w) {
				continue
			}
			key := w.key()
			if seen[key] {
				continue
			}
			if len(seen) >= limit {
				return len(seen), false, ""
			}
			seen[key] = true
			queue = append(queue, &node{world: *w, from: at, by: m.name})
		}
	}
	return len(seen), true, ""
}

// check returns the first invariant that this state violates, or "".
func (w *world) check() string {
	if w.countLive() > 1 {
		return "two incarnations are alive"
	}
	if w.gone && len(w.processes) > 0 {
		return "a process of a deleted object runs or is still known"
	}
	if w.version > 0 && len(w.status.Conditions) > 0 && len(trueConditions(&w.status)) != 1 {
		return fmt.Sprintf("Ready, Reconciling, Stalled: %v", trueConditions(&w.status))
	}
	if faulty := conditionstest.Faulty(w.status.Conditions); len(faulty) > 0 {
		return fmt.Sprintf("%v have an empty message, or one that is not a sentence", faulty)
	}
	if ready := meta.FindStatusCondition(w.status.Conditions, v1alpha1.ConditionReady); ready != nil && ready.Status == metav1.ConditionTrue &&
		(ready.Reason == v1alpha1.ReasonRunning) != (w.status.Process != nil) {
		return fmt.Sprintf("Ready has the reason %s, and the recorded process is %v", ready.Reason, w.status.Process)
	}
	if problem := w.checkCounts(); problem != "" {
		return problem
	}
	if problem := w.checkSession(); problem != "" {
		return problem
	}
	if problem := w.checkStopping(); problem != "" {
		return problem
	}
	for _, p := range w.processes {
		if (p.phase == facts.Starting || p.phase == facts.Running) && p.port != w.port {
			return fmt.Sprintf("incarnation %d uses a port that the status does not contain", p.number)
		}
		if p.number > max(w.status.Incarnation, reserved(w.desired.Reserve, &w.status)) {
			return fmt.Sprintf("incarnation %d was started but is not recorded", p.number)
		}
		if end := w.status.LastExit; end != nil && end.Incarnation == p.number && p.exit.Signal == "SIGTERM" && end.Reason != v1alpha1.ReasonStopped {
			return "a requested stop is recorded as " + end.Reason
		}
	}
	if problem := w.checkOnce(); problem != "" {
		return problem
	}
	return w.checkConvergence()
}

// checkOnce checks that a run starts once, and that its outcome is that of its process and never changes.
func (w *world) checkOnce() string {
	if w.once == nil {
		return ""
	}
	if len(w.processes) > 1 || w.status.Incarnation > 1 {
		return "a run was started twice"
	}
	if w.once.Outcome == "" {
		return ""
	}
	recorded, now := w.ended.DeepCopy(), w.status.DeepCopy()
	for _, s := range []*v1alpha1.ProcessStatus{recorded, now} {
		s.ObservedGeneration = 0
		for i := range s.Conditions {
			s.Conditions[i].ObservedGeneration = 0
		}
	}
	if !apiequality.Semantic.DeepEqual(recorded, now) {
		return "the status of a run changes after its outcome was recorded"
	}
	for _, p := range w.processes {
		if p.phase != facts.Exited && p.phase != facts.Failed {
			continue // a replaced manager has started it, and it is about to be stopped
		}
		succeeded := p.phase == facts.Exited && p.exit.Code == 0 && p.exit.Signal == "" && !p.exit.Lost
		stopped := w.desired.State == DesiredStopped || w.deleted // then the process may end with 0 before it gets the stop signal
		if succeeded && w.once.Outcome != v1alpha1.OutcomeSucceeded && !stopped || !succeeded && w.once.Outcome == v1alpha1.OutcomeSucceeded {
			return fmt.Sprintf("a run with the exit %+v has the outcome %s", p.exit, w.once.Outcome)
		}
	}
	return ""
}

// checkStopping checks that no request to stop an older incarnation remains once a newer incarnation was started, and that no process is stopped for a restart
// that is impossible.
func (w *world) checkStopping() string {
	if stopping := w.status.Stopping; w.obstructed && stopping != nil && (stopping.Reason == v1alpha1.ReasonRequested || stopping.Reason == v1alpha1.ReasonSpecChanged) {
		return "a process is stopped for a restart although the next start would fail"
	}
	if stopping := w.status.Stopping; stopping != nil && stopping.Incarnation < w.status.Incarnation && w.status.Process != nil &&
		w.status.Process.Incarnation > stopping.Incarnation {
		return fmt.Sprintf("incarnation %d runs, but the record contains the request to stop incarnation %d", w.status.Process.Incarnation, stopping.Incarnation)
	}
	return ""
}

// refused reports whether the program exited by itself, at once, with an exit code other than 0, as far as a manager can know that.
func (p *process) refused() bool {
	if p.phase != facts.Exited || p.exit.Code == 0 || p.asked {
		return false
	}
	return !p.seen || p.exit.FinishedAt.Sub(p.started) <= goodUptime
}

// ran reports whether the process has started or continued its session, as far as a manager can know that.
func (p *process) ran() bool {
	unknown := !p.seen && p.exit.Signal != "" // without an exit code, the program may not have run
	return p.phase == facts.Exited && !p.refused() && !unknown
}

// checkSession checks from the history of the processes that a session is started once and then resumed, except after a resume that was refused.
func (w *world) checkSession() string {
	if w.desired.SessionID == "" {
		return ""
	}
	began, fallbacks := false, 0
	for i := range w.processes {
		p := &w.processes[i]
		switch how := v1alpha1.SessionStart(p.origin.SessionStart); {
		case began && how == v1alpha1.SessionNew:
			return fmt.Sprintf("incarnation %d starts a session that an earlier one has started", p.number)
		case !began && how != v1alpha1.SessionNew:
			return fmt.Sprintf("incarnation %d is %s, but no earlier one has started the session", p.number, how)
		case how == v1alpha1.SessionFallback:
			if fallbacks++; fallbacks > 1 && w.unasked {
				return "two fallbacks without an incarnation that ran between them"
			}
			if before := w.find(p.number - 1); before != nil && before.phase == facts.Exited && before.origin.SessionStart == string(v1alpha1.SessionResumed) && !before.refused() {
				return fmt.Sprintf("incarnation %d is a fallback after a resume that was not refused", p.number)
			}
		case how == v1alpha1.SessionResumed && i > 0 && w.refusedResume(i-1) && fallbacks == 0:
			return fmt.Sprintf("incarnation %d repeats a resume that was refused, without a fallback", p.number)
		}
		if p.ran() {
			began, fallbacks = true, 0
		}
		if s := w.status.Resume; p.number == w.status.Incarnation && w.status.Process != nil && s.Start != v1alpha1.SessionStart(p.origin.SessionStart) {
			return fmt.Sprintf("incarnation %d is %s, but recorded as %s", p.number, p.origin.SessionStart, s.Start)
		}
	}
	return ""
}

// refusedResume reports whether a process with this index is a resume that was refused.
func (w *world) refusedResume(i int) bool {
	p := &w.processes[i]
	return p.origin.SessionStart == string(v1alpha1.SessionResumed) && p.refused()
}

// checkCounts checks that every exit and every restart is recorded once.
func (w *world) checkCounts() string {
	s := &w.status
	if restarts := max(0, s.Incarnation-1); s.RestartCount != restarts {
		return fmt.Sprintf("%d restarts are recorded after %d starts", s.RestartCount, s.Incarnation)
	}
	if s.Incarnation > 1 && (s.LastExit == nil || s.LastExit.Incarnation < s.Incarnation-1) {
		return fmt.Sprintf("incarnation %d is recorded, but the exit of the one before is not", s.Incarnation)
	}
	if s.LastExit != nil && s.LastExit.Reason == v1alpha1.ReasonUnknown {
		return "an observed exit is recorded as unknown"
	}
	return ""
}

// restWithin is the maximum number of rounds that an undisturbed manager needs until nothing changes any more.
const restWithin = 40

// checkConvergence continues with an undisturbed manager and well-behaved processes until nothing changes any more, and checks that state.
func (w *world) checkConvergence() string {
	c := w.clone()
	c.manager, c.deposed = manager{}, manager{}
	for range restWithin {
		if c.gone {
			return ""
		}
		before, started := c.version, len(c.processes)
		c.read()
		c.write()
		quiet := c.manager.at == idle && c.version == before
		c.act()
		if unwanted := c.deleted || c.desired.State == DesiredStopped; unwanted && len(c.processes) > started {
			return "a process starts although the object is stopped or deleted"
		}
		moved := c.settle()
		if quiet && !moved && !c.passTime() {
			return c.checkFinalState()
		}
	}
	return "the object does not come to rest"
}

// settle lets the process execute, become ready or obey a stop request, and reports whether it did one of these.
func (w *world) settle() bool {
	for _, m := range moves {
		switch m.name {
		case "process executes", "process can receive signals", "process becomes ready", "process obeys its stop":
			if m.do(w) {
				return true
			}
		}
	}
	return false
}

func (w *world) checkFinalState() string {
	state := trueConditions(&w.status)
	switch {
	case w.once != nil && !w.deleted:
		if w.once.Outcome == "" && w.countLive() == 0 {
			return "a run is at rest without an outcome"
		}
		if w.countLive() == 1 && (w.status.Process == nil || w.once.Outcome != "") {
			return "a run is at rest, but its process is not recorded, or has an outcome"
		}
		return ""
	case w.deleted:
		return "at rest with a deletion timestamp, but the finalizer remains"
	case w.desired.State == DesiredStopped && w.countLive() > 0:
		return "stopped and at rest, but a process is alive"
	case w.desired.State == DesiredStopped && state[0] != v1alpha1.ConditionReady:
		return "stopped and at rest, but not Ready"
	case w.desired.State == DesiredStopped:
		return ""
	case w.desired.State == DesiredAsleep && w.countLive() > 0:
		return "asleep and at rest, but a process is alive"
	case w.desired.State == DesiredAsleep && Asleep(&w.status) && w.status.LastExit.Reason != v1alpha1.ReasonStopped:
		return "the object sleeps after " + w.status.LastExit.Reason
	case w.desired.State == DesiredAsleep && w.restartPending():
		return "a sleeping object does not observe its restart token"
	case w.desired.State == DesiredAsleep:
		return ""
	case w.countLive() == 1 && w.obstructed && w.differs():
		if drift := meta.FindStatusCondition(w.status.Conditions, v1alpha1.ConditionDriftDetected); drift == nil || drift.Reason != v1alpha1.ReasonWorkingDirMissing {
			return fmt.Sprintf("a restart waits, and DriftDetected is %v", drift)
		}
		return ""
	case w.countLive() == 1 && w.differs():
		return fmt.Sprintf("the running process was started with %v", w.processes[len(w.processes)-1].origin)
	case w.countLive() == 1 && (len(state) != 1 || state[0] != v1alpha1.ConditionReady):
		return fmt.Sprintf("at rest with a ready process and the conditions %v", state)
	case w.countLive() == 0 && w.status.LastExit != nil && w.status.LastExit.Reason == v1alpha1.ReasonCompleted && state[0] == v1alpha1.ConditionReady:
		return ""
	case w.countLive() == 0 && (len(state) != 1 || state[0] != v1alpha1.ConditionStalled):
		return fmt.Sprintf("at rest without a process and the conditions %v", state)
	case w.restartPending():
		return "the restart token is not observed"
	case w.status.SpecHash != w.desired.SpecHash:
		return "a changed spec is not applied"
	case w.status.ObservedResetToken != w.desired.ResetToken:
		return "the reset token is not observed"
	}
	return ""
}

// differs reports whether the newest process was started with another spec or restart token than the current ones.
func (w *world) differs() bool {
	origin := w.processes[len(w.processes)-1].origin
	resume := origin.SessionStart == string(v1alpha1.SessionResumed) && origin.ResumeHash != w.desired.ResumeHash
	return resume || origin.SpecHash != w.desired.SpecHash || w.desired.RestartToken != "" && origin.RestartToken != w.desired.RestartToken
}

// restartPending reports whether a restart was requested that the status does not record.
func (w *world) restartPending() bool {
	return w.desired.RestartToken != "" && w.status.ObservedRestartToken != w.desired.RestartToken
}

// stateLimit returns the maximum number of states to walk: EXPLORE_STATES, or a default that suits every test run.
func stateLimit(t *testing.T) int {
	text := os.Getenv("EXPLORE_STATES")
	if text == "" {
		return 8_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("EXPLORE_STATES=%q is not a number", text)
	}
	return n
}

var policies = []v1alpha1.RestartPolicy{v1alpha1.RestartAlways, v1alpha1.RestartOnFailure, v1alpha1.RestartNever}

// everyTrouble is a budget that allows a little of every kind of trouble.
var everyTrouble = budget{toggles: 2, restarts: 1, specs: 1, edits: 1, resets: 1, deletes: 1, exits: 2, failedStarts: 1, crashes: 1, ports: 1}

func TestInterleavings_KeepInvariants(t *testing.T) {
	limit, total := stateLimit(t), 0
	for _, policy := range policies {
		states, whole, violation := explore(newWorld(everyTrouble, policy), limit)
		if violation != "" {
			t.Fatalf("restartPolicy %s: %s", policy, violation)
		}
		t.Logf("restartPolicy %s: %d states, complete: %t", policy, states, whole)
		total += states
	}
	sleepy := everyTrouble
	sleepy.toggles, sleepy.sleeps = 1, 2
	states, whole, violation := explore(newWorld(sleepy, v1alpha1.RestartAlways), limit)
	if violation != "" {
		t.Fatalf("a process that can sleep: %s", violation)
	}
	t.Logf("a process that can sleep: %d states, complete: %t", states, whole)
	total += states
	plain, endless, deposed := newWorld(everyTrouble, v1alpha1.RestartAlways), newWorld(everyTrouble, v1alpha1.RestartAlways), everyTrouble
	plain.desired.Reserve, plain.hidesOrigin, endless.desired.KeepsPreviousExit = false, true, false
	// A kind records ports only on a machine, where the lock of the state directory prevents two managers from starting processes.
	deposed.leaders, deposed.toggles, deposed.ports = 1, 1, 0
	slow := newWorld(everyTrouble, v1alpha1.RestartAlways)
	slow.slow = true
	obstructed := newWorld(everyTrouble, v1alpha1.RestartAlways)
	obstructed.obstructed = true
	pods := newWorld(deposed, v1alpha1.RestartAlways)
	pods.desired.Reserve = false
	talks := everyTrouble
	talks.toggles, talks.exits, talks.resumes = 1, 3, 1
	taken := deposed
	taken.exits, taken.resumes = 3, 1
	run := everyTrouble
	run.toggles, run.restarts, run.specs, run.resets, run.ports, run.leaders = 1, 0, 0, 0, 0, 1
	for name, from := range map[string]world{
		"without reservations and origins": plain, "without recorded exits": endless, "two managers": newWorld(deposed, v1alpha1.RestartAlways),
		"two managers without reservations": pods, "deferred stops": slow, "restarts that would fail": obstructed, "a run": newRun(run),
		"a session": newSession(talks, v1alpha1.RestartAlways), "a session that is not restarted": newSession(talks, v1alpha1.RestartNever),
		"a session with two managers": newSession(taken, v1alpha1.RestartAlways),
	} {
		states, whole, violation := explore(from, limit)
		if violation != "" {
			t.Fatalf("%s: %s", name, violation)
		}
		t.Logf("%s: %d states, complete: %t", name, states, whole)
		total += states
	}
	t.Logf("walked %d states without a violation", total)
}

// TestRandomHistories_KeepInvariants walks random histories that are much longer than an exhaustive search can reach.
func TestRandomHistories_KeepInvariants(t *testing.T) {
	plenty := budget{toggles: 20, sleeps: 20, restarts: 20, specs: 20, edits: 20, resets: 20, deletes: 1, exits: 50, failedStarts: 5, crashes: 50, leaders: 20, resumes: 20}
	for history := range uint64(200) {
		random := rand.New(rand.NewPCG(history, 1))
		if history == 150 {
			plenty.leaders, plenty.ports = 0, 20
		}
		w := newWorld(plenty, policies[history%3])
		switch history % 4 {
		case 1:
			w = newSession(plenty, policies[history%3])
		case 3:
			w = newSession(budget{exits: 50, crashes: 50}, policies[history%3])
			w.desired.Breaker.Threshold = 20
		}
		var path []string
		for range 200 {
			c := w.clone()
			m := moves[random.IntN(len(moves))]
			if m.name == "object is deleted" && random.IntN(50) > 0 || !m.do(&c) {
				continue
			}
			if c.status.Incarnation < w.status.Incarnation {
				t.Fatalf("history %d: the incarnation number decreased after\n  %s", history, strings.Join(path, "\n  "))
			}
			w = c
			path = append(path, m.name)
			if problem := w.check(); problem != "" {
				t.Fatalf("history %d: %s after\n  %s", history, problem, strings.Join(path, "\n  "))
			}
		}
	}
}
