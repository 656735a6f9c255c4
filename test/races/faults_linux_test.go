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

// mutant is a fault that removes the guard that a row covers. With that fault the row has to fail with the expected message.
type mutant struct {
	row string
	// without describes the guard that is removed; sees is a text that the failure message of the row has to contain.
	without, sees string

	// wrap changes the runtime that the manager uses; speaks changes the runtime of language servers; writes changes the requests of the manager to the
	// API server and, if all is set, those of users too.
	wrap   func(backend) backend
	speaks func(languageBackend) languageBackend
	writes func(http.RoundTripper) http.RoundTripper
	all    bool
	// terminals returns the runtime that the manager uses for tmux.
	terminals func(*sessionEnv) runtime.Runtime

	// Faults that a wrapper cannot cause; the row itself applies them.
	forgets bool // every manager gets a new state directory
	pidOnly bool // a process is identified by its PID alone
	noQuota bool // there is no quota; the client checks the limit before the create
	noFront bool // clients connect to the server directly, not through its proxy
	lingers bool // clients connect through a relay that does not notice when they disconnect
	unnamed bool // managers have no host name, so each manager serves all objects

	// patient means that the row itself detects the fault, possibly only after a while. Other rows fail because an expected event does not happen, so
	// these rows wait for a shorter time.
	patient bool
	// slow means that the row takes long. Slow rows run first, so that the run does not have to wait for one of them at the end.
	slow bool
}

// listMutants prints all mutants, one per line, those of slow rows first.
func listMutants() {
	for _, slow := range []bool{true, false} {
		for _, t := range mutants {
			if t.slow == slow {
				fmt.Println(t.row, t.without)
			}
		}
	}
}

// rounds returns how often a row repeats an operation. With all guards in place, more repetitions give more certainty; with a fault, few repetitions
// are enough to show the fault.
func rounds(all, few int) int {
	if fault != nil {
		return few
	}
	return all
}

