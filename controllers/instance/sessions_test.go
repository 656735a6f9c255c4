// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/internal/terminal"
)

// castEvent is one event of a recorded session (internal/terminal/testdata/README.md).
type castEvent struct {
	at         time.Duration
	code, data string
}

// readCast returns the events of a recorded session.
func readCast(g *WithT, path string) (agent string, events []castEvent) {
	file, err := os.Open(path)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	plain, err := gzip.NewReader(file)
	g.Expect(err).NotTo(HaveOccurred())
	lines := bufio.NewScanner(plain)
	lines.Buffer(nil, 16<<20)
	g.Expect(lines.Scan()).To(BeTrue())
	var head struct{ Agent string }
	g.Expect(json.Unmarshal(lines.Bytes(), &head)).To(Succeed())
	for lines.Scan() {
		var fields [3]any
		g.Expect(json.Unmarshal(lines.Bytes(), &fields)).To(Succeed())
		events = append(events, castEvent{time.Duration(fields[0].(float64) * float64(time.Second)), fields[1].(string), fields[2].(string)})
	}
	g.Expect(lines.Err()).NotTo(HaveOccurred())
	return head.Agent, events
}

// recordedTerminal is a runtime whose terminal shows what a session shows.
type recordedTerminal struct {
	runtime.Runtime
	runtime.Terminals
	runtime.Logs
	screen  *terminal.Screen
	input   facts.Input
	active  time.Time
	watched bool
	told    *signals.Tracker // nil if the manager does not receive what the program tells its terminal
}

func (r *recordedTerminal) Capabilities() runtime.Capabilities {
	all := r.Runtime.Capabilities()
	all.Terminals, all.Logs = r, r
	return all
}

func (r *recordedTerminal) Capture(context.Context, types.UID) (terminal.View, error) {
	return r.screen.View(), nil
}

func (r *recordedTerminal) Input(context.Context, types.UID) (facts.Input, error) {
	return r.input, nil
}

func (r *recordedTerminal) Told(context.Context, types.UID) (facts.Signals, error) {
	if r.told == nil {
		return facts.Signals{}, errors.ErrUnsupported
	}
	return r.told.Signals(), nil
}

func (r *recordedTerminal) Watch(context.Context, types.UID) error {
	r.watched = true
	return nil
}

func (r *recordedTerminal) LastActivity(context.Context, types.UID) (time.Time, error) {
	if r.active.IsZero() {
		return r.active, runtime.ErrNotFound
	}
	return r.active, nil
}

// reported returns what a recorded call of berth hook reports.
func reported(call string) (report hook.Report, relevant bool) {
	arguments, event, _ := strings.Cut(call, "\n")
	if arguments == "" {
		return hook.Parse(strings.NewReader(event))
	}
	fields := strings.Fields(arguments)
	for i := 0; i+1 < len(fields); i += 2 {
		switch fields[i] {
		case "--state":
			report.State = v1alpha1.AgentState(fields[i+1])
		case "--question":
			report.Question = fields[i+1]
		case "--session":
			report.SessionID = fields[i+1]
		}
	}
	return report, report.Validate() == nil
}

// said is what the status said about the agent from a time on.
type said struct {
	at     time.Duration
	state  v1alpha1.AgentState
	source v1alpha1.AgentSource
}

