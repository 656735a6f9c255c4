// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
)

const (
	settleTime       = time.Second      // how long a server must report no progress until the workspace counts as read
	progressGrace    = 10 * time.Second // replaces settleTime for a server that has never reported progress and has not answered the ping
	outputPatience   = 3 * time.Second  // how long a server may take to exit after its output has ended
	staleDiagnostics = 60 * time.Second // how long old diagnostics are kept after a restart if the server does not publish them again

	cpuPeriod    = 2 * time.Second // the interval between two measurements of a silent server's CPU time
	lateInARow   = 3               // how many different requests must time out without a success before the server counts as hung
	canaryInARow = 3               // how many consecutive canary requests must fail before the server is restarted
	busyFactor   = 5               // how many times HangTimeout a server that uses CPU may be silent
	startFactor  = 6               // how many times StartupTimeout a server that sends messages may take to start
	// unreadBytes is the default of Options.UnreadBytes.
	unreadBytes = 64 << 20
	doesNotRead = "the language server does not read its standard input"
)

// health is what the multiplexer remembers to judge one incarnation of the server. Its methods read only it and their arguments. They send nothing: examine
// returns what has to be done, and Mux does it.
type health struct {
	attachedAt time.Time
	readyAt    time.Time // when the server was initialized and had received the documents; zero until then
	endedAt    time.Time // when the server's output ended; zero until then
	overflow   bool      // the server does not read its input, and a message was lost

	workAt     time.Time // when progress that belongs to no request was last received
	worked     bool      // such progress was received
	busyStatus bool      // the server reports that it is not quiescent
	responsive bool      // the server has answered the ping that follows the initialized notification
	indexed    bool
	indexedBy  string

	pinged   bool // a ping is not answered yet
	silence  silence
	timedOut map[string]bool // requests that timed out since the last success

	canaryAt      time.Time // when the next canary request is due
	canaryBad     int       // number of consecutive canary requests that failed
	canaryMessage string

	fault        string // why the server has to be restarted, or empty; a faulty server receives no more requests
	faultMessage string
}

// silence holds the CPU time of a server when it fell silent, and at the last measurement.
type silence struct {
	since, measured, last time.Time
	cpu, newest           time.Duration
}

// vitals are the facts about a server, at one moment, that are kept elsewhere.
type vitals struct {
	now        time.Time
	heard      time.Time // when the last output of the server was received
	owedSince  time.Time // when the oldest pending request was sent; now if there is none
	canarySent time.Time // when the pending canary request was sent; zero if there is none
	tasks      int       // how many tasks of the server are in progress
}

// finding is what an examination found to be done.
type finding struct {
	fault, message string // the server has to be restarted
	indexed        bool   // the server has read its workspace now
	outdated       bool   // diagnostics of earlier incarnations that this server has not published again are to be removed
	ping, canary   bool   // the request is to be sent
	canaryLate     bool   // the pending canary request was not answered in time
}

// examine judges the server.
func (h *health) examine(v vitals, c *lsp.Config) finding {
	switch {
	case !h.endedAt.IsZero() && v.now.Sub(h.endedAt) >= outputPatience:
		return finding{fault: lsp.ReasonProtocolError, message: "the language server closed its standard output but is still running"}
	case h.overflow:
		return finding{fault: lsp.ReasonHung, message: doesNotRead}
	case len(h.timedOut) >= lateInARow:
		return finding{fault: lsp.ReasonHung, message: fmt.Sprintf("the language server did not answer %d consecutive requests within %s", len(h.timedOut), c.Limits.RequestTimeout)}
	case h.readyAt.IsZero():
		return h.examineStart(v, c)
	}
	f := finding{indexed: h.examineWork(v, c), outdated: v.now.Sub(h.readyAt) >= staleDiagnostics}
	if h.indexed {
		h.examineSilence(v, c, &f)
		h.examineUse(v, c, &f)
	}
	return f
}

