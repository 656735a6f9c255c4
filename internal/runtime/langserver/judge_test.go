// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
)

// connection stands for the connection to a multiplexer.
var connection = &control.Client{}

// TestNext_DecidesWhatToDoWithMultiplexer checks the next step for each phase of a multiplexer and what the Host reports about it.
func TestNext_DecidesWhatToDoWithMultiplexer(t *testing.T) {
	alive, exited := &facts.Incarnation{Phase: facts.Running}, &facts.Incarnation{Phase: facts.Exited}
	none, starting, running := &lsp.Report{}, &lsp.Report{Incarnation: 3, Phase: facts.Starting}, &lsp.Report{Incarnation: 3, Phase: facts.Running}
	ended, failed := &lsp.Report{Incarnation: 3, Phase: facts.Exited}, &lsp.Report{Incarnation: 3, Phase: facts.Failed}
	for name, c := range map[string]struct {
		view    view
		held    *facts.Incarnation
		unknown bool // the Host could not be queried
		want    step
	}{
		"nothing to do": {view: view{phase: phaseNone}, want: stepEnd},
		"nothing to do, a multiplexer is running":        {view: view{phase: phaseNone}, held: alive, want: stepEnd},
		"nothing to do, still connected":                 {view: view{phase: phaseNone, client: connection, report: running}, held: alive, want: stepEnd},
		"reviving":                                       {view: view{phase: phaseReviving}, held: exited, want: stepRevive},
		"reviving, no longer needed":                     {view: view{phase: phaseReviving, leaving: true}, held: exited, want: stepEnd},
		"reviving, a multiplexer is running":             {view: view{phase: phaseReviving}, held: alive, want: stepConnect},
		"reviving, a multiplexer is in an unknown state": {view: view{phase: phaseReviving}, held: &facts.Incarnation{Phase: facts.Unknown}, want: stepConnect},
		"reviving, there never was a multiplexer":        {view: view{phase: phaseReviving}, want: stepEnd},
		"reviving, unknown":                              {view: view{phase: phaseReviving}, unknown: true, want: stepEnd},
		"starting":                                       {view: view{phase: phaseStarting}, held: exited, want: stepWait},
		"starting, already running":                      {view: view{phase: phaseStarting}, held: alive, want: stepWait},
		"starting, connection to the previous one":       {view: view{phase: phaseStarting, client: connection, leaving: true, report: ended}, unknown: true, want: stepWait},
		"started without a server":                       {view: view{phase: phaseBare, bare: true}, held: alive, want: stepConnect},
		"started without a server, exited":               {view: view{phase: phaseBare, bare: true}, held: exited, want: stepDiscard},
		"not connected":                                  {view: view{phase: phaseRunning}, held: alive, want: stepConnect},
		"not connected, server exited, not needed":       {view: view{phase: phaseRunning, leaving: true, report: ended}, held: alive, want: stepConnect},
		"not connected, pending start":                   {view: view{phase: phaseRunning, pending: 4}, held: alive, want: stepConnect},
		"not connected, unknown":                         {view: view{phase: phaseRunning}, unknown: true, want: stepConnect},
		"exited":                                         {view: view{phase: phaseRunning, report: running}, held: exited, want: stepDiscard},
		"exited, record lost":                            {view: view{phase: phaseRunning, report: running}, want: stepDiscard},
		"connected":                                      {view: view{phase: phaseRunning, client: connection, report: running}, unknown: true, want: stepWait},
		"connected, server exited, multiplexer is kept":  {view: view{phase: phaseRunning, client: connection, report: ended}, unknown: true, want: stepWait},
		"not needed, server exited":                      {view: view{phase: phaseRunning, client: connection, leaving: true, report: ended}, unknown: true, want: stepQuit},
		"not needed, server could not be started":        {view: view{phase: phaseRunning, client: connection, leaving: true, report: failed}, unknown: true, want: stepQuit},
		"not needed, no server was started":              {view: view{phase: phaseRunning, client: connection, leaving: true, report: none}, unknown: true, want: stepQuit},
		"not needed, server is starting":                 {view: view{phase: phaseRunning, client: connection, leaving: true, report: starting}, unknown: true, want: stepWait},
		"not needed, server is running":                  {view: view{phase: phaseRunning, client: connection, leaving: true, report: running}, unknown: true, want: stepWait},
		"not needed, pending start":                      {view: view{phase: phaseRunning, client: connection, leaving: true, report: ended, pending: 4}, unknown: true, want: stepWait},
		"not needed, no report":                          {view: view{phase: phaseRunning, client: connection, leaving: true}, unknown: true, want: stepWait},
		"quitting":                                       {view: view{phase: phaseQuitting, client: connection, leaving: true, report: ended}, unknown: true, want: stepWait},
		"quitting, connection lost":                      {view: view{phase: phaseQuitting, leaving: true, report: ended}, held: alive, want: stepConnect},
		"quitting, exited":                               {view: view{phase: phaseQuitting, leaving: true, report: ended}, held: exited, want: stepDiscard},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(next(c.view, c.held, !c.unknown)).To(Equal(c.want))
		})
	}
}

