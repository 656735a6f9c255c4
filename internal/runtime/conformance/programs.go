// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/terminal"
	"github.com/berth-dev/berth/test/need"
)

// AllPrograms is the variable that makes RunPrograms run all programs; its value is a list of directories for PATH.
const AllPrograms = "BERTH_TERMINAL_PROGRAMS"

// program is a real program in a terminal, which asks the terminal questions or not.
type program struct {
	name    string // also the program that has to be installed
	command string // for sh
	shows   string // matches the screen when the program is ready
	typed   string // is then typed
	shown   string // matches the screen after that
	short   bool   // runs without AllPrograms
}

var programs = []program{
	{name: "nvim", short: true, command: `exec nvim --clean -c "echo 'ready' .. (6*7)"`, shows: `ready42`},
	{name: "fzf", short: true, command: `echo chosen-$(seq 5 | fzf --height 40%); exec sleep 600`, shows: `5/5`, typed: "\r", shown: `chosen-1`},
	{name: "irb", short: true, command: `exec irb -f`, shows: `001:0>`, typed: "6*7\r", shown: `=> 42`},
	{name: "htop", short: true, command: `exec htop`, shows: `F10Quit`},
	{name: "less", short: true, command: `seq 1000 | less`, shows: `(?m)^:`, typed: "G", shown: `1000\n\(END\)`},
	{name: "nano", short: true, command: `exec nano --ignorercfiles`, shows: `Help`, typed: "ready", shown: `(?m)^ready`},
	{name: "tmux", short: true, command: `exec tmux -f /dev/null new-session 'echo ready$((6*7)); exec cat'`, shows: `ready42`, typed: "typed\r", shown: `typed\ntyped`},
	{name: "vim", command: `exec vim --clean -c "echo 'ready' .. (6*7)"`, shows: `ready42`},
	{name: "mc", command: `exec mc --nosubshell`, shows: `10Quit`},
	{name: "emacs", command: `exec emacs -nw -Q`, shows: `GNU Emacs`},
	{name: "screen", command: `mkdir -m 700 s; SCREENDIR=$PWD/s exec screen -c /dev/null sh -c 'echo ready$((6*7)); exec cat'`, shows: `ready42`, typed: "typed\r", shown: `typed\ntyped`},
	{name: "ipython3", command: `exec /usr/bin/ipython3 --no-banner`, shows: `In \[1\]:`, typed: "6*7\r", shown: `Out\[1\]: 42`},
	{name: "prompt_toolkit", command: `exec /usr/bin/python3 -c "from prompt_toolkit import prompt; print('got', prompt('name> ')); input()"`, shows: `name>`, typed: "x\r", shown: `got x`},
	{name: "ranger", command: `touch ready42; exec ranger --clean`, shows: `ready42`},
	{name: "w3m", command: `echo ready42 > f; exec w3m f`, shows: `ready42`},
	{name: "btop", command: `exec btop --utf-force`, shows: `cpu`},
	{name: "dialog", command: `exec dialog --msgbox ready42 8 40`, shows: `ready42`},
	{name: "whiptail", command: `exec whiptail --msgbox ready42 8 40`, shows: `ready42`},
	{name: "tig", command: `git init -q; git -c user.name=n -c user.email=e commit -q --allow-empty -m ready42; exec tig`, shows: `ready42`},
	{name: "micro", command: `echo ready42 > f; exec micro f`, shows: `ready42`},
	{name: "kak", command: `echo ready42 > f; exec kak -n f`, shows: `ready42`},
	{name: "fish", command: `exec fish --private --no-config`, shows: `[#>] ?$`, typed: "echo ready(math 6 x 7)\r", shown: `(?m)^ready42`},
	{name: "gum", command: `exec gum choose one two`, shows: `> one`, typed: "\x1b[B", shown: `> two`},
	{name: "claude", command: `CLAUDE_CODE_USE_BEDROCK=1 AWS_REGION=us-east-1 AWS_BEARER_TOKEN_BEDROCK=none ANTHROPIC_BEDROCK_BASE_URL=http://127.0.0.1:9 DISABLE_AUTOUPDATER=1 exec claude`, shows: `Dark`},
	{name: "codex", command: `exec codex`, shows: `(?i)sign in`},
	{name: "gemini", command: `exec gemini`, shows: `(?i)trust|authenticate`},
	{name: "opencode", command: `exec opencode`, shows: `(?i)ask anything|commands`},
}

