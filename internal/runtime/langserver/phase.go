// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
)

// This file decides, without I/O, clock or lock, what the goroutine of a link does next (next). judge.go decides what is reported about the server.

// phase is what this manager does with the multiplexer of a UID. Only the Host reports whether a multiplexer is running.
//
//	none ─── Start ──────────────────────► starting ──► running ─── Quit ───────► quitting
//	none ─── Keep ──► reviving ── delay ──► starting ──► bare ─── connection ──► running
//
// A failed start leads back to the phase before it, and a failed revival to none. A multiplexer that the Host reports as running leads from none and reviving to running. A multiplexer
// that is gone leads to none. A new connection always leads to running, because Quit may have been lost with the previous one.
type phase string

const (
	phaseNone     phase = ""         // no multiplexer is known
	phaseReviving phase = "reviving" // a multiplexer is started after a delay, without a server
	phaseStarting phase = "starting" // a multiplexer is being started; the other fields of the link still describe the previous one
	phaseBare     phase = "bare"     // the multiplexer was started without a server, and has not reported yet
	phaseRunning  phase = "running"  // the connection to the multiplexer is maintained
	phaseQuitting phase = "quitting" // Quit was sent; the connection is maintained until the multiplexer has exited
)

// step is what the goroutine of a link does next.
type step string

const (
	stepEnd     step = "end"     // end the goroutine
	stepDiscard step = "discard" // discard the last report, because the multiplexer is gone, and end the goroutine
	stepWait    step = "wait"    // wait for a change
	stepConnect step = "connect" // connect to the multiplexer
	stepRevive  step = "revive"  // start a multiplexer without a server, after the delay
	stepQuit    step = "quit"    // send Quit
)

// view is a snapshot of a link.
type view struct {
	phase     phase
	connected bool        // this manager is connected to the multiplexer
	report    *lsp.Report // nil if it may be outdated
	young     bool        // the multiplexer was started or has reported recently
	pending   int64       // the incarnation of link.pending, or 0
	cancelled int64       // link.cancelled
	noted     int64       // the newest incarnation that the multiplexer was requested to start, if the site stores it
	told      int64       // the newest incarnation reported as exited
	leaving   bool        // the multiplexer must exit
	bare      bool        // the multiplexer was just started without a server

	generation int64
}

// next decides what the goroutine of a link does. held is the newest multiplexer, or nil if there is none; it is valid only if observed is true.
func next(v view, held *facts.Incarnation, observed bool) step {
	switch v.phase {
	case phaseNone:
		return stepEnd
	case phaseStarting:
		return stepWait
	case phaseReviving:
		switch {
		case !observed || held == nil: // the first multiplexer is started with the first server
			return stepEnd
		case held.Alive():
			return stepConnect
		case v.leaving:
			return stepEnd
		}
		return stepRevive
	}
	switch {
	case v.connected && mayQuit(v):
		return stepQuit
	case v.connected:
		return stepWait
	case observed && (held == nil || !held.Alive()):
		return stepDiscard
	}
	return stepConnect
}

// mayQuit reports whether a multiplexer has no server and need not be kept.
func mayQuit(v view) bool {
	return v.phase == phaseRunning && v.leaving && v.pending == 0 && v.report != nil && !serverLives(*v.report)
}

// serverLives reports whether a process of the server may be running.
func serverLives(report lsp.Report) bool {
	return report.Phase == facts.Starting || report.Phase == facts.Running
}