// TestNext_NeverQuitsNeededMultiplexer checks, for all combinations of the facts, that the goroutine neither sends Quit to a multiplexer that is needed nor starts a
// second one.
func TestNext_NeverQuitsNeededMultiplexer(t *testing.T) {
	g := NewWithT(t)
	for _, p := range []phase{phaseNone, phaseReviving, phaseStarting, phaseBare, phaseRunning, phaseQuitting} {
		for _, server := range []facts.Phase{lsp.None, facts.Starting, facts.Running, facts.Exited, facts.Failed} {
			for _, multiplexer := range []facts.Phase{"", facts.Starting, facts.Running, facts.Unknown, facts.Exited, facts.Failed} {
				for bits := range 16 {
					leaving, observed := bits&2 != 0, bits&4 != 0
					v := view{phase: p, leaving: leaving, pending: int64(bits >> 3), report: &lsp.Report{Phase: server}}
					if bits&1 != 0 {
						v.client = connection
					}
					var held *facts.Incarnation
					if multiplexer != "" {
						held = &facts.Incarnation{Phase: multiplexer}
					}
					switch does := next(v, held, observed); does {
					case stepQuit:
						g.Expect(v.leaving && v.client != nil && v.pending == 0 && !serverLives(*v.report)).To(BeTrue(), "%s: %+v", does, v)
					case stepRevive:
						g.Expect(observed && held != nil && !held.Alive() && !v.leaving).To(BeTrue(), "%s: %+v %+v", does, v, held)
					case stepDiscard:
						g.Expect(observed && (held == nil || !held.Alive()) && v.client == nil).To(BeTrue(), "%s: %+v %+v", does, v, held)
					case stepConnect:
						g.Expect(v.client != nil && p != phaseReviving).To(BeFalse(), "%s: %+v", does, v)
					}
				}
			}
		}
	}
}

// TestJudge_UsesWhatTheHostReports checks that the state of the multiplexer determines how the state of the server is derived.
func TestJudge_UsesWhatTheHostReports(t *testing.T) {
	exit := &facts.Exit{Known: true, Code: 2}
	running, ended := lsp.Report{Incarnation: 3, Phase: facts.Running, PID: 7}, lsp.Report{Incarnation: 3, Phase: facts.Exited, Exit: exit}
	alive, exited := &facts.Incarnation{Number: 9, Phase: facts.Running}, &facts.Incarnation{Number: 9, Phase: facts.Exited}
	for name, c := range map[string]struct {
		view  view
		held  *facts.Incarnation
		state lsp.Report
		want  facts.Incarnation
	}{
		"no multiplexer":     {},
		"running":            {view: view{phase: phaseRunning, report: &running}, held: alive, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Running, PID: 7}},
		"exited":             {view: view{phase: phaseRunning, report: &running}, held: exited, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"starting":           {view: view{phase: phaseStarting, report: &running}, held: alive, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"in unknown state":   {view: view{phase: phaseRunning, report: &running}, held: &facts.Incarnation{Phase: facts.Unknown}, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Unknown}},
		"exiting":            {view: view{phase: phaseRunning}, held: &facts.Incarnation{Phase: facts.Running, LeaderExit: exit}, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Running, PID: 7, LeaderExit: &facts.Exit{}}},
		"in a pending Pod":   {view: view{phase: phaseRunning, noted: 4}, held: &facts.Incarnation{Phase: facts.Starting}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Starting}},
		"starting on a host": {view: view{phase: phaseRunning, pending: 4, young: true}, held: &facts.Incarnation{Phase: facts.Starting}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Starting}},
	} {
		t.Run(name, func(t *testing.T) {
			expectIncarnation(NewWithT(t), judge(c.view, c.held, c.state), c.want)
		})
	}
}
