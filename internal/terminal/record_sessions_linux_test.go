// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/cli/project"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/terminal"
)

// move is one action of the user in a session: wait until the screen shows a text and the agent does something, wait while that stands, and type.
type move struct {
	shows string
	lost  string // is typed again while the screen does not show it, because an agent that starts loses its input
	until string // the truth to wait for: Waiting or Done; empty for any
	asks  bool   // what the screen shows is a question that the model does not know
	stand time.Duration
	keys  string
	// means is what the keys cause: Working, Waiting (the next question follows) or Done; empty if they change nothing.
	means string
}

// sessionScene is a session of an agent from its start to its end.
type sessionScene struct {
	scene
	agent string
	moves []move
}

const (
	// stands is how long a question stands before it is answered, and rests how long a session is recorded after its end.
	stands = 5 * time.Second
	rests  = 4 * time.Second
	// typing is the pause between a text and Enter, and retype how long to wait for a text before it is typed again.
	typing = time.Second
	retype = 15 * time.Second
)

// sessionAgent is how an agent is started and used in sessions.
type sessionAgent struct {
	name, run, prepare, box string
	runsRun, runsPrepare    string // for an agent that runs commands without a question
}

// qwenHome configures Qwen Code, a fork of Gemini CLI, for a model that needs no account.
const qwenHome = `mkdir -p $HOME/.qwen; echo '{"security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": false}}, "general": {"disableAutoUpdate": true, "enableAutoUpdate": false}, "model": {"name": "m"}}' > $HOME/.qwen/settings.json; `

const qwen = `env OPENAI_API_KEY=none OPENAI_BASE_URL=$MODEL/v1 OPENAI_MODEL=m qwen --approval-mode default`

var sessionAgents = []sessionAgent{
	{name: "claude", run: claude, prepare: claudeHome, box: claudeBox, runsRun: claude, runsPrepare: claudeHome + claudeRuns},
	{name: "codex", run: `codex --no-daemon --dangerously-bypass-hook-trust`, prepare: modelCodex, box: codexBox,
		runsRun: `codex --no-daemon --dangerously-bypass-hook-trust --dangerously-bypass-approvals-and-sandbox`, runsPrepare: modelCodex},
	{name: "gemini", run: gemini, prepare: geminiHome(false), box: geminiBox, runsRun: gemini + ` --approval-mode yolo`, runsPrepare: geminiHome(false)},
	{name: "opencode", run: `opencode`, prepare: asksOpencode, box: opencodeBox, runsRun: `opencode`, runsPrepare: runsOpencode},
	{name: "qwen", run: qwen, prepare: qwenHome, box: `Type your message`, runsRun: strings.Replace(qwen, "default", "yolo", 1), runsPrepare: qwenHome},
}

// sends types a prompt when an agent shows its input box.
func sends(box, prompt string) []move {
	return []move{{shows: box, stand: typing, keys: prompt}, {shows: prompt, lost: prompt, stand: typing, keys: "\r", means: "Working"}}
}

// choices matches the choices of a dialog of each agent.
const choices = `[❯›●•] ?1\. |Allow once|enter submit`

// answers waits until the agent asks, lets the question stand, and confirms its first choice.
func answers(means string) move {
	return move{shows: choices, until: "Waiting", stand: stands, keys: "\r", means: means}
}

