// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

func TestHostClaim_DecidesByLabelAndHolder(t *testing.T) {
	for name, test := range map[string]struct {
		claim HostClaim
		want  HostDecision
	}{
		"new object":                                     {HostClaim{Self: "a"}, HostTake},
		"label of this host":                             {HostClaim{Self: "a", Label: "a"}, HostServe},
		"label of another host":                          {HostClaim{Self: "a", Label: "b"}, HostLeave},
		"held here":                                      {HostClaim{Self: "a", Label: "a", Holder: "a"}, HostServe},
		"held here, label removed":                       {HostClaim{Self: "a", Holder: "a"}, HostTake},
		"held here, label changed":                       {HostClaim{Self: "a", Label: "b", Holder: "a"}, HostMove},
		"held by another host":                           {HostClaim{Self: "a", Label: "b", Holder: "b"}, HostLeave},
		"held by another host, label removed":            {HostClaim{Self: "a", Holder: "b"}, HostLeave},
		"held by another host, should move here":         {HostClaim{Self: "a", Label: "a", Holder: "b"}, HostLeave},
		"other host lost, this host chosen":              {HostClaim{Self: "a", Label: "a", Holder: "b", Lost: "b"}, HostServe},
		"other host lost, third host chosen":             {HostClaim{Self: "a", Label: "c", Holder: "b", Lost: "b"}, HostLeave},
		"other host lost, no host chosen":                {HostClaim{Self: "a", Holder: "b", Lost: "b"}, HostLeave},
		"this host returned after its loss":              {HostClaim{Self: "b", Label: "b", Holder: "b", Lost: "b"}, HostTake},
		"this host returned, not recorded as the holder": {HostClaim{Self: "b", Label: "b", Lost: "b"}, HostTake},
		"no machine, new object":                         {HostClaim{}, HostServe},
		"no machine, object of a host":                   {HostClaim{Label: "b"}, HostLeave},
		"no machine, held by a host":                     {HostClaim{Holder: "b"}, HostLeave},
		"no machine, held by a host that was lost":       {HostClaim{Holder: "b", Lost: "b"}, HostLeave},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(test.claim.Decide()).To(Equal(test.want))
		})
	}
}

func TestNext_MovesToAnotherHost(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	d := Desired{UID: "u", Generation: 1, State: DesiredRunning, SpecHash: "x", RestartPolicy: v1alpha1.RestartAlways, Grace: time.Second, Hosted: Hosted{Host: "a"}}
	started := Next(d, v1alpha1.ProcessStatus{}, Observed{}, now)
	g.Expect(started.Status.HostName).To(Equal("a"), "the write that records the intent also claims the object")
	running := Observed{Incarnations: []facts.Incarnation{{Number: 1, Phase: facts.Running, PID: 7}}}
	status := Next(d, started.Status, running, now).Status

	d.State, d.MoveTo = DesiredMoved, "b"
	stop := Next(d, status, running, now)
	g.Expect(stop.Action).To(Equal(StopProcess))
	g.Expect(stop.Status.HostName).To(Equal("a"), "while the process is alive")
	over := Observed{Incarnations: []facts.Incarnation{{Number: 1, Phase: facts.Exited, Exit: &facts.Exit{Known: true}}}}
	released := Next(d, stop.Status, over, now)
	g.Expect(released.Action).To(Equal(Forget))
	g.Expect(released.Status.HostName).To(BeEmpty())
	g.Expect(released.Status.LastExit.Reason).To(Equal(v1alpha1.ReasonStopped))

	d.State, d.Hosted = DesiredRunning, Hosted{Host: "b"}
	again := Next(d, released.Status, Observed{}, now)
	g.Expect(again.Action).To(Equal(StartProcess))
	g.Expect(again.Incarnation).To(Equal(int64(2)))
	g.Expect(again.Status.HostName).To(Equal("b"))
	g.Expect(again.Status.Breaker.FailureTimes).To(BeEmpty())
}

