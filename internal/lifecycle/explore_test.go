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

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// node is a world and the way that led to it.
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

// explore walks every interleaving from a world on, breadth first, and checks every state; it gives the number of states and the first violation.
func explore(from world, limit int) (states int, whole bool, violation string) {
	seen := map[uint64]bool{from.key(): true}
	queue := []*node{{world: from}}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if problem := at.world.check(); problem != "" {
			return len(seen), false, problem + " after\n  " + at.path()
		}
		for _, m := range moves {
			w := at.world.clone()
			if !m.do(&w) {
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
			queue = append(queue, &node{world: w, from: at, by: m.name})
		}
	}
	return len(seen), true, ""
}

// check gives what a promise says against this state, or nothing.
func (w *world) check() string {
	if w.live() > 1 {
		return "two incarnations live"
	}
	if w.gone && len(w.processes) > 0 {
		return "something runs, or is known, of an object that is gone"
	}
	if w.version > 0 && len(w.status.Conditions) > 0 && len(truths(&w.status)) != 1 {
		return fmt.Sprintf("Ready, Reconciling, Stalled: %v", truths(&w.status))
	}
	if problem := w.checkCounts(); problem != "" {
		return problem
	}
	for _, p := range w.processes {
		if p.number > max(w.status.Incarnation, reserved(w.desired.Reserve, &w.status)) {
			return fmt.Sprintf("incarnation %d was started and is not on record", p.number)
		}
		if end := w.status.LastExit; end != nil && end.Incarnation == p.number && p.exit.Signal == "SIGTERM" && end.Reason != v1alpha1.ReasonStopped {
			return "an end that was asked for is on record as " + end.Reason
		}
	}
	return w.comesToRest()
}

// checkCounts checks that every end and every restart is on record once.
func (w *world) checkCounts() string {
	s := &w.status
	if restarts := max(0, s.Incarnation-1); s.RestartCount != restarts {
		return fmt.Sprintf("%d restarts are on record after %d starts", s.RestartCount, s.Incarnation)
	}
	if s.Incarnation > 1 && (s.LastExit == nil || s.LastExit.Incarnation < s.Incarnation-1) {
		return fmt.Sprintf("incarnation %d is on record, and the end of the one before is not", s.Incarnation)
	}
	if s.LastExit != nil && s.LastExit.Reason == v1alpha1.ReasonUnknown {
		return "an end that was seen is on record as unknown"
	}
	return ""
}

// restWithin is how many rounds of an undisturbed manager it takes at most to come to rest.
const restWithin = 40

// comesToRest lets an undisturbed manager and well-behaved processes go on, and checks where they end.
func (w *world) comesToRest() string {
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
		if unwanted := c.deleted || c.desired.Want == Stop; unwanted && len(c.processes) > started {
			return "something is started that is not wanted"
		}
		moved := c.settle()
		if quiet && !moved && !c.passTime() {
			return c.restIsWanted()
		}
	}
	return "it does not come to rest"
}

// settle lets the process do what it was asked to, and says whether anything happened.
func (w *world) settle() bool {
	for _, m := range moves {
		switch m.name {
		case "process executes", "process becomes ready", "process obeys its stop":
			if m.do(w) {
				return true
			}
		}
	}
	return false
}