// sessions are all recorded sessions.
func sessions() (all []sessionScene) {
	for _, a := range sessionAgents {
		shell, file := "shell", func(string) string { return "write" }
		switch a.name {
		case "claude", "qwen":
			file = func(session string) string { return session } // whose proposal has the absolute path of a file
		}
		switch a.name {
		case "codex":
			shell, file = "command", func(string) string { return "patch" }
		case "claude", "opencode":
			shell = "bash"
		}
		add := func(name string, moves ...[]move) {
			s := sessionScene{agent: a.name, scene: scene{name: a.name + "-" + name, run: a.run, prepare: a.prepare}, moves: slices.Concat(moves...)}
			if name == "logs" {
				s.run, s.prepare = a.runsRun, a.runsPrepare
			}
			all = append(all, s)
		}
		propose := func(what string) []move { return sends(a.box, "propose "+a.name+"-"+what) }
		done := []move{{until: "Done", stand: 2 * time.Second}}
		add("greets", sends(a.box, "greeting please"), done, sends("", "greeting please"), done)
		add("talks", sends(a.box, "talk briefly"), done)
		add("thinks", sends(a.box, "think briefly"), done)
		add("fails", sends(a.box, "fail please"), done)
		add("allows", propose(shell), []move{answers("Working")}, done)
		add("denies", propose(shell), []move{{shows: choices, until: "Waiting", stand: stands, keys: "\x1b", means: "Done"}})
		add("edits", propose(file("edits")), []move{answers("Working")}, done)
		add("steps", propose("steps"), []move{answers("Working")}, done)
		add("both", propose("both"), []move{answers("Waiting"), answers("Working")}, done)
		add("twice", propose(shell), []move{answers("Working")}, done, sends("", "propose "+a.name+"-"+file("twice")), []move{answers("Working")}, done)
		add("chooses", propose("choose"), []move{answers("Working")}, done)
		add("logs", propose("log"), done)
		interrupts := []move{{stand: 5 * time.Second, keys: "\x1b", means: "Done"}}
		if a.name == "opencode" { // asks for the key again
			interrupts = []move{{stand: 5 * time.Second, keys: "\x1b"}, {stand: typing, keys: "\x1b", means: "Done"}}
		}
		add("interrupted", sends(a.box, "keep talking"), interrupts)
	}
	trusts := scene{name: "claude-trusts", run: claude, prepare: `echo '{"hasCompletedOnboarding": true, "theme": "dark", "customApiKeyResponses": {"approved": ["00000000000000000000"]}}' > $HOME/.claude.json`}
	reviews := scene{name: "codex-reviews", run: `codex --no-daemon`, prepare: modelCodex}
	greets := func(box string) []move {
		return append(sends(box, "greeting please"), move{until: "Done", stand: 2 * time.Second})
	}
	return append(all,
		sessionScene{trusts, "claude", append([]move{{shows: `trust`, asks: true, stand: stands, keys: "\r", means: "Ready"}}, greets(claudeBox)...)},
		sessionScene{reviews, "codex", append([]move{{shows: `Trust all`, asks: true, stand: stands, keys: "\x1b[B"}, {shows: `› 2`, stand: typing, keys: "\r", means: "Ready"}}, greets(codexBox)...)})
}

// cast collects the events of a session in the format asciicast 2, with these codes: o is output, i an input of the user, h a call of "berth hook" (its arguments, and its standard
// input in the next line), r how the program reads the terminal, and m the truth: what the agent does from now on.
type cast struct {
	mu     sync.Mutex
	began  time.Time
	events [][3]any
	rest   []byte // an incomplete character
	screen *terminal.Screen
	truth  string
}

// mark adds the truth.
func (c *cast) mark(truth string) {
	c.add(time.Now(), "m", truth)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.truth = truth
}

// wait waits until a move can begin.
func (c *cast) wait(m move, master *os.File) error {
	expression, typed := regexp.MustCompile(m.shows), time.Now()
	for end := time.Now().Add(3 * patience); ; time.Sleep(20 * time.Millisecond) {
		c.mu.Lock()
		text, truth := c.screen.Text(), c.truth
		c.mu.Unlock()
		if expression.MatchString(text) && (m.until == "" || m.until == truth) {
			return nil
		}
		if m.lost != "" && time.Since(typed) > retype {
			typed = time.Now()
			c.add(typed, "i", m.lost)
			_, _ = master.WriteString(m.lost)
		}
		if time.Now().After(end) {
			return fmt.Errorf("%q was not shown while the agent should be %q and is %q:\n%s", m.shows, m.until, truth, text)
		}
	}
}

func (c *cast) add(at time.Time, code, data string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, [3]any{float64(at.Sub(c.began).Milliseconds()) / 1000, code, data})
}

// output adds a piece of output. Pieces that follow within 20 ms are one event.
func (c *cast) output(piece []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.screen.Write(piece)
	piece = append(c.rest, piece...)
	n := len(piece)
	for i := 1; i <= min(utf8.UTFMax, n) && n == len(piece); i++ {
		if start := len(piece) - i; utf8.RuneStart(piece[start]) && !utf8.FullRune(piece[start:]) {
			n = start
		}
	}
	c.rest = slices.Clone(piece[n:])
	if n == 0 {
		return
	}
	now := float64(time.Since(c.began).Milliseconds()) / 1000
	if last := len(c.events) - 1; last >= 0 && c.events[last][1] == "o" && now-c.events[last][0].(float64) < 0.02 {
		c.events[last][2] = c.events[last][2].(string) + string(piece[:n])
		return
	}
	c.events = append(c.events, [3]any{now, "o", string(piece[:n])})
}

// write writes the events in the order of their times.
func (c *cast) write(path string, head object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortStableFunc(c.events, func(a, b [3]any) int { return int(1000 * (a[0].(float64) - b[0].(float64))) })
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	packed, _ := gzip.NewWriterLevel(file, gzip.BestCompression)
	encoder := json.NewEncoder(packed)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(head); err != nil {
		return err
	}
	hidden := "/" + strings.Repeat("x", len(*tools)-1) // of the same length, so that the screen stays the same
	for _, event := range c.events {
		event[2] = strings.ReplaceAll(event[2].(string), *tools, hidden)
		if err := encoder.Encode(event); err != nil {
			return err
		}
	}
	if err := packed.Close(); err != nil {
		return err
	}
	return file.Close()
}