func TestNext_ReleasesAdoptedSessionWithoutStop(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	d := Desired{UID: "u", Generation: 1, State: DesiredMoved, SpecHash: "x", Grace: time.Second, Orphan: true, Hosted: Hosted{Host: "a", MoveTo: "b"}}
	record := v1alpha1.ProcessStatus{Incarnation: 1, HostName: "a", SpecHash: "x", Process: &v1alpha1.ProcessReference{Incarnation: 1, PID: 7}}
	step := Next(d, record, Observed{Incarnations: []facts.Incarnation{{Number: 1, Phase: facts.Running}}}, now)
	g.Expect(step.Action).To(Equal(Forget), "the same step releases the object")
	g.Expect(step.Status.HostName).To(BeEmpty())
}

func TestNext_TakesOverFromALostHost(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	d := Desired{UID: "u", Generation: 1, State: DesiredRunning, SpecHash: "x", RestartPolicy: v1alpha1.RestartAlways, Hosted: Hosted{Host: "a"}}
	record := v1alpha1.ProcessStatus{Incarnation: 3, HostName: "b", SpecHash: "x", Process: &v1alpha1.ProcessReference{Incarnation: 3, PID: 7}}
	step := Next(d, record, Observed{}, now)
	g.Expect(step.Status.LastExit.Reason).To(Equal(v1alpha1.ReasonLost))
	g.Expect(step.Status.LastExit.Message).To(ContainSubstring(`"b" was declared lost`))
	g.Expect(step.Status.HostName).To(Equal("a"))
	g.Expect(step.Status.Breaker.FailureTimes).To(BeEmpty(), "the loss of a host is not a failure of the program")
}

func TestHostUnavailable_StallsAndKeepsProcess(t *testing.T) {
	g := NewWithT(t)
	record := v1alpha1.ProcessStatus{Incarnation: 3, HostName: "b", Process: &v1alpha1.ProcessReference{Incarnation: 3}}
	at := metav1.Unix(1_800_000_000, 0)
	once := HostUnavailable(record, "b", 4, at)
	g.Expect(once.Process).To(Equal(record.Process), "the process may still run")
	g.Expect(trueConditions(&once)).To(ConsistOf(v1alpha1.ConditionStalled))
	g.Expect(HostUnavailable(once, "b", 4, metav1.Unix(1_800_000_100, 0))).To(Equal(once), "a second manager writes nothing")
}

// twoHosts models one object on an API server that two hosts serve, each with its own processes. It is small enough to walk all of its states.
type twoHosts struct {
	label, lost string
	deleted     bool
	finalizer   bool
	status      v1alpha1.ProcessStatus
	version     int
	live        [2][]int64 // incarnations that run, by host
	managers    [2]hostManager
	moves       int
	losses      int
	crashes     int
	deletes     int
	exits       int
	reserve     bool
	now         time.Time
}

// hostManager is the state of a manager between two calls, including what it has read.
type hostManager struct {
	at      managerPhase
	version int
	deleted bool
	claim   HostClaim
	status  v1alpha1.ProcessStatus
	found   []int64
	step    Step
}

var hostNames = [2]string{"a", "b"}

func (w twoHosts) clone() twoHosts {
	for i := range w.live {
		w.live[i] = slices.Clone(w.live[i])
		w.managers[i].found = slices.Clone(w.managers[i].found)
	}
	return w
}

func (w *twoHosts) key() uint64 {
	var b strings.Builder
	fmt.Fprint(&b, w.label, w.lost, w.losses, w.deleted, w.finalizer, w.status.Incarnation, w.status.HostName, w.status.SpecHash, w.status.Process != nil, w.status.Stopping != nil,
		w.status.NextRestartTime != nil, w.status.NextRestartTime != nil && w.status.NextRestartTime.After(w.now),
		w.status.LastExit != nil && w.status.LastExit.Incarnation == w.status.Incarnation, w.live, w.moves, w.crashes, w.deletes, w.exits)
	for i := range w.managers {
		m := &w.managers[i]
		fmt.Fprint(&b, "|", m.at, m.version == w.version, m.claim, m.deleted, m.found, m.step.Action, m.step.Incarnation, m.step.PreStart, m.status.Incarnation, m.status.HostName)
	}
	return maphash.String(seed, b.String())
}