// asked are the questions of which the number of answers is checked. Terminals need not answer those that are optional, but never twice.
var asked = []struct {
	name, question, answer string
	optional               bool
}{
	{"identity (DA1)", `\x1b(\[0?c|Z)`, `\x1b\[\?[\d;]*c`, false},
	{"version (DA2)", `\x1b\[>0?c`, `\x1b\[>[\d;]*c`, false},
	{"cursor", `\x1b\[6n`, `\x1b\[\d+;\d+R`, false},
	{"state", `\x1b\[5n`, `\x1b\[0n`, false},
	{"size", `\x1b\[18t`, `\x1b\[8;\d+;\d+t`, false},
	{"size in pixels", `\x1b\[1[46]t`, `\x1b\[[46];\d+;\d+t`, true},
	{"unit (DA3)", `\x1b\[=0?c`, `\x1bP!\|[^\x1b]*\x1b\\`, true},
	{"name (XTVERSION)", `\x1b\[>0?q`, `\x1bP>\|[^\x1b]*\x1b\\`, true},
	{"colors", `\x1b\]1[0-2];\?(\a|\x1b\\)`, `\x1b\]1[0-2];rgb:[^\a\x1b]*(\a|\x1b\\)`, true},
	{"palette", `\x1b\]4;\d+;\?(\a|\x1b\\)`, `\x1b\]4;\d+;rgb:[^\a\x1b]*(\a|\x1b\\)`, true},
	{"mode (DECRQM)", `\x1b\[\??\d+\$p`, `\x1b\[\??\d+;\d+\$y`, true},
	{"setting (DECRQSS)", `\x1bP\$q[^\x1b]*\x1b\\`, `\x1bP[01]\$r[^\x1b]*\x1b\\`, true},
	{"capability (XTGETTCAP)", `\x1bP\+q[^\x1b]*\x1b\\`, `\x1bP[01]\+r[^\x1b]*\x1b\\`, true},
	{"color scheme", `\x1b\[\?996n`, `\x1b\[\?997;\dn`, true},
	{"keyboard (kitty)", `\x1b\[\?u`, `\x1b\[\?\d*u`, true},
	{"focus", `\x1b\[\?1004h`, `\x1b\[[IO]`, true},
}

// RunPrograms runs real programs without a client, with one and with two. Each program becomes ready, each of its questions has one answer, and it reads nothing but
// answers.
func RunPrograms(t *testing.T, harness func(t *testing.T) Harness) {
	tools, all := os.LookupEnv(AllPrograms)
	for _, p := range programs {
		if !p.short && !all {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			if p.short {
				need.Programs(t, p.name)
			}
			path := strings.Trim(tools+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", ":")
			h := harness(t)
			s := &suite{T: t, Harness: h, WithT: NewWithT(t), ctx: t.Context()}
			line := fmt.Sprintf("| `%s` |", p.name)
			var questions []string
			for clients := range 3 {
				took, names := s.runProgram(p, path, clients)
				line += fmt.Sprintf(" %.1f s |", took.Seconds())
				questions = append(questions, names...)
			}
			slices.Sort(questions)
			t.Log(line, cmp.Or(strings.Join(slices.Compact(questions), ", "), "none"), "|")
		})
	}
}