// mutants lists the mutants of all rows; other files append theirs.
var mutants = []mutant{
	{row: "R04", without: "state that outlives a manager: each manager starts with an empty registry", sees: "steady: want: runs incarnation 1; got: incarnation 2", forgets: true},
	{row: "R05", without: "independent keys: one lock around the whole runtime", sees: "another object is blocked", slow: true,
		wrap: func(b backend) backend { return &oneLock{backend: b} }},
	{row: "R06", without: "the UID of an activity: it is written to an entry even if the object no longer exists", sees: "was recreated", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper {
			return &bringsBack{next: next, seen: map[string]map[string]any{}}
		}},
	{row: "R07", without: "the incarnation of a stop: it ends whichever incarnation is running", sees: "the newer incarnation", patient: true,
		wrap: func(b backend) backend { return hitsNewest{b} }},
	{row: "R08", without: "the record that a stop was sent: every reconcile sends it again", sees: "exactly one stop signal", patient: true,
		wrap: func(b backend) backend { return forgetsStop{b} }},
	{row: "R09", without: "one write per state: a status is written in two parts", sees: "partially written", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return halves{next} }},
	{row: "R10", without: "the UID of a stop: the processes to end are found by namespace", sees: "created after", patient: true,
		wrap: func(b backend) backend { return stopsNamespace{b} }},
	{row: "R11", without: "idempotent starts: a second request starts a second process", sees: "one process per object", patient: true,
		wrap: func(b backend) backend { return &startsAgain{backend: b, asked: map[string]bool{}} }},
	{row: "R12", without: "independent keys: clients that contend for one object hold a lock on all objects", sees: "contention", patient: true, slow: true, all: true,
		writes: (&convoy{}).join},
	{row: "R13", without: "a stop that returns at once: it waits until the process exits", sees: "delayed by slow stops",
		wrap: func(b backend) backend { return waitsForEnd{b} }},
	{row: "R14", without: "a create that is refused when the name is taken: it changes the existing object", sees: "exactly one create succeeds", all: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return upserts{next} }},
	{row: "R16", without: "the optimistic lock of a status on the version that it was derived from", sees: "older than", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return stampsNewest{next} }},
	{row: "R17", without: "the list of runs that were counted, between the count and the removal of the finalizer", sees: "each failure is counted once", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper {
			return &forgetsCounted{next: next, tried: map[string]bool{}}
		}},
	{row: "R18", without: "the threshold: one more failure is allowed", sees: "open exactly from the threshold", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return changesStatus{next, opensLate} }},
	{row: "R19", without: "one write for failures and breaker: a reader sees the state in between", sees: "at every read", patient: true, slow: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return breakerInHalves{next} }},
	{row: "R20", without: "the read that bypasses the cache: a run sees an earlier state of the breaker", sees: "no process", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper {
			return &remembersBreaker{next: next, first: map[string][]byte{}}
		}},
	{row: "R21", without: "epochs: a run that began before a reset counts after it", sees: "no run that began before", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return changesStatus{next, oneEpoch} }},
	{row: "R22", without: "freedom from nested locks: a lock is held while a run is released, which needs the same lock", sees: "an operation does not complete",
		writes: func(next http.RoundTripper) http.RoundTripper { return nested{next, make(chan struct{}, 1)} }},
	{row: "R28", without: "the clean-up of a failed start", sees: "left behind", slow: true,
		wrap: func(b backend) backend { return &leaves{backend: b} }},
	{row: "R32", without: "state that outlives a manager: a process that the manager did not start itself counts as dead", sees: "counted as failed", forgets: true},
	{row: "R33", without: "idempotent starts: a second request starts a second process", sees: "one execution", patient: true,
		wrap: func(b backend) backend { return &startsAgain{backend: b, asked: map[string]bool{}} }},
	{row: "S02", without: "status by UID: it is remembered by name", sees: "of the previous object", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper {
			return &remembersName{next: next, last: map[string]any{}}
		}},
	{row: "S03", without: "optimistic concurrency: the last writer wins", sees: "lost", patient: true, all: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return lastWins{next} }},
	{row: "S05", without: "the precondition of a deletion: any object with the name is deleted", sees: "deleted although", patient: true,
		writes: func(next http.RoundTripper) http.RoundTripper { return deletesBlindly{next} }},
	{row: "S07", without: "the start time in an identity: a PID is enough", sees: "is detected as exited", pidOnly: true},
	{row: "S08", without: "the limit within the create: clients check it before they create", sees: "exactly ten", patient: true, noQuota: true},
	{row: "S09", without: "arbitration: a port always counts as free", sees: "one owner",
		wrap:   func(b backend) backend { return seesNoOwner{b} },
		writes: func(next http.RoundTripper) http.RoundTripper { return hidesRivals{next} }},
	{row: "S10", without: "tracking of a server that fails verification: it is dropped", sees: "tracked",
		wrap: func(b backend) backend { return &dropsUnverified{backend: b, port: map[string]int32{}} }},
	{row: "S11", without: "the check before the finalizer is removed: a process that was asked to stop counts as gone", sees: "was deleted while", patient: true,
		wrap: func(b backend) backend { return &asksIsGone{backend: b, asked: map[string]bool{}} }},
	{row: "S12", without: "the UID as key: processes are identified by their command", sees: "each object has its own process",
		wrap: func(b backend) backend { return &byCommand{backend: b, first: map[string]owned{}} }},
	{row: "S13", without: "the snapshot: a list iterates over a changing set", sees: "every list", patient: true,
		wrap: func(b backend) backend { return walksLive{b} }},
	{row: "S14", without: "the check after a kill: an attempted kill counts as done", sees: "reported stopped", patient: true,
		wrap: func(b backend) backend { return &believesKill{backend: b, killed: map[string]bool{}} }},
	{row: "S15", without: "a cursor per reader: all readers move the same one", sees: "every line",
		wrap: func(b backend) backend { return &oneOffset{backend: b} }},
	{row: "R23", without: "the restart in the status: the condition Restarting is not reported", sees: "the server is neither ready nor restarting",
		writes: func(next http.RoundTripper) http.RoundTripper { return forgetsRestart{next} }},
	{row: "R24", without: "the hold: a request that arrives while no server is ready is refused with a retriable error", sees: "retriable",
		speaks: func(b languageBackend) languageBackend { return configures{b, holdsNothing} }},
	{row: "R25", without: "the record of the last request that was carried out", sees: "one restart for",
		writes: func(next http.RoundTripper) http.RoundTripper { return forgetsToken{next} }},
	{row: "R26", without: "one server per object: a restart and a start create two", sees: "a start ran in addition to the restart",
		wrap: func(b backend) backend { return hidesAgain{b} },
		speaks: func(b languageBackend) languageBackend {
			return &startsBeside{languageBackend: b, asked: map[string]runtime.Process{}, when: func(p runtime.Process, again bool) bool { return !again && p.Incarnation > 1 }}
		}},
	{row: "R27", without: "idempotent starts: a second request starts a second process", sees: "one spawn for all callers",
		wrap: func(b backend) backend { return hidesAgain{b} },
		speaks: func(b languageBackend) languageBackend {
			return &startsBeside{languageBackend: b, asked: map[string]runtime.Process{}, when: func(_ runtime.Process, again bool) bool { return again }}
		}},
	{row: "R29", without: "the health check of silent servers: they may take any time", sees: "the other client of", slow: true,
		speaks: func(b languageBackend) languageBackend { return configures{b, neverHung} }},
	{row: "R30", without: "the check for disconnected clients: a lost client is not noticed", sees: "left open", lingers: true},
	{row: "S17", without: "consumers derived from connections: they are counted only when they connect", sees: "has 4 consumers",
		speaks: func(b languageBackend) languageBackend {
			return &countsUp{languageBackend: b, most: map[types.UID]int{}}
		}},
	{row: "S18", without: "a stop that is final: it starts the server again", sees: "resurrected", wrap: func(b backend) backend { return hidesAgain{b} },
		speaks: func(b languageBackend) languageBackend {
			return &resurrects{startsBeside{languageBackend: b, asked: map[string]runtime.Process{}, when: func(runtime.Process, bool) bool { return false }}}
		}},
	{row: "S19", without: "the host of an object: every manager serves all objects", sees: "one process per object", patient: true, slow: true, unnamed: true},
	{row: "D01", without: "the proxy: clients connect to the server itself", sees: "requests failed", slow: true, noFront: true},
}

func mutantOf(row string) *mutant {
	for i := range mutants {
		if mutants[i].row == row {
			return &mutants[i]
		}
	}
	return nil
}

// runtime returns the runtime as the manager sees it.
func (t *mutant) runtime(b backend) backend {
	if t == nil || t.wrap == nil {
		return b
	}
	return t.wrap(b)
}

// languages returns the runtime of language servers as the manager sees it.
func (t *mutant) languages(b languageBackend) languageBackend {
	if t == nil || t.speaks == nil {
		return b
	}
	return t.speaks(b)
}

// managers returns the client configuration of managers; users returns that of all other clients.
func (t *mutant) managers(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	if t != nil && t.writes != nil {
		config.Wrap(t.writes)
	}
	return config
}

func (t *mutant) users(config *rest.Config) *rest.Config {
	if t == nil || !t.all {
		return rest.CopyConfig(config)
	}
	return t.managers(config)
}
