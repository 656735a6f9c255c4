// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
)

// TestObserve_RunningMultiplexer checks what is observed for a running multiplexer.
func TestObserve_RunningMultiplexer(t *testing.T) {
	exit := &facts.Exit{Known: true, Code: 2}
	running, ended := lsp.Report{Incarnation: 3, Phase: facts.Running, PID: 7}, lsp.Report{Incarnation: 3, Phase: facts.Exited, Exit: exit}
	failed := lsp.Report{Incarnation: 3, Phase: facts.Failed, StartError: &facts.StartError{Reason: "CommandNotFound"}}
	for name, c := range map[string]struct {
		view  view
		state lsp.Report
		want  facts.Incarnation
	}{
		"no server was started":              {view: view{report: &lsp.Report{}}},
		"no server was started, no response": {},
		"server running":                     {view: view{report: &running}, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Running, PID: 7}},
		"no response":                        {state: running, want: facts.Incarnation{Number: 3, Phase: facts.Unknown}},
		"no response, server had exited":     {state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Unknown}},
		"multiplexer just started":           {view: view{pending: 4, young: true}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Starting}},
		"start not delivered for long":       {view: view{pending: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Unknown}},
		"start about to be delivered":        {view: view{pending: 4, report: &ended}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Starting}},
		"multiplexer without a server":       {view: view{bare: true}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"new multiplexer":                    {view: view{report: &lsp.Report{}}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"start cancelled":                    {view: view{report: &ended, cancelled: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Exited, Exit: &facts.Exit{}}},
		"server exited":                      {view: view{report: &ended}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"quitting, server exited":            {view: view{report: &ended, leaving: true}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Running, LeaderExit: exit, StopSent: true}},
		"quitting, server never ran":         {view: view{report: &failed, leaving: true}, state: failed, want: facts.Incarnation{Number: 3, Phase: facts.Running, LeaderExit: &facts.Exit{}, StopSent: true}},
		"quitting, server running":           {view: view{report: &running, leaving: true}, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Running, PID: 7}},
		"quitting, exit already reported":    {view: view{report: &ended, leaving: true, told: 3}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			expectIncarnation(g, living(c.view, c.state), c.want)
		})
	}
}

// TestObserve_ExitedMultiplexer checks what is observed after the exit of a multiplexer.
func TestObserve_ExitedMultiplexer(t *testing.T) {
	at := time.Unix(1000, 0)
	lost := &facts.Exit{FinishedAt: at}
	killed := &facts.Incarnation{Number: 9, Phase: facts.Exited, Exit: &facts.Exit{Known: true, Signal: "SIGKILL", FinishedAt: at}}
	refused := &facts.Incarnation{Number: 9, Phase: facts.Failed, StartError: &facts.StartError{Reason: "CommandNotFound"}}
	exit := &facts.Exit{Known: true, Code: 2}
	running, ended := lsp.Report{Incarnation: 3, Phase: facts.Running, PID: 7}, lsp.Report{Incarnation: 3, Phase: facts.Exited, Exit: exit}
	left := lsp.Report{Incarnation: 3, Phase: facts.Running, LeaderExit: exit}
	for name, c := range map[string]struct {
		view  view
		held  *facts.Incarnation
		state lsp.Report
		want  facts.Incarnation
	}{
		"no server was started":          {held: killed},
		"no multiplexer":                 {},
		"server exited before":           {held: killed, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"server was running":             {held: killed, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Exited, PID: 7, Exit: lost}},
		"rest of the tree was alive":     {held: killed, state: left, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"start not delivered":            {held: killed, view: view{pending: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Exited, Exit: lost}},
		"multiplexer failed to start":    {held: refused, view: view{pending: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Failed}},
		"record of the multiplexer lost": {state: running, want: facts.Incarnation{Number: 3, Phase: facts.Exited, PID: 7, Exit: &facts.Exit{}}},
		"start cancelled before":         {held: killed, view: view{cancelled: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Exited, Exit: lost}},
		"quit on request":                {held: killed, view: view{leaving: true}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			expectIncarnation(g, gone(c.view, c.held, c.state), c.want)
		})
	}
}