func (w *twoHosts) read(i int) bool {
	if w.managers[i].at != idle || w.deleted && !w.finalizer {
		return false
	}
	w.managers[i] = hostManager{at: hasRead, version: w.version, deleted: w.deleted, status: w.status, found: slices.Clone(w.live[i]),
		claim: HostClaim{Self: hostNames[i], Label: w.label, Lost: w.lost, Holder: w.status.HostName}}
	return true
}

// write does what the reconcile loop does up to its write: check the host, claim, decide, write.
func (w *twoHosts) write(i int, decide func(HostClaim) HostDecision) bool {
	m := w.managers[i]
	if m.at != hasRead {
		return false
	}
	w.managers[i] = hostManager{}
	decision := decide(m.claim)
	if decision == HostLeave {
		return true
	}
	if decision == HostTake || !m.deleted && !w.finalizer {
		if m.version != w.version {
			return true // a conflict
		}
		w.label, w.finalizer = hostNames[i], true
		if decision == HostTake && w.lost == hostNames[i] {
			w.lost = ""
		}
		w.version++
		m.version, m.claim.Label = w.version, w.label
	}
	d := Desired{UID: "u", Generation: 1, State: DesiredRunning, SpecHash: "x", RestartPolicy: v1alpha1.RestartAlways, Grace: time.Second,
		Hosted: Hosted{Host: hostNames[i], MoveTo: m.claim.Label}, Reserve: w.reserve, KeepsPreviousExit: true}
	switch {
	case m.deleted:
		d.State = DesiredDeleted
	case decision == HostMove:
		d.State = DesiredMoved
	}
	var observed Observed
	for _, number := range m.found {
		observed.Incarnations = append(observed.Incarnations, facts.Incarnation{Number: number, Phase: facts.Running, Origin: facts.Origin{SpecHash: "x"}})
	}
	step := Next(d, m.status, observed, w.now)
	if step.Action == Recheck || !step.PreStart && m.version != w.version {
		return true
	}
	if !step.PreStart {
		w.status = step.Status
		w.version++
	}
	if step.Action == None && !step.Released {
		return true
	}
	w.managers[i] = hostManager{at: hasWritten, version: w.version, step: step}
	return true
}

func (w *twoHosts) act(i int) bool {
	m := w.managers[i]
	if m.at != hasWritten {
		return false
	}
	w.managers[i] = hostManager{}
	switch m.step.Action {
	case StartProcess:
		if !slices.Contains(w.live[i], m.step.Incarnation) {
			w.live[i] = append(w.live[i], m.step.Incarnation)
		}
	case StopProcess, KillProcess: // the program exits immediately
		w.live[i] = slices.DeleteFunc(w.live[i], func(number int64) bool { return number == m.step.Incarnation })
	case Forget:
		if m.step.Released && m.version == w.version && len(w.live[i]) == 0 {
			w.finalizer = false
			w.version++
		}
	}
	return true
}

// exploreHosts walks every interleaving of two managers, each of which may crash at any point. Meanwhile a user moves the object, and then deletes it or, if
// loss is true, declares a host lost.
func exploreHosts(reserve, loss bool, decide func(HostClaim) HostDecision) (states int, violation string) {
	type visited struct {
		world twoHosts
		path  string
	}
	begin := twoHosts{moves: 2, crashes: 2, deletes: 1, exits: 1, reserve: reserve, now: start}
	if loss {
		begin.losses, begin.crashes, begin.deletes = 1, 1, 0
	}
	seen := map[uint64]bool{begin.key(): true}
	queue := []visited{{world: begin}}
	moves, w := movesOfHosts(decide), new(twoHosts)
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if live := len(at.world.live[0]) + len(at.world.live[1]); live > 1 {
			return len(seen), "two incarnations are alive after" + at.path
		} else if at.world.deleted && !at.world.finalizer && at.world.managers[0].at == idle && at.world.managers[1].at == idle && live > 0 {
			return len(seen), "a process is alive although its object is deleted after" + at.path
		}
		for name, do := range moves {
			*w = at.world.clone()
			if !do(w) {
				continue
			}
			key := w.key()
			if seen[key] {
				continue
			}
			seen[key] = true
			queue = append(queue, visited{*w, at.path + "\n  " + name})
		}
	}
	return len(seen), ""
}

