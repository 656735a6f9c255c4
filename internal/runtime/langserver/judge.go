// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"fmt"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
)

// This file decides, without I/O, clock or lock, what is reported about the server (judge), and what the goroutine of a link does next (next).

// judge derives the state of the server.
func judge(v view, held *facts.Incarnation, state lsp.Report) *facts.Incarnation {
	switch {
	case held == nil || !held.Alive() || v.phase == phaseStarting:
		return gone(v, held, state)
	case held.Phase == facts.Unknown:
		return unknown(newestOf(v, state), held.Message)
	case held.LeaderExit != nil:
		return dying(v, held, state)
	case held.Phase == facts.Starting && v.noted > 0:
		return &facts.Incarnation{Number: v.noted, Phase: facts.Starting, Message: held.Message, StopSent: held.StopSent}
	}
	return living(v, state)
}

func newestOf(v view, state lsp.Report) int64 {
	newest := max(state.Incarnation, v.pending, v.cancelled, v.noted)
	if v.report != nil {
		newest = max(newest, v.report.Incarnation)
	}
	return newest
}

// gone handles a multiplexer that is not running. Its server is not running either, because the server was in the process tree of the multiplexer.
func gone(v view, held *facts.Incarnation, state lsp.Report) *facts.Incarnation {
	newest := newestOf(v, state)
	switch {
	case newest == 0:
		return nil
	case newest == state.Incarnation && (state.Exit != nil || state.StartError != nil):
		return translate(state)
	}
	found := &facts.Incarnation{Number: newest}
	if newest == state.Incarnation {
		found = translate(state)
	}
	if held != nil && held.Phase == facts.Failed && newest == max(v.pending, v.noted) {
		found.Phase, found.StartError = facts.Failed, held.StartError
		return found
	}
	found.Phase = facts.Exited
	if found.Exit, found.LeaderExit = found.LeaderExit, nil; found.Exit != nil {
		return found // the server itself had exited, and the multiplexer exited before the rest of the server's tree
	}
	found.Exit = &facts.Exit{Message: "the exit status of the server is unknown, because its multiplexer was not running"}
	if held != nil && held.Exit != nil {
		found.Exit.FinishedAt = held.Exit.FinishedAt
		found.Exit.Message = "the exit status of the server is unknown, because its multiplexer " + describe(held.Exit) + " first"
		if held.Exit.Message != "" {
			found.Exit.Message += ": " + held.Exit.Message
		}
	}
	return found
}

func describe(exit *facts.Exit) string {
	switch {
	case !exit.Known:
		return "exited with unknown status"
	case exit.Signal != "":
		return "was terminated by " + exit.Signal
	default:
		return fmt.Sprintf("ended with exit code %d", exit.Code)
	}
}

func unknown(number int64, message string) *facts.Incarnation {
	if number == 0 {
		return nil
	}
	return &facts.Incarnation{Number: number, Phase: facts.Unknown, Message: message}
}

// dying handles a multiplexer that has exited while the rest of its process tree is still being terminated.
func dying(v view, held *facts.Incarnation, state lsp.Report) *facts.Incarnation {
	newest := newestOf(v, state)
	found := &facts.Incarnation{Number: newest}
	switch {
	case newest == 0:
		return nil
	case newest == state.Incarnation && (state.Exit != nil || state.StartError != nil):
		return ending(v, translate(state))
	case newest == state.Incarnation:
		found = translate(state)
	}
	found.Phase = facts.Running
	if found.LeaderExit == nil {
		found.LeaderExit = &facts.Exit{FinishedAt: held.LeaderExit.FinishedAt, Message: "its multiplexer " + describe(held.LeaderExit)}
	}
	return found
}

// living handles a multiplexer that is running.
func living(v view, state lsp.Report) *facts.Incarnation {
	said := state
	if v.report != nil && v.report.Incarnation > 0 {
		said = *v.report
	}
	switch {
	case v.pending > said.Incarnation && (v.report != nil || v.young):
		return &facts.Incarnation{Number: v.pending, Phase: facts.Starting}
	case v.report == nil && !v.bare:
		return unknown(newestOf(v, state), "the multiplexer of the language server is running but cannot be reached")
	case v.cancelled > said.Incarnation:
		return ending(v, &facts.Incarnation{Number: v.cancelled, Phase: facts.Exited, Exit: &facts.Exit{Message: "the server was stopped before it was started"}})
	case said.Incarnation == 0:
		return nil
	}
	return ending(v, translate(said))
}

// ending reports an exited server as running while its multiplexer, which must exit too, is still running. An exit that was already reported is returned
// unchanged.
func ending(v view, found *facts.Incarnation) *facts.Incarnation {
	if !v.leaving || found.Alive() || found.Number <= v.told {
		return found
	}
	found.LeaderExit = found.Exit
	if found.LeaderExit == nil {
		found.LeaderExit = &facts.Exit{Message: "the server could not be started"}
	}
	found.Phase, found.Exit, found.StartError, found.StopSent = facts.Running, nil, nil, true
	return found
}

// translate converts a multiplexer's report to an Incarnation.
func translate(report lsp.Report) *facts.Incarnation {
	return &facts.Incarnation{
		Number: report.Incarnation, Phase: report.Phase, PID: report.PID, StartTicks: report.StartTicks, BootID: report.BootID,
		StartedAt: report.StartedAt, Exit: report.Exit, LeaderExit: report.LeaderExit, StartError: report.StartError, StopSent: report.StopSent,
	}
}

// lostWith marks a server as lost if it ended together with its Pod. If the server exited long before its multiplexer, the server exited for another reason and
// is not marked.
func lostWith(held, found *facts.Incarnation) {
	if held == nil || found.Exit == nil {
		return
	}
	if held.Exit == nil { // the multiplexer is running, and stops its server if its Pod is being deleted
		if held.PodName != "" && held.StopSent {
			found.Exit.Lost, found.Exit.Message = true, "its Pod was deleted"
		}
		return
	}
	at := found.Exit.FinishedAt
	if held.Exit.Lost && (at.IsZero() || held.Exit.FinishedAt.IsZero() || !at.Add(2*closing).Before(held.Exit.FinishedAt)) {
		found.Exit.Lost, found.Exit.Message = true, held.Exit.Message
	}
}

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
	client    *control.Client // the connection of this manager to the multiplexer, or nil
	report    *lsp.Report     // nil if it may be outdated
	young     bool            // the multiplexer was started or has reported recently
	pending   int64           // the incarnation of link.pending, or 0
	cancelled int64           // link.cancelled
	noted     int64           // the newest incarnation that the multiplexer was requested to start, if the site stores it
	told      int64           // the newest incarnation reported as exited
	leaving   bool            // the multiplexer must exit
	bare      bool            // the multiplexer was just started without a server

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
	case v.client != nil && mayQuit(v):
		return stepQuit
	case v.client != nil:
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