func (w *world) restIsWanted() string {
	state := truths(&w.status)
	switch {
	case w.deleted:
		return "deleted and at rest, but not gone"
	case w.desired.Want == Stop && w.live() > 0:
		return "stopped and at rest, but something lives"
	case w.desired.Want == Stop:
		return ""
	case w.desired.Want == Sleep && w.live() > 0:
		return "asleep and at rest, but something lives"
	case w.desired.Want == Sleep && state[0] == v1alpha1.ConditionReady && w.status.LastExit.Reason != v1alpha1.ReasonStopped:
		return "it sleeps after " + w.status.LastExit.Reason
	case w.desired.Want == Sleep && w.status.ObservedRestartToken != w.desired.RestartToken:
		return "a request to restart was not met by sleep"
	case w.desired.Want == Sleep:
		return ""
	case w.live() == 1 && w.processes[len(w.processes)-1].origin != (facts.Origin{SpecHash: w.desired.SpecHash, RestartToken: w.desired.RestartToken}):
		return fmt.Sprintf("what runs was started with %v", w.processes[len(w.processes)-1].origin)
	case w.live() == 1 && (len(state) != 1 || state[0] != v1alpha1.ConditionReady):
		return fmt.Sprintf("at rest with a ready process and the conditions %v", state)
	case w.live() == 0 && (len(state) != 1 || state[0] != v1alpha1.ConditionStalled):
		return fmt.Sprintf("at rest without a process and the conditions %v", state)
	case w.status.ObservedRestartToken != w.desired.RestartToken:
		return "a request to restart was not met"
	case w.status.SpecHash != w.desired.SpecHash:
		return "a changed spec was not carried out"
	case w.status.ObservedResetToken != w.desired.ResetToken:
		return "a reset was not carried out"
	}
	return ""
}

// statesWanted is how many states to walk at most: EXPLORE_STATES, or enough for every run of the tests.
func statesWanted(t *testing.T) int {
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

// everyTrouble is a budget that has a little of everything.
var everyTrouble = budget{toggles: 2, restarts: 1, specs: 1, edits: 1, resets: 1, deletes: 1, exits: 2, failedStarts: 1, crashes: 1}

func TestEveryInterleaving(t *testing.T) {
	limit, total := statesWanted(t), 0
	for _, policy := range policies {
		states, whole, violation := explore(newWorld(everyTrouble, policy), limit)
		if violation != "" {
			t.Fatalf("restartPolicy %s: %s", policy, violation)
		}
		t.Logf("restartPolicy %s: %d states, all of them: %t", policy, states, whole)
		total += states
	}
	sleepy := everyTrouble
	sleepy.toggles, sleepy.sleeps = 1, 2
	states, whole, violation := explore(newWorld(sleepy, v1alpha1.RestartAlways), limit)
	if violation != "" {
		t.Fatalf("a process that may sleep: %s", violation)
	}
	t.Logf("a process that may sleep: %d states, all of them: %t", states, whole)
	total += states
	plain, endless, deposed := newWorld(everyTrouble, v1alpha1.RestartAlways), newWorld(everyTrouble, v1alpha1.RestartAlways), everyTrouble
	plain.desired.Reserve, endless.desired.KeepsEnd = false, false
	deposed.leaders, deposed.toggles = 1, 1
	for name, from := range map[string]world{"without reservations": plain, "without ends": endless, "two managers": newWorld(deposed, v1alpha1.RestartAlways)} {
		states, whole, violation := explore(from, limit)
		if violation != "" {
			t.Fatalf("%s: %s", name, violation)
		}
		t.Logf("%s: %d states, all of them: %t", name, states, whole)
		total += states
	}
	t.Logf("walked %d states, none bad", total)
}

// TestRandomHistories goes far deeper than all interleavings can: long histories with much trouble.
func TestRandomHistories(t *testing.T) {
	plenty := budget{toggles: 20, sleeps: 20, restarts: 20, specs: 20, edits: 20, resets: 20, deletes: 1, exits: 50, failedStarts: 5, crashes: 50, leaders: 20}
	for history := range uint64(150) {
		random := rand.New(rand.NewPCG(history, 1))
		w := newWorld(plenty, policies[history%3])
		var path []string
		for range 200 {
			c := w.clone()
			m := moves[random.IntN(len(moves))]
			if m.name == "object is deleted" && random.IntN(50) > 0 || !m.do(&c) {
				continue
			}
			if c.status.Incarnation < w.status.Incarnation {
				t.Fatalf("history %d: the incarnation went back after\n  %s", history, strings.Join(path, "\n  "))
			}
			w = c
			path = append(path, m.name)
			if problem := w.check(); problem != "" {
				t.Fatalf("history %d: %s after\n  %s", history, problem, strings.Join(path, "\n  "))
			}
		}
	}
}