// hookRecorder is a program in place of berth. It writes its arguments and its standard input to a file that is named after the time of its start.
const hookRecorder = `#!/bin/bash
at=$(date +%s%N)
{ echo "${*:2}"; [[ "$*" == *--state* ]] || head -c 100000; } > "${0%/*}/$at-$$.tmp"
mv "${0%/*}/$at-$$.tmp" "${0%/*}/$at-$$.event"
`

// addHooks adds the calls of berth hook in a directory.
func (c *cast) addHooks(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.event"))
	for _, file := range files {
		digits, _, _ := strings.Cut(filepath.Base(file), "-")
		nanoseconds, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		c.add(time.Unix(0, nanoseconds), "h", string(text))
	}
	return err
}

// installHooks writes the hooks of an agent as berth init does, and nothing else.
func installHooks(dir, agent string) error {
	found, err := project.Detect(dir)
	if err != nil {
		return err
	}
	files, err := found.Files([]string{agent})
	if err != nil {
		return err
	}
	return found.Write(slices.DeleteFunc(files, func(f project.File) bool {
		return !strings.Contains(f.Text, "hook") || f.Path == "AGENTS.md"
	}))
}

// watchInput adds how the program reads its terminal, twice a second if it has changed, until stop is closed.
func (c *cast) watchInput(master *os.File, stop <-chan struct{}) {
	var last string
	for {
		select {
		case <-stop:
			return
		case <-time.After(500 * time.Millisecond):
		}
		members, err := shim.Tree{Ancestor: os.Getpid()}.Members()
		if err != nil {
			continue
		}
		var input facts.Input
		if input, err = shim.InspectInput(master, members); err != nil {
			continue
		}
		if text, _ := json.Marshal(input); string(text) != last {
			last = string(text)
			c.add(time.Now(), "r", last)
		}
	}
}

func recordSession(s sessionScene, tools, to string) error {
	bin, err := os.MkdirTemp(root, "hooks-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(bin) }()
	if err := os.WriteFile(filepath.Join(bin, "berth"), []byte(hookRecorder), 0o755); err != nil {
		return err
	}
	c := &cast{began: time.Now(), screen: terminal.New(columns, rows)}
	model := newRecordedModel(c.mark, true)
	defer model.Close()
	master, end, err := stage(s.scene, model.URL, tools, func(dir string) error { return installHooks(dir, s.agent) }, bin)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	defer end()
	c.began = time.Now()
	t := &screenOutput{last: time.Now(), shows: c.output}
	go t.read(master)
	go c.watchInput(master, stop)
	defer close(stop)
	for _, m := range s.moves {
		if err := c.wait(m, master); err != nil {
			return err
		}
		if m.asks {
			c.mark("Waiting")
		}
		time.Sleep(m.stand)
		if m.keys == "" {
			continue
		}
		c.add(time.Now(), "i", m.keys)
		if m.means != "" {
			c.mark(m.means)
		}
		if _, err := master.WriteString(m.keys); err != nil {
			return err
		}
	}
	time.Sleep(rests)
	if err := c.addHooks(bin); err != nil {
		return err
	}
	fmt.Printf("%-28s %d events\n", s.name, len(c.events))
	return c.write(filepath.Join(to, s.name+".cast.gz"), object{"version": 2, "width": columns, "height": rows, "command": s.run, "title": s.name, "agent": s.agent})
}

var recordedSessions = flag.String("sessions", "", "record only the sessions whose name matches this regular expression; without it, record none")

// TestRecordSessions checks that each session is recorded. With the flag -sessions, it records the sessions of the agents, as root.
func TestRecordSessions(t *testing.T) {
	to := filepath.Join("testdata", "sessions")
	if *recordedSessions == "" {
		for _, s := range sessions() {
			if _, err := os.Stat(filepath.Join(to, s.name+".cast.gz")); err != nil {
				t.Errorf("%s is not recorded: %v; record it with -sessions=%s", s.name, err, s.name)
			}
		}
		return
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{to, root} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	selected := regexp.MustCompile(*recordedSessions)
	slots := make(chan struct{}, *at)
	var wait sync.WaitGroup
	for _, s := range sessions() {
		if !selected.MatchString(s.name) {
			continue
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			if err := recordSession(s, *tools, to); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		})
	}
	wait.Wait()
}
