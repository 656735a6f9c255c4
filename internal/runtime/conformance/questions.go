// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// answering is an attached client with a terminal that answers the questions of the program "asking".
type answering struct {
	screen
	keys   *io.PipeWriter
	leave  func()
	mu     sync.Mutex
	unread string // output that may end within a question
}

// questions are those of the program "asking", and how a terminal answers them.
var questions = []struct{ question, answer string }{{"\x1b[6n", "\x1b[7;7R"}, {"\x1b[c", "\x1b[?1;2c"}, {"\x1b[5n", "\x1b[0n"}}

// answers match the answers of any terminal, in the order of the questions.
var answers = []*regexp.Regexp{regexp.MustCompile(`\x1b\[\d+;\d+R`), regexp.MustCompile(`\x1b\[\?[\d;]*c`), regexp.MustCompile(`\x1b\[0n`)}

// focused matches the reports of focus that tmux sends to the program of its window.
var focused = regexp.MustCompile(`\x1b\[[IO]`)

// Write implements io.Writer.
func (a *answering) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unread += string(p)
	for _, q := range questions {
		for range strings.Count(a.unread, q.question) {
			go func() { _, _ = io.WriteString(a.keys, q.answer) }() // a program that does not read must not block the output
		}
		a.unread = strings.ReplaceAll(a.unread, q.question, "")
	}
	a.unread = a.unread[max(0, len(a.unread)-len("\x1b[c")):]
	return a.screen.Write(p)
}

// asking is a program that asks its terminal.
type asking struct {
	*suite
	uid   types.UID
	asked int
}

func (s *asking) attach(size *runtime.Terminal) *answering {
	s.Helper()
	in, keys := io.Pipe()
	a := &answering{keys: keys}
	detach := s.attachOutput(in, a, size)
	a.leave = func() {
		s.Helper()
		detach()
		_ = keys.Close()
	}
	return a
}

// attachOutput attaches a client, and waits until it owns the size. size is nil for a client without a terminal.
func (s *asking) attachOutput(in io.Reader, out io.Writer, size *runtime.Terminal) (detach func()) {
	s.Helper()
	resize, ended := make(chan runtime.Terminal, 1), make(chan error, 1)
	if size != nil {
		resize <- *size
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.Cleanup(cancel)
	go func() { ended <- s.Runtime.Capabilities().Terminals.Attach(ctx, s.uid, in, out, resize) }()
	if size != nil {
		s.Eventually(func() runtime.Terminal {
			now, _ := s.Runtime.Capabilities().Size(s.ctx, s.uid)
			return now
		}).WithTimeout(Timeout).Should(Equal(*size))
	}
	return func() {
		s.Helper()
		cancel()
		s.Eventually(ended).WithTimeout(Timeout).Should(Receive())
	}
}

// press types a key into the program, as berth send does.
func (s *asking) press(key string) {
	s.Helper()
	s.Expect(s.Runtime.Capabilities().Terminals.Type(s.ctx, s.uid, runtime.Keystrokes{Text: key})).To(Succeed())
}

// ask lets the program ask all questions.
func (s *asking) ask() {
	s.Helper()
	s.press("a")
	s.answered()
}

// answered waits until the program has as many answers as questions, and checks that there are not more after all clients have seen the questions.
func (s *asking) answered(clients ...*answering) {
	s.Helper()
	s.asked++
	for _, a := range clients {
		s.Eventually(a.String).WithTimeout(Timeout).Should(ContainSubstring(fmt.Sprintf("asked %d", s.asked)))
	}
	report := regexp.MustCompile(fmt.Sprintf(`\b%d: "([^\r]*)"\.\r[^\r]*$`, s.asked))
	s.Eventually(func(g Gomega) {
		s.press("p")
		whole := s.output(s.openLog(s.uid))
		output := report.FindStringSubmatch(whole[max(0, len(whole)-4<<10):])
		g.Expect(output).NotTo(BeNil())
		read := strings.ReplaceAll(output[1], `\x1b`, "\x1b")
		if s.Window {
			read = focused.ReplaceAllString(read, "")
		}
		for i, answer := range answers {
			g.Expect(answer.FindAllString(read, -1)).To(HaveLen(s.asked), "question %q: %q", questions[i].question, read)
			read = answer.ReplaceAllString(read, "")
		}
		g.Expect(read).To(BeEmpty(), "typed text")
	}).WithTimeout(Timeout).Should(Succeed())
}

// testQuestions has a program that asks its terminal without a client, with one and with several. Each question has exactly one answer, and a client that attaches
// late has the modes of the program.
func testQuestions(s *suite) {
	const modes = "\x1b[>1u\x1b[?1004h\x1b[?2004h\x1b[?1000h\x1b[?1006h\x1b[?1h\x1b[?1049h\x1b[>4;2m\x1b[5;10r"
	q := &asking{suite: s, uid: newUID()}
	p := s.process(q.uid, 1, "asking")
	p.Terminal = &runtime.Terminal{Columns: 91, Rows: 31}
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	s.awaitPhase(q.uid, facts.Running)
	q.answered() // asked at the start
	q.ask()
	for _, sizes := range [][]*runtime.Terminal{
		{nil}, // looks on
		{{Columns: 80, Rows: 24}},
		{{Columns: 70, Rows: 20}, nil, {Columns: 100, Rows: 40}},
	} {
		var clients []*answering
		for _, size := range sizes {
			clients = append(clients, q.attach(size))
		}
		q.press("a")
		q.answered(clients...)
		for _, a := range clients {
			a.leave()
		}
	}
	q.press("f")
	s.awaitOutput(q.uid, "flooded")
	for range 2 {
		q.ask()
		a := q.attach(&runtime.Terminal{Columns: 80, Rows: 24})
		s.Eventually(a.String).WithTimeout(Timeout).Should(HavePrefix(modes))
		q.press("a")
		q.answered(a)
		a.leave()
		if s.Reopen != nil {
			s.Runtime = s.Reopen(s.T)
		}
	}
	s.killAndWait(q.uid)
}
