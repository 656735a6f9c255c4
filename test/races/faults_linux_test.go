// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/runtime"
)

// tooth takes out the guard that a row covers. With it the row has to fail, and to say what it saw.
type tooth struct {
	row string
	// without says what is taken out; sees is how the complaint of the row begins.
	without, sees string

	// wrap stands between the manager and the runtime, speaks between it and that of language servers; writes between clients and the API server: for the manager, and for users too if all is set.
	wrap   func(backend) backend
	speaks func(tongues) tongues
	writes func(http.RoundTripper) http.RoundTripper
	all    bool
	// terminals stands between the manager and tmux.
	terminals func(*den) runtime.Runtime

	// What no wrapper can do is done by the row itself.
	forgets bool // every manager gets a state directory of its own
	pidOnly bool // a process is recognized by its PID
	noQuota bool // the limit is looked at before the create, by the client
	noFront bool // clients talk to the server past its proxy
	lingers bool // clients come by a relay that does not notice when they go
	unnamed bool // managers have no host name: each serves all objects

	// patient says that the row complains by itself, and may take its time before. The others wait in vain for something.
	patient bool
	// slow says that the row takes long: it is begun with, so that no other has to wait for it at the end.
	slow bool
}

// listTeeth prints all rows, one a line, the slow ones first.
func listTeeth() {
	for _, slow := range []bool{true, false} {
		for _, t := range teeth {
			if t.slow == slow {
				fmt.Println(t.row, t.without)
			}
		}
	}
}

// rounds is how often a row does what it could do once: to be surer that nothing comes of it. Without its guard, few are enough to show it.
func rounds(all, few int) int {
	if fault != nil {
		return few
	}
	return all
}

