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
	// The field "without" is a text that describes the guard that is removed and, after a colon, what happens instead. The field "sees" is a text that the
	// failure message of the row has to contain.
	without, sees string

	// wrapRuntime changes the runtime that the manager uses; wrapLanguages changes the runtime of language servers; wrapTransport changes the requests of the
	// manager to the API server and, if includesUsers is set, those of users too.
	wrapRuntime   func(backend) backend
	wrapLanguages func(languageBackend) languageBackend
	wrapTransport func(http.RoundTripper) http.RoundTripper
	includesUsers bool
	// tmuxRuntime returns the runtime that the manager uses for tmux.
	tmuxRuntime func(*sessionEnv) runtime.Runtime

	// Faults that a wrapper cannot cause; the row itself applies them.
	losesState         bool // every manager gets a new state directory
	pidOnly            bool // a process is identified by its PID alone
	noQuota            bool // there is no quota; the client checks the limit before the create
	noProxy            bool // clients connect to the server directly, not through its proxy
	ignoresDisconnects bool // clients connect through a relay that does not notice when they disconnect
	noHostNames        bool // managers have no host name, so each manager serves all objects

	// patient means that the row detects the fault by an event that may occur late, so it waits as long as without a fault. All other rows detect the fault
	// because an expected event does not occur; with a fault, they wait for a shorter time.
	patient bool
	// slow means that the row takes long. Slow rows start first. Otherwise, at the end of the run, all other rows could be complete while a slow row still runs.
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
	{row: "R04", without: "state that outlives a manager: each manager starts with an empty state directory", sees: "steady: want: runs incarnation 1; got: incarnation 2", losesState: true},
	{row: "R05", without: "independence of objects: one lock guards the whole runtime", sees: "another object is blocked", slow: true,
		wrapRuntime: func(b backend) backend { return &oneLock{backend: b} }},
	{row: "R06", without: "the check of the UID when activity is recorded: recording creates a deleted object again", sees: "was recreated", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &recreatesDeleted{next: next, seen: map[string]map[string]any{}}
		}},
	{row: "R07", without: "the incarnation in a stop: a stop ends the newest incarnation", sees: "the newer incarnation", patient: true,
		wrapRuntime: func(b backend) backend { return stopsNewest{b} }},
	{row: "R08", without: "the record that a stop was sent: every reconcile sends the stop again", sees: "exactly one stop signal", patient: true,
		wrapRuntime: func(b backend) backend { return forgetsStop{b} }},
	{row: "R09", without: "one write per state: a status is written in two parts", sees: "partially written", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return splitsStatus{next} }},
	{row: "R10", without: "the UID in a stop: a stop ends all processes of the namespace", sees: "created after", patient: true,
		wrapRuntime: func(b backend) backend { return stopsNamespace{b} }},
	{row: "R11", without: "idempotent starts: a second request starts a second process", sees: "one process per object", patient: true,
		wrapRuntime: func(b backend) backend { return &startsAgain{backend: b, asked: map[string]bool{}} }},
	{row: "R12", without: "independence of objects: clients that contend for one object hold a lock on all objects", sees: "contention", patient: true, slow: true, includesUsers: true,
		wrapTransport: (&contendedLock{}).wrap},
	{row: "R13", without: "a stop that returns immediately: a stop waits until the process exits", sees: "delayed by slow stops",
		wrapRuntime: func(b backend) backend { return waitsForEnd{b} }},
	{row: "R14", without: "the refusal of a create whose name is taken: the create changes the existing object", sees: "exactly one create succeeds", includesUsers: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return upserts{next} }},
	{row: "R16", without: "the optimistic lock on the version from which a status was derived: any version is overwritten", sees: "older than", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return stampsNewest{next} }},
	{row: "R17", without: "the list of counted runs that still have their finalizer: the list is not written", sees: "each failure is counted once", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &forgetsCounted{next: next, tried: map[string]bool{}}
		}},
	{row: "R18", without: "the threshold: the breaker opens one failure too late", sees: "open exactly from the threshold", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return changesStatus{next, opensLate} }},
	{row: "R19", without: "one write for failures and breaker: readers see the state between two writes", sees: "at every read", patient: true, slow: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return splitsBreakerWrites{next} }},
	{row: "R20", without: "the read that bypasses the cache: a run sees an earlier state of the breaker", sees: "no process", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &staleBreaker{next: next, first: map[string][]byte{}}
		}},
	{row: "R21", without: "epochs: a run that began before a reset counts after the reset", sees: "no run that began before", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return changesStatus{next, keepsEpoch} }},
	{row: "R22", without: "the absence of nested locks: a release needs a lock that the manager already holds", sees: "an operation does not complete",
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return nestedLock{next, make(chan struct{}, 1)} }},
	{row: "R28", without: "the clean-up of a failed start: a file stays open and a child is not reaped", sees: "left behind", slow: true,
		wrapRuntime: func(b backend) backend { return &leaksOnStart{backend: b} }},
	{row: "R32", without: "state that outlives a manager: a process that the manager did not start itself counts as dead", sees: "counted as failed", losesState: true},
	{row: "R33", without: "idempotent starts: a second request starts a second process", sees: "one execution", patient: true,
		wrapRuntime: func(b backend) backend { return &startsAgain{backend: b, asked: map[string]bool{}} }},
	{row: "S02", without: "status by UID: the status is remembered by name", sees: "of the previous object", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &remembersName{next: next, last: map[string]any{}}
		}},
	{row: "S03", without: "optimistic concurrency: the last writer wins", sees: "lost", patient: true, includesUsers: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return lastWins{next} }},
	{row: "S05", without: "the precondition of a deletion: any object with the name is deleted", sees: "deleted although", patient: true,
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return deletesBlindly{next} }},
	{row: "S07", without: "the start time in the identity of a process: only PIDs are compared", sees: "is detected as exited", pidOnly: true},
	{row: "S08", without: "the quota that the API server enforces: clients check the limit before they create", sees: "exactly ten", patient: true, noQuota: true},
	{row: "S09", without: "arbitration: a port always counts as free", sees: "one owner",
		wrapRuntime:   func(b backend) backend { return hidesPortOwner{b} },
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return hidesOtherServers{next} }},
	{row: "S10", without: "the tracking of a server that fails verification: the server counts as nonexistent", sees: "tracked",
		wrapRuntime: func(b backend) backend { return &dropsUnverified{backend: b, port: map[string]int32{}} }},
	{row: "S11", without: "the check before the finalizer is removed: a process that was asked to stop counts as gone", sees: "was deleted while", patient: true,
		wrapRuntime: func(b backend) backend { return &stopMeansGone{backend: b, asked: map[string]bool{}} }},
	{row: "S11-vanished", without: "the wait for processes of vanished objects: the runtime reports only the processes of the newest object", sees: "one process per object", patient: true,
		wrapRuntime: func(b backend) backend { return &hidesVanished{backend: b} }},
	{row: "S12", without: "the UID as key: processes are identified by their command", sees: "each object has its own process",
		wrapRuntime: func(b backend) backend { return &identifiesByCommand{backend: b, first: map[string]incarnationRef{}} }},
	{row: "S13", without: "the snapshot: a list iterates over a changing set", sees: "every list", patient: true,
		wrapRuntime: func(b backend) backend { return listsLive{b} }},
	{row: "S14", without: "the check after a kill: an attempted kill counts as done", sees: "reported stopped", patient: true,
		wrapRuntime: func(b backend) backend { return &killMeansGone{backend: b, killed: map[string]bool{}} }},
	{row: "S15", without: "a cursor per reader: all readers share one cursor", sees: "every line",
		wrapRuntime: func(b backend) backend { return &sharedCursor{backend: b} }},
	{row: "R23", without: "the restart in the status: the condition Restarting is not reported", sees: "the server is neither ready nor restarting",
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return forgetsRestart{next} }},
	{row: "R24", without: "the holding of requests: a request without a ready server is refused with a retriable error", sees: "retriable",
		wrapLanguages: func(b languageBackend) languageBackend { return changesConfig{b, holdsNothing} }},
	{row: "R25", without: "the record of the last restart that was carried out: the record is removed", sees: "one restart for",
		wrapTransport: func(next http.RoundTripper) http.RoundTripper { return forgetsToken{next} }},
	{row: "R26", without: "one server per object: a restart and a start create two servers", sees: "a start ran in addition to the restart",
		wrapRuntime: func(b backend) backend { return hidesSecondServers{b} },
		wrapLanguages: func(b languageBackend) languageBackend {
			return &startsSecond{languageBackend: b, asked: map[string]runtime.Process{}, when: func(p runtime.Process, again bool) bool { return !again && p.Incarnation > 1 }}
		}},
	{row: "R27", without: "idempotent starts: a second request starts a second process", sees: "one spawn for all callers",
		wrapRuntime: func(b backend) backend { return hidesSecondServers{b} },
		wrapLanguages: func(b languageBackend) languageBackend {
			return &startsSecond{languageBackend: b, asked: map[string]runtime.Process{}, when: func(_ runtime.Process, again bool) bool { return again }}
		}},
	{row: "R29", without: "the health check: a server may be silent for 24 hours", sees: "the other client of", slow: true,
		wrapLanguages: func(b languageBackend) languageBackend { return changesConfig{b, neverHung} }},
	{row: "R30", without: "the check for disconnected clients: a lost client is not noticed", sees: "left open", ignoresDisconnects: true},
	{row: "S17", without: "consumers derived from connections: disconnected clients still count", sees: "has 4 consumers",
		wrapLanguages: func(b languageBackend) languageBackend {
			return &countsDisconnected{languageBackend: b, most: map[types.UID]int{}}
		}},
	{row: "S18", without: "a stop that is final: a stopped server is started again", sees: "resurrected", wrapRuntime: func(b backend) backend { return hidesSecondServers{b} },
		wrapLanguages: func(b languageBackend) languageBackend {
			return &restartsStopped{startsSecond{languageBackend: b, asked: map[string]runtime.Process{}, when: func(runtime.Process, bool) bool { return false }}}
		}},
	{row: "S19", without: "the host of an object: every manager serves all objects", sees: "one process per object", patient: true, slow: true, noHostNames: true},
	{row: "D01", without: "the proxy: clients connect to the server itself", sees: "requests failed", slow: true, noProxy: true},
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
func (m *mutant) runtime(b backend) backend {
	if m == nil || m.wrapRuntime == nil {
		return b
	}
	return m.wrapRuntime(b)
}

// languages returns the runtime of language servers as the manager sees it.
func (m *mutant) languages(b languageBackend) languageBackend {
	if m == nil || m.wrapLanguages == nil {
		return b
	}
	return m.wrapLanguages(b)
}

// managers returns the client configuration of managers; users returns that of all other clients.
func (m *mutant) managers(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	if m != nil && m.wrapTransport != nil {
		config.Wrap(m.wrapTransport)
	}
	return config
}

func (m *mutant) users(config *rest.Config) *rest.Config {
	if m == nil || !m.includesUsers {
		return rest.CopyConfig(config)
	}
	return m.managers(config)
}