func movesOfHosts(decide func(HostClaim) HostDecision) map[string]func(*twoHosts) bool {
	moves := map[string]func(*twoHosts) bool{
		// A user moves only an object with a record; before the first start there is nothing to move.
		"user moves the object": func(w *twoHosts) bool {
			if w.status.Incarnation == 0 || w.deleted || !spend(&w.moves) {
				return false
			}
			w.label = hostNames[1-slices.Index(hostNames[:], w.label)]
			w.version++
			return true
		},
		// The host is lost together with its processes and its manager. It may return later without them.
		"a person declares the host lost": func(w *twoHosts) bool {
			lost := slices.Index(hostNames[:], w.status.HostName)
			if lost < 0 || w.deleted || len(w.live[lost]) > 0 || !spend(&w.losses) {
				return false
			}
			w.managers[lost] = hostManager{}
			w.lost, w.label = hostNames[lost], hostNames[1-lost]
			w.version++
			return true
		},
		"user deletes the object": func(w *twoHosts) bool {
			if w.deleted || !spend(&w.deletes) {
				return false
			}
			w.deleted = true
			w.version++
			return true
		},
		"process ends": func(w *twoHosts) bool {
			for i := range w.live {
				if len(w.live[i]) > 0 && spend(&w.exits) {
					w.live[i] = nil
					return true
				}
			}
			return false
		},
		"time passes": func(w *twoHosts) bool {
			w.now = w.now.Add(time.Minute)
			return true
		},
	}
	for i, name := range hostNames {
		moves[name+" reads"] = func(w *twoHosts) bool { return w.read(i) }
		moves[name+" writes"] = func(w *twoHosts) bool { return w.write(i, decide) }
		moves[name+" acts"] = func(w *twoHosts) bool { return w.act(i) }
		moves[name+" crashes"] = func(w *twoHosts) bool {
			if w.managers[i].at == idle || !spend(&w.crashes) {
				return false
			}
			w.managers[i] = hostManager{}
			return true
		}
	}
	return moves
}

func TestInterleavings_OfTwoHostsKeepInvariants(t *testing.T) {
	for _, test := range []struct{ reserve, loss bool }{{}, {reserve: true}, {loss: true}, {reserve: true, loss: true}} {
		states, violation := exploreHosts(test.reserve, test.loss, HostClaim.Decide)
		if violation != "" {
			t.Fatalf("%+v: %s", test, violation)
		}
		t.Logf("%+v: walked %d states without a violation", test, states)
	}
}

func TestExplorer_FindsMissingGuardsOfTwoHosts(t *testing.T) {
	for name, broken := range map[string]func(HostClaim) HostDecision{
		"serves objects of another host": func(HostClaim) HostDecision { return HostServe },
		"starts before the other host has stopped": func(c HostClaim) HostDecision {
			if c.Label == c.Self {
				return HostServe
			}
			return c.Decide()
		},
		"keeps the annotation of a loss when the lost host takes the object again": func(c HostClaim) HostDecision {
			if c.Lost == c.Self && c.Label == c.Self && c.Holder == "" {
				return HostServe
			}
			return c.Decide()
		},
		"forgets the holder when the label changes": func(c HostClaim) HostDecision {
			c.Holder = ""
			return c.Decide()
		},
	} {
		_, without := exploreHosts(false, false, broken)
		if _, with := exploreHosts(false, true, broken); without == "" && with == "" {
			t.Errorf("not found: a manager that %s", name)
		}
	}
}