// replay replays a session through the terminal and the decisions of a manager, and returns what the status said. The manager receives the reports
// of hooks, and what the program tells its terminal, only if hooks and told are set.
func replay(t *testing.T, events []castEvent, hooks, told bool) (history []said) {
	d := newFixture(t)
	backend := d.runtime.Capabilities()
	recorded := &recordedTerminal{Runtime: d.runtime, Terminals: backend.Terminals, Logs: backend.Logs, screen: terminal.New(120, 40)}
	if told {
		recorded.told = &signals.Tracker{}
	}
	d.kind = New(nil, runtime.NewRegistry(recorded, logr.Discard()), d.clock)
	d.kind.present = d.tracker
	reconciles := false
	d.kind.reports.OnReport(func(types.UID) { reconciles = true })
	next := time.Duration(0) // when to reconcile next; negative for never
	observe := func(at time.Duration) {
		next = -1
		d.clock.SetTime(morning.Add(at))
		if again := d.observe(); again > 0 {
			next = at + max(again, 10*time.Millisecond)
		}
		now := said{at: at}
		if agent := d.instance.Status.Agent; agent != nil {
			now.state, now.source = agent.State, agent.Source
		}
		if last := len(history) - 1; last < 0 || history[last].state != now.state || history[last].source != now.source {
			history = append(history, now)
		}
	}
	for _, event := range events {
		if event.code == "h" && !hooks {
			continue
		}
		for next >= 0 && next <= event.at {
			observe(next)
		}
		d.clock.SetTime(morning.Add(event.at))
		switch event.code {
		case "o":
			_, _ = recorded.screen.Write([]byte(event.data))
			if told {
				recorded.told.Note([]byte(event.data), d.clock.Now())
			}
			recorded.active = d.clock.Now()
			reconciles = reconciles || recorded.watched
			recorded.watched = false
		case "r":
			recorded.input = facts.Input{}
			d.Expect(json.Unmarshal([]byte(event.data), &recorded.input)).To(Succeed())
		case "i":
			d.tracker.Touch("claude")
		case "h":
			if report, relevant := reported(event.data); relevant {
				d.kind.reports.Add("claude", 1, report)
			}
		}
		if reconciles {
			reconciles = false
			observe(event.at)
		}
	}
	for end := endOf(events); next >= 0 && next <= end; {
		observe(next)
	}
	return history
}

// endOf returns when a session ends: the recording lasted longer than its last event.
func endOf(events []castEvent) time.Duration { return events[len(events)-1].at + 4*time.Second }

// stretch is a time during which the agent does one thing. If it asks, drawn is when the dialog was on the screen, and gone when it was not there any more.
type stretch struct {
	from, to, drawn, gone time.Duration
	truth                 string
}

// dialog matches the choices of a dialog of each agent.
var dialog = regexp.MustCompile(`[❯›●•] ?1\. |Allow once|enter submit`)

// truths returns what the agent did in a session.
func truths(events []castEvent) (all []stretch) {
	screen := terminal.New(120, 40)
	asks := -1 // the last stretch with a question
	for _, event := range events {
		switch event.code {
		case "m":
			if last := len(all) - 1; last >= 0 {
				all[last].to = event.at
			}
			if event.data == "Waiting" {
				asks = len(all)
			}
			all = append(all, stretch{from: event.at, to: endOf(events), truth: event.data})
		case "o":
			_, _ = screen.Write([]byte(event.data))
		default:
			continue
		}
		if asks < 0 || all[asks].gone > 0 {
			continue
		}
		switch shown := dialog.MatchString(screen.Text()); {
		case shown && all[asks].drawn == 0:
			all[asks].drawn = event.at
		case !shown && asks < len(all)-1:
			all[asks].gone = event.at
		}
	}
	return all
}

// figures are the results of the replay of many sessions.
type figures struct {
	questions, found, alarms int
	turns, ended             int // turns that end, and of them those whose end the status shows
	delays                   []time.Duration
	sources                  map[v1alpha1.AgentSource]int
	notes                    []string // what is wrong
}

const (
	// longQuestion is how long a question must stand to count, and stale how long the status may still show it after the answer has removed it from the screen.
	longQuestion = 3 * time.Second
	stale        = 2 * time.Second
)