func (h *health) examineStart(v vitals, c *lsp.Config) (f finding) {
	last := latest(h.attachedAt, v.heard)
	if total := v.now.Sub(h.attachedAt); v.now.Sub(last) >= c.StartupTimeout || total >= startFactor*c.StartupTimeout {
		f.fault, f.message = lsp.ReasonHung, fmt.Sprintf("the language server has not answered initialize for %s", total.Round(time.Second))
	}
	return f
}

// examineWork determines whether the server has read its workspace, and returns true when it first has.
func (h *health) examineWork(v vitals, c *lsp.Config) bool {
	if h.indexed {
		return false
	}
	idle := v.tasks == 0 && !h.busyStatus
	quiet := v.now.Sub(h.workAt)
	switch {
	case idle && quiet >= settleTime && (h.worked || h.responsive):
		h.indexedBy = lsp.IndexedBySettled
	case idle && !h.worked && quiet >= progressGrace, quiet >= c.StartupTimeout:
		h.indexedBy = lsp.IndexedByProgressTimeout
	default:
		return false
	}
	h.indexed, h.canaryAt = true, v.now
	return true
}

// pingAfter returns how long a server may be silent before it is pinged: at most half of HangTimeout, so that it has the other half to answer.
func pingAfter(health lsp.Health) time.Duration {
	return min(health.PingAfter, health.HangTimeout/2)
}

// examineSilence pings a silent server. The server is hung if it has been silent for HangTimeout and has owed an answer since it was pinged. The second condition
// matters after the machine was suspended: the server has then been silent for long, but was not asked. Any output ends the silence.
func (h *health) examineSilence(v vitals, c *lsp.Config, f *finding) {
	silent := v.now.Sub(v.heard)
	if silent < pingAfter(c.Health) {
		return
	}
	f.ping = !h.pinged
	h.pinged = true
	patience := c.Health.HangTimeout
	if h.silence.since.Equal(v.heard) && h.silence.computes() {
		patience *= busyFactor
	}
	if silent >= patience && v.now.Sub(v.owedSince) >= patience-pingAfter(c.Health) {
		f.fault, f.message = lsp.ReasonHung, fmt.Sprintf("the language server has pending requests but has sent nothing for %s", silent.Round(time.Second))
	}
}

// examineUse determines when the canary request is sent, whose answer shows whether the server returns usable results.
func (h *health) examineUse(v vitals, c *lsp.Config, f *finding) {
	canary := c.Health.Canary
	switch {
	case canary.Method == "" || v.now.Before(h.canaryAt):
	case !v.canarySent.IsZero():
		f.canaryLate = v.now.Sub(v.canarySent) >= c.Limits.RequestTimeout
	default:
		f.canary, h.canaryAt = true, v.now.Add(canary.Period)
	}
}

// canaryAnswered records the answer to the canary request. problem states why the answer is not usable; empty if it is. It returns true if
// the server has to be restarted.
func (h *health) canaryAnswered(method, problem string) bool {
	if problem == "" {
		h.canaryBad = 0
		return false
	}
	h.canaryBad++
	h.canaryMessage = fmt.Sprintf("the language server did not return a usable response to %s: %s", method, problem)
	return h.canaryBad >= canaryInARow
}

// wantsCPU reports whether the CPU time of the server has to be measured: when it has just fallen silent, and every cpuPeriod once it has been silent for
// HangTimeout.
func (h *health) wantsCPU(now, heard time.Time, c *lsp.Config) bool {
	silent := now.Sub(heard)
	if !h.indexed || h.fault != "" || silent < pingAfter(c.Health) {
		return false
	}
	return !h.silence.since.Equal(heard) || silent >= c.Health.HangTimeout && now.Sub(h.silence.last) >= cpuPeriod
}

func (h *health) noteCPU(now, heard time.Time, cpu time.Duration) {
	if !h.silence.since.Equal(heard) {
		h.silence = silence{since: heard, measured: now, cpu: cpu}
	}
	h.silence.last, h.silence.newest = now, cpu
}

// computes reports whether a silent server is working: since it fell silent, it has used at least 1% of one CPU.
func (s silence) computes() bool {
	computed := s.newest - s.cpu
	return computed > 0 && computed >= s.last.Sub(s.measured)/100
}
