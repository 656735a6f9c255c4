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

// TestWhatIsSaidOfAMultiplexerThatRuns goes through what can be known of one.
func TestWhatIsSaidOfAMultiplexerThatRuns(t *testing.T) {
	exit := &facts.Exit{Known: true, Code: 2}
	running, ended := lsp.Report{Incarnation: 3, Phase: facts.Running, PID: 7}, lsp.Report{Incarnation: 3, Phase: facts.Exited, Exit: exit}
	failed := lsp.Report{Incarnation: 3, Phase: facts.Failed, StartError: &facts.StartError{Reason: "CommandNotFound"}}
	for name, c := range map[string]struct {
		view  view
		state lsp.Report
		want  facts.Incarnation
	}{
		"nothing was ever started":                 {view: view{report: &lsp.Report{}}},
		"nothing was ever started, and it is mute": {},
		"it runs":                             {view: view{report: &running}, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Running, PID: 7}},
		"it can't be reached":                 {state: running, want: facts.Incarnation{Number: 3, Phase: facts.Unknown}},
		"it can't be reached, but ended":      {state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Unknown}},
		"it was just started":                 {view: view{pending: 4, young: true}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Starting}},
		"it was told nothing for long":        {view: view{pending: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Unknown}},
		"it is about to be told":              {view: view{pending: 4, report: &ended}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Starting}},
		"it was started for nothing":          {view: view{bare: true}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"it is another one":                   {view: view{report: &lsp.Report{}}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"its start was taken back":            {view: view{report: &ended, cancelled: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Exited, Exit: &facts.Exit{}}},
		"its server has ended":                {view: view{report: &ended}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"it is to end, its server has":        {view: view{report: &ended, leaving: true}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Running, LeaderExit: exit, StopSent: true}},
		"it is to end, its server never ran":  {view: view{report: &failed, leaving: true}, state: failed, want: facts.Incarnation{Number: 3, Phase: facts.Running, LeaderExit: &facts.Exit{}, StopSent: true}},
		"it is to end, its server lives":      {view: view{report: &running, leaving: true}, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Running, PID: 7}},
		"it is to end, that was told already": {view: view{report: &ended, leaving: true, told: 3}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			check(g, living(c.view, c.state), c.want)
		})
	}
}

// TestWhatIsSaidOfAMultiplexerThatIsGone goes through what it may have left behind.
func TestWhatIsSaidOfAMultiplexerThatIsGone(t *testing.T) {
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
		"nothing was ever started":          {held: killed},
		"there was none":                    {},
		"its server ended before":           {held: killed, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"its server ran":                    {held: killed, state: running, want: facts.Incarnation{Number: 3, Phase: facts.Exited, PID: 7, Exit: lost}},
		"others of the tree lived":          {held: killed, state: left, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"it was not told of the start":      {held: killed, view: view{pending: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Exited, Exit: lost}},
		"it could not be started":           {held: refused, view: view{pending: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Failed}},
		"its record is gone":                {state: running, want: facts.Incarnation{Number: 3, Phase: facts.Exited, PID: 7, Exit: &facts.Exit{}}},
		"a start was taken back before":     {held: killed, view: view{cancelled: 4}, state: ended, want: facts.Incarnation{Number: 4, Phase: facts.Exited, Exit: lost}},
		"it ended as it was told, for good": {held: killed, view: view{leaving: true}, state: ended, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			check(g, gone(c.view, c.held, c.state), c.want)
		})
	}
}

// TestWhatIsSaidOfAMultiplexerThatDies keeps an identity what it is, so that nothing is taken for another process.
func TestWhatIsSaidOfAMultiplexerThatDies(t *testing.T) {
	held := &facts.Incarnation{Number: 9, Phase: facts.Running, PID: 100, LeaderExit: &facts.Exit{Known: true, Signal: "SIGKILL"}}
	exit := &facts.Exit{Known: true, Code: 2}
	for name, c := range map[string]struct {
		view  view
		state lsp.Report
		want  facts.Incarnation
	}{
		"nothing was ever started": {},
		"its server ran":           {state: lsp.Report{Incarnation: 3, Phase: facts.Running, PID: 7}, want: facts.Incarnation{Number: 3, Phase: facts.Running, PID: 7, LeaderExit: &facts.Exit{}}},
		"its server had ended":     {state: lsp.Report{Incarnation: 3, Phase: facts.Exited, Exit: exit}, want: facts.Incarnation{Number: 3, Phase: facts.Exited, Exit: exit}},
		"it was told of no start":  {view: view{pending: 4}, want: facts.Incarnation{Number: 4, Phase: facts.Running, LeaderExit: &facts.Exit{}}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			check(g, dying(c.view, held, c.state), c.want)
		})
	}
}

// check compares all but the words.
func check(g Gomega, got *facts.Incarnation, want facts.Incarnation) {
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

// A server goes with its Pod, unless it had gone before.
func TestWhatIsLostWithItsPod(t *testing.T) {
	g := NewWithT(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	held := &facts.Incarnation{Phase: facts.Exited, Exit: &facts.Exit{Lost: true, Message: "evicted", FinishedAt: at}}
	for name, test := range map[string]struct {
		exit *facts.Exit
		lost bool
		says string
	}{
		"with it":   {&facts.Exit{Known: true, Signal: "SIGTERM", FinishedAt: at.Add(-time.Second)}, true, "evicted"},
		"unseen":    {&facts.Exit{Message: "nobody saw it"}, true, "evicted"},
		"before it": {&facts.Exit{Known: true, Code: 3, FinishedAt: at.Add(-time.Minute), Message: "its own"}, false, "its own"},
	} {
		found := &facts.Incarnation{Phase: facts.Exited, Exit: test.exit}
		lostWith(held, found)
		g.Expect(found.Exit.Lost).To(Equal(test.lost), name)
		g.Expect(found.Exit.Message).To(Equal(test.says), name)
	}
	deleted := &facts.Incarnation{Phase: facts.Running, PodName: "lsp", StopSent: true}
	found := &facts.Incarnation{Phase: facts.Exited, Exit: &facts.Exit{Known: true}}
	lostWith(deleted, found)
	g.Expect(found.Exit.Lost).To(BeTrue(), "its multiplexer is on its way out")
	own := &facts.Incarnation{Exit: &facts.Exit{Known: true}}
	lostWith(&facts.Incarnation{Exit: &facts.Exit{FinishedAt: at}}, own)
	lostWith(nil, own)
	lostWith(held, &facts.Incarnation{Phase: facts.Running})
	g.Expect(own.Exit.Lost).To(BeFalse())
}