// runProgram runs a program with a number of clients, and returns how long it took to become ready, and the names of its questions.
func (s *suite) runProgram(p program, path string, clients int) (took time.Duration, questions []string) {
	s.Helper()
	dir, err := os.MkdirTemp("", "berth-program-")
	s.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = os.RemoveAll(dir) }()
	home := filepath.Join(dir, "home")
	s.Expect(os.Mkdir(home, 0o700)).To(Succeed())
	size := runtime.Terminal{Columns: 80, Rows: 24}
	uid := newUID()
	process := s.process(uid, 1, "recorded", dir, "env", "-u", "TMUX", "-u", "CI", "sh", "-c", p.command)
	process.Dir, process.Terminal = home, &size
	process.Env = append(process.Env, "TERM=xterm-256color", "LANG=C.UTF-8", "HOME="+home, "TMPDIR="+home, "TMUX_TMPDIR="+home, "PATH="+path)
	s.Expect(s.Runtime.Start(s.ctx, process)).To(Succeed())
	s.awaitPhase(uid, facts.Running)
	a := &asking{suite: s, uid: uid}
	for i := range clients {
		size = runtime.Terminal{Columns: 80, Rows: int32(25 + i)} //nolint:gosec // small
		defer a.attachTerminal(size)()
	}
	began := time.Now()
	s.Expect(os.WriteFile(filepath.Join(dir, "begin"), nil, 0o600)).To(Succeed())
	shows := func(what string) {
		s.Helper()
		s.Eventually(func() string {
			drawn := terminal.New(int(size.Columns), int(size.Rows))
			_, _ = io.WriteString(drawn, s.output(s.openLog(uid)))
			return drawn.Text()
		}).WithTimeout(Timeout).Should(MatchRegexp(what), "%s with %d clients", p.name, clients)
	}
	shows(p.shows)
	took = time.Since(began)
	s.Eventually(func(g Gomega) { questions = s.checkAnswers(g, dir) }).WithTimeout(Timeout).Should(Succeed(), "%s with %d clients", p.name, clients)
	if p.typed != "" {
		strokes := runtime.Keystrokes{Text: strings.TrimSuffix(p.typed, "\r")}
		if strokes.Text != p.typed {
			strokes.Keys = []runtime.Key{runtime.KeyEnter}
		}
		s.Expect(s.Runtime.Capabilities().Terminals.Type(s.ctx, uid, strokes)).To(Succeed())
		shows(p.shown)
	}
	s.killAndWait(uid)
	return took, questions
}

// passedOn matches what a program in tmux writes to the terminal of tmux, which does not pass it on unless the user permits it.
var passedOn = regexp.MustCompile(`\x1bPtmux;([^\x1b]|\x1b\x1b)*\x1b\\`)

// checkAnswers compares what a program has written and read, and returns the names of its questions.
func (s *suite) checkAnswers(g Gomega, dir string) (questions []string) {
	read, err := os.ReadFile(filepath.Join(dir, "read"))
	g.Expect(err).NotTo(HaveOccurred())
	written, err := os.ReadFile(filepath.Join(dir, "written")) // after read: each answer has its question
	g.Expect(err).NotTo(HaveOccurred())
	written = passedOn.ReplaceAll(written, nil)
	rest := string(read)
	for _, a := range asked {
		answer := regexp.MustCompile(a.answer)
		count := len(regexp.MustCompile(a.question).FindAll(written, -1))
		answers := len(answer.FindAllString(rest, -1))
		rest = answer.ReplaceAllString(rest, "")
		if a.name == "focus" {
			continue // a report, not an answer
		}
		if count > 0 {
			questions = append(questions, a.name)
		}
		if a.optional {
			g.Expect(answers).To(BeNumerically("<=", count), "answers for %s: %q", a.name, read)
		} else {
			g.Expect(answers).To(Equal(count), "answers for %s: %q", a.name, read)
		}
	}
	g.Expect(rest).To(BeEmpty(), "the program reads text besides answers: %q", read)
	return questions
}

// emulated is the terminal of a client: it answers as the shim does.
type emulated struct {
	io.Writer
	size runtime.Terminal
}

func (e emulated) Size() (columns, rows int32) { return e.size.Columns, e.size.Rows }
func (e emulated) Resize(int32, int32)         {}

// publisher is the output of a client that is shown on a terminal.
type publisher struct{ *shim.Terminal }

func (p publisher) Write(output []byte) (int, error) {
	p.Publish(output)
	return len(output), nil
}

// attachTerminal attaches a client whose terminal answers questions, and returns a function that detaches it.
func (s *asking) attachTerminal(size runtime.Terminal) (leave func()) {
	s.Helper()
	in, keys := io.Pipe()
	shown := shim.NewTerminal(emulated{keys, size}, func(columns, rows int) shim.Screen { return terminal.New(columns, rows) })
	done := make(chan struct{})
	go shown.Answer(done)
	detach := s.attachOutput(in, publisher{shown}, &size)
	return func() {
		detach()
		_ = keys.Close()
		close(done)
	}
}

// Installed fails a test of all programs that lacks some of them.
func Installed(t *testing.T) {
	t.Helper()
	tools, all := os.LookupEnv(AllPrograms)
	if !all {
		return
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.name); err != nil && p.name != "prompt_toolkit" {
			missing = append(missing, p.name)
		}
	}
	if missing != nil {
		t.Fatalf("make terminals needs these programs: %s", strings.Join(missing, ", "))
	}
}