// TestObserve_ExitingMultiplexer checks that the observed identity of the server does not change while its multiplexer exits.
func TestObserve_ExitingMultiplexer(t *testing.T) {
	held := &facts.Incarnation{Number: 9, Phase: facts.Running, PID: 100, LeaderExit: &facts.Exit{Known: true, Signal: "SIGKILL"}}
	exit := &facts.Exit{Known: true, Code: 2}
	for name, c := range map[string]struct {
		view  view
		state lsp.Report
		want  facts.Incarnation
	}{
		"no server was started": {},
		"server was running":    {state: lsp.Report{Incarnation: 3, Phase: facts.Running, PID: 7}, want: facts.Incarnation{Number: 3, Phase: facts.Running, PID: 7, LeaderExit: &facts.Exit{}}},
		"server had exited":     {state: lsp.Report{Incarnation: 3, Phase: facts.Exited, Exit: exit}, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"start not delivered":   {view: view{pending: 4}, want: facts.Incarnation{Number: 4, Phase: facts.Running, LeaderExit: &facts.Exit{}}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			expectIncarnation(g, dying(c.view, held, c.state), c.want)
		})
	}
}

// expectIncarnation compares an observed incarnation with the expected one, except for the messages.
func expectIncarnation(g Gomega, got *facts.Incarnation, want facts.Incarnation) {
	if want.Number == 0 {
		g.Expect(got).To(BeNil())
		return
	}
	g.Expect(got).NotTo(BeNil())
	g.Expect(got.StartError != nil).To(Equal(want.Phase == facts.Failed))
	said := *got
	said.Message, said.StartError = "", nil
	for _, exit := range []*facts.Exit{said.Exit, said.LeaderExit} {
		if exit != nil && !exit.Known {
			g.Expect(exit.Message).NotTo(BeEmpty())
			exit.Message = ""
		}
	}
	g.Expect(said).To(Equal(want))
}

// The exit of a server counts as lost if its Pod was lost, unless the server had exited well before the Pod.
func TestLostWith_MarksExitLostWithPod(t *testing.T) {
	g := NewWithT(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	held := &facts.Incarnation{Phase: facts.Exited, Exit: &facts.Exit{Lost: true, Message: "evicted", FinishedAt: at}}
	for name, test := range map[string]struct {
		exit *facts.Exit
		lost bool
		says string
	}{
		"exited with the Pod":   {&facts.Exit{Known: true, Signal: "SIGTERM", FinishedAt: at.Add(-time.Second)}, true, "evicted"},
		"exit not observed":     {&facts.Exit{Message: "the exit was not observed"}, true, "evicted"},
		"exited before the Pod": {&facts.Exit{Known: true, Code: 3, FinishedAt: at.Add(-time.Minute), Message: "its own"}, false, "its own"},
	} {
		found := &facts.Incarnation{Phase: facts.Exited, Exit: test.exit}
		lostWith(held, found)
		g.Expect(found.Exit.Lost).To(Equal(test.lost), name)
		g.Expect(found.Exit.Message).To(Equal(test.says), name)
	}
	deleted := &facts.Incarnation{Phase: facts.Running, PodName: "lsp", StopSent: true}
	found := &facts.Incarnation{Phase: facts.Exited, Exit: &facts.Exit{Known: true}}
	lostWith(deleted, found)
	g.Expect(found.Exit.Lost).To(BeTrue(), "its multiplexer is exiting")
	own := &facts.Incarnation{Exit: &facts.Exit{Known: true}}
	lostWith(&facts.Incarnation{Exit: &facts.Exit{FinishedAt: at}}, own)
	lostWith(nil, own)
	lostWith(held, &facts.Incarnation{Phase: facts.Running})
	g.Expect(own.Exit.Lost).To(BeFalse())
}