// teeth are all of them, one for every row.
var teeth = []tooth{
	{row: "R04", without: "what outlives a manager: each begins with an empty registry", sees: "steady: runs incarnation 1; it is incarnation 2", forgets: true},
	{row: "R05", without: "independent keys: one lock around all of the runtime", sees: "others go on", slow: true,
		wrap: func(b backend) backend { return &oneLock{backend: b} }},
	{row: "R06", without: "the UID of an activity: it is written into an entry whether that is there or not", sees: "brought back", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper {
			return &bringsBack{next: next, seen: map[string]map[string]any{}}
		}},
	{row: "R07", without: "the incarnation in a stop: it hits whatever runs", sees: "the newer incarnation", patient: true,
		wrap: func(b backend) backend { return hitsNewest{b} }},
	{row: "R08", without: "the memory of having asked: every look asks again", sees: "asked once", patient: true,
		wrap: func(b backend) backend { return forgetsStop{b} }},
	{row: "R09", without: "one write per state: a status comes in two parts", sees: "half-done", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return halves{next} }},
	{row: "R10", without: "the UID in a stop: what to end is found by namespace", sees: "created after", patient: true,
		wrap: func(b backend) backend { return stopsNamespace{b} }},
	{row: "R11", without: "idempotent starts: asked twice, started twice", sees: "every process was alone", patient: true,
		wrap: func(b backend) backend { return &startsAgain{backend: b, asked: map[string]bool{}} }},
	{row: "R12", without: "independent keys: who fights over an object holds a lock of all", sees: "contention", patient: true, slow: true, all: true,
		writes: (&convoy{}).join},
	{row: "R13", without: "a stop that returns at once: it waits for the end", sees: "held up",
		wrap: func(b backend) backend { return waitsForEnd{b} }},
	{row: "R14", without: "a create that is refused when the name is taken: it changes what is there", sees: "one winner", all: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return upserts{next} }},
	{row: "R16", without: "the lock of a status on the version that it was derived from", sees: "older than", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return stampsNewest{next} }},
	{row: "R17", without: "the list of runs that were counted, between the count and the end of the finalizer", sees: "counts once", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper {
			return &forgetsCounted{next: next, tried: map[string]bool{}}
		}},
	{row: "R18", without: "the threshold: one more failure is let through", sees: "open exactly from the threshold", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return changesStatus{next, opensLate} }},
	{row: "R19", without: "one write for failures and breaker: a reader comes between them", sees: "at every read", patient: true, slow: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return breakerInHalves{next} }},
	{row: "R20", without: "the look past the cache: a run sees the breaker as it was once", sees: "no process", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper {
			return &remembersBreaker{next: next, first: map[string][]byte{}}
		}},
	{row: "R21", without: "epochs: what began before a reset counts after it", sees: "none that began before", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return changesStatus{next, oneEpoch} }},
	{row: "R22", without: "the freedom from locks: one is held while a run is let go that needs it, too", sees: "an operation does not end",
		writes: func(next http.RoundTripper) http.RoundTripper { return nested{next, make(chan struct{}, 1)} }},
	{row: "R28", without: "the clean-up of a start that fails", sees: "left behind", slow: true,
		wrap: func(b backend) backend { return &leaves{backend: b} }},
	{row: "R32", without: "what outlives a manager: a process that it did not start itself is dead", sees: "counted as failed", forgets: true},
	{row: "R33", without: "idempotent starts: asked twice, started twice", sees: "one execution", patient: true,
		wrap: func(b backend) backend { return &startsAgain{backend: b, asked: map[string]bool{}} }},
	{row: "S02", without: "status by UID: it is remembered by name", sees: "of the object before", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper {
			return &remembersName{next: next, last: map[string]any{}}
		}},
	{row: "S03", without: "optimistic concurrency: the last writer wins", sees: "lost", patient: true, all: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return lastWins{next} }},
	{row: "S05", without: "the precondition of a deletion: what has the name is deleted", sees: "removed although", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return deletesBlindly{next} }},
	{row: "S07", without: "the start time in an identity: a PID is enough", sees: "is noticed to be gone", pidOnly: true},
	{row: "S08", without: "the limit inside of the create: clients look before they create", sees: "exactly ten", patient: true, noQuota: true},
	{row: "S09", without: "the arbiter: a port is always free", sees: "one owner",
		wrap:   func(b backend) backend { return seesNoOwner{b} },
		writes: func(next http.RoundTripper) http.RoundTripper { return hidesRivals{next} }},
	{row: "S10", without: "tracking of what fails verification: it is dropped", sees: "tracked",
		wrap: func(b backend) backend { return &dropsUnverified{backend: b, port: map[string]int32{}} }},
	{row: "S11", without: "the look before the finalizer goes: asked is gone", sees: "gone while", patient: true,
		wrap: func(b backend) backend { return &asksIsGone{backend: b, asked: map[string]bool{}} }},
	{row: "S12", without: "the UID as key: processes are known by their command", sees: "they have a process each",
		wrap: func(b backend) backend { return &byCommand{backend: b, first: map[string]owned{}} }},
	{row: "S13", without: "the snapshot: a list walks what is changing", sees: "every list", patient: true,
		wrap: func(b backend) backend { return walksLive{b} }},
	{row: "S14", without: "the look after a kill: to have tried is to have done", sees: "reported stopped", patient: true,
		wrap: func(b backend) backend { return &believesKill{backend: b, killed: map[string]bool{}} }},
	{row: "S15", without: "a cursor per reader: all move one", sees: "every line",
		wrap: func(b backend) backend { return &oneOffset{backend: b} }},
	{row: "R23", without: "the restart in the status: it says only what is", sees: "it neither serves nor restarts",
		writes: func(next http.RoundTripper) http.RoundTripper { return forgetsRestart{next} }},
	{row: "R24", without: "the hold: who asks while nobody serves is told to come again", sees: "retriable",
		speaks: func(b tongues) tongues { return configures{b, holdsNothing} }},
	{row: "R25", without: "the record of the request that was carried out", sees: "one swap for",
		writes: func(next http.RoundTripper) http.RoundTripper { return forgetsToken{next} }},
	{row: "R26", without: "one server per object: a restart and a start are two", sees: "a start beside the restart",
		wrap: func(b backend) backend { return hidesAgain{b} },
		speaks: func(b tongues) tongues {
			return &startsBeside{tongues: b, asked: map[string]runtime.Process{}, when: func(p runtime.Process, again bool) bool { return !again && p.Incarnation > 1 }}
		}},
	{row: "R27", without: "idempotent starts: asked twice, started twice", sees: "one spawn for all who start",
		wrap: func(b backend) backend { return hidesAgain{b} },
		speaks: func(b tongues) tongues {
			return &startsBeside{tongues: b, asked: map[string]runtime.Process{}, when: func(_ runtime.Process, again bool) bool { return again }}
		}},
	{row: "R29", without: "the look at silent servers: they have all the time they want", sees: "the other client of", slow: true,
		speaks: func(b tongues) tongues { return configures{b, neverHung} }},
	{row: "R30", without: "the look at who is connected: nobody notices that a client goes", sees: "left open", lingers: true},
	{row: "S17", without: "consumers derived from connections: they are counted when they come", sees: "has 4 consumers",
		speaks: func(b tongues) tongues { return &countsUp{tongues: b, most: map[types.UID]int{}} }},
	{row: "S18", without: "the end that lasts: a stop starts anew", sees: "resurrected", wrap: func(b backend) backend { return hidesAgain{b} },
		speaks: func(b tongues) tongues {
			return &resurrects{startsBeside{tongues: b, asked: map[string]runtime.Process{}, when: func(runtime.Process, bool) bool { return false }}}
		}},
	{row: "S19", without: "the host of an object: every manager serves all of them", sees: "every process was alone", patient: true, slow: true, unnamed: true},
	{row: "D01", without: "the proxy: clients talk to the server itself", sees: "requests failed", slow: true, noFront: true},
}

func toothOf(row string) *tooth {
	for i := range teeth {
		if teeth[i].row == row {
			return &teeth[i]
		}
	}
	return nil
}

// runtime gives what the manager sees of the runtime.
func (t *tooth) runtime(b backend) backend {
	if t == nil || t.wrap == nil {
		return b
	}
	return t.wrap(b)
}

// languages gives what the manager sees of the runtime of language servers.
func (t *tooth) languages(b tongues) tongues {
	if t == nil || t.speaks == nil {
		return b
	}
	return t.speaks(b)
}

// managers gives how managers reach the API server, and users how everybody else does.
func (t *tooth) managers(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	if t != nil && t.writes != nil {
		config.Wrap(t.writes)
	}
	return config
}

func (t *tooth) users(config *rest.Config) *rest.Config {
	if t == nil || !t.all {
		return rest.CopyConfig(config)
	}
	return t.managers(config)
}