// judge compares what the status said in a session with the truth.
func (f *figures) judge(name string, history []said, all []stretch, end time.Duration) {
	waits := func(from, to time.Duration) (first said, found bool) {
		for i, s := range history {
			until := end
			if i+1 < len(history) {
				until = history[i+1].at
			}
			if s.state == v1alpha1.AgentWaiting && until > from && s.at < to {
				return s, true
			}
		}
		return said{}, false
	}
	quiet := time.Duration(0) // the status must not say Waiting from here to the next question
	for _, s := range all {
		if s.truth != "Waiting" {
			continue
		}
		if s.from > quiet {
			f.alarm(name, quiet, s.from, waits)
		}
		quiet = max(s.to, s.gone) + stale
		if s.to-s.from < longQuestion {
			continue
		}
		if s.drawn == 0 {
			f.notes = append(f.notes, fmt.Sprintf("%s: the screen shows no dialog at %s", name, s.from))
		}
		f.questions++
		first, found := waits(s.from, s.to)
		if !found {
			f.notes = append(f.notes, fmt.Sprintf("%s at %s", name, s.from))
			continue
		}
		f.found++
		f.sources[first.source]++
		f.delays = append(f.delays, max(first.at-s.drawn, 0))
	}
	if end > quiet {
		f.alarm(name, quiet, end, waits)
	}
	if last := all[len(all)-1]; last.truth == "Done" {
		f.turns++
		if history[len(history)-1].state == v1alpha1.AgentDone || history[len(history)-1].state == v1alpha1.AgentFailed {
			f.ended++
		} else {
			f.notes = append(f.notes, fmt.Sprintf("%s: ends with %v", name, history[len(history)-1]))
		}
	}
}

func (f *figures) alarm(name string, from, to time.Duration, waits func(from, to time.Duration) (said, bool)) {
	if s, found := waits(from, to); found {
		f.alarms++
		f.notes = append(f.notes, fmt.Sprintf("%s: false alarm (%s) at %s, between %s and %s", name, s.source, s.at, from, to))
	}
}

func (f *figures) String() string {
	slices.Sort(f.delays)
	at := func(share float64) time.Duration {
		if len(f.delays) == 0 {
			return 0
		}
		return f.delays[min(int(share*float64(len(f.delays))), len(f.delays)-1)].Round(10 * time.Millisecond)
	}
	return fmt.Sprintf("%d of %d questions (%v), %d false alarms, delay p50 %s, p99 %s; %d of %d ends of a turn", f.found, f.questions, f.sources, f.alarms, at(0.5), at(0.99), f.ended, f.turns)
}

// recordedSources are the sources that a replay leaves to the manager, with the thresholds, which are the measured figures: the longest delay of a question after its dialog was on the
// screen, and how many ends of a turn the status shows.
var recordedSources = []struct {
	name        string
	hooks, told bool
	slowest     time.Duration
	ended       int
}{
	{"all sources", true, true, 1900 * time.Millisecond, 62},
	{"without hooks", false, true, 2 * time.Second, 26},
	{"only the screen", false, false, 2 * time.Second, 0},
}

// TestAgent_RecordedSessions replays recorded sessions of five agents and compares the status with what the agents really did: every question that stands for three seconds is
// reported, also without hooks and by the screen alone, and there is no false alarm.
func TestAgent_RecordedSessions(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob(filepath.Join("..", "..", "internal", "terminal", "testdata", "sessions", "*.cast.gz"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(files)).To(BeNumerically(">=", 60))
	for _, source := range recordedSources {
		results := map[string]*figures{}
		for _, file := range files {
			agent, events := readCast(g, file)
			name, truth := strings.TrimSuffix(filepath.Base(file), ".cast.gz"), truths(events)
			history := replay(t, events, source.hooks, source.told)
			for _, group := range []string{agent, "all"} {
				if results[group] == nil {
					results[group] = &figures{sources: map[v1alpha1.AgentSource]int{}}
				}
				results[group].judge(name, history, truth, endOf(events))
			}
		}
		g.Expect(results).To(HaveLen(5+1), "agents")
		for _, group := range slices.Sorted(maps.Keys(results)) {
			t.Logf("%s, %s: %s", source.name, group, results[group])
		}
		all := results["all"]
		g.Expect(all.questions).To(BeNumerically(">=", 40))
		g.Expect(all.found).To(Equal(all.questions), "%s: %q", source.name, all.notes)
		g.Expect(all.alarms).To(BeZero(), "%s: %q", source.name, all.notes)
		g.Expect(slices.Max(all.delays)).To(BeNumerically("<=", source.slowest), source.name)
		g.Expect(all.ended).To(BeNumerically(">=", source.ended), "%s: %q", source.name, all.notes)
	}
}
