// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"
	"golang.org/x/term"

	"github.com/berth-dev/berth/internal/facts"
	screens "github.com/berth-dev/berth/internal/terminal"
)

// asked is a terminal of 100 columns and 30 lines whose program is the test.
type asked struct {
	Gomega
	*terminal
	program *os.File
}

func newAsked(t *testing.T) *asked {
	g := NewWithT(t)
	master, program, err := pty.Open()
	g.Expect(err).NotTo(HaveOccurred())
	log, err := os.Create(t.TempDir() + "/log")
	g.Expect(err).NotTo(HaveOccurred())
	a := &asked{g, newTerminal(master, log, func(columns, rows int) Screen { return screens.New(columns, rows) }), program}
	a.device.Resize(100, 30)
	_, err = term.MakeRaw(int(program.Fd()))
	g.Expect(err).NotTo(HaveOccurred())
	go a.copy()
	t.Cleanup(func() {
		_ = program.Close()
		<-a.done
		a.finish()
		_ = master.Close()
		_ = log.Close()
	})
	return a
}

// ask writes output of the program and returns what it reads until the last answer, which is that to CSI 5n.
func (a *asked) ask(output string) string {
	_, err := a.program.WriteString(output + "\x1b[5n")
	a.Expect(err).NotTo(HaveOccurred())
	return a.read("\x1b[0n")
}

// read returns what the program reads before the given text.
func (a *asked) read(end string) string {
	var answers strings.Builder
	for !strings.HasSuffix(answers.String(), end) {
		one := []byte{0}
		_, err := a.program.Read(one)
		a.Expect(err).NotTo(HaveOccurred())
		answers.Write(one)
	}
	return strings.TrimSuffix(answers.String(), end)
}

func TestAnswers_AreGivenWithoutClient(t *testing.T) {
	for name, test := range map[string]struct{ output, want string }{
		"identity":               {"\x1b[c\x1bZ", "\x1b[?62;22c\x1b[?62;22c"},
		"second identity":        {"\x1b[>0c", "\x1b[>1;0;0c"},
		"version":                {"\x1b[>q", "\x1bP>|berth\x1b\\"},
		"cursor":                 {"\x1b[5;7Hab\x1b[6n", "\x1b[5;9R"},
		"cursor between texts":   {"abc\x1b[6nde\x1b[6n", "\x1b[1;4R\x1b[1;6R"},
		"cursor after scrolling": {strings.Repeat("line\r\n", 50) + "$ \x1b[?6n", "\x1b[?30;3;1R"},
		"far corner":             {"\x1b[999;999H\x1b[6n", "\x1b[30;100R"},
		"size":                   {"\x1b[18t\x1b[14t\x1b[16t", "\x1b[8;30;100t\x1b[4;480;800t\x1b[6;16;8t"},
		"colors":                 {"\x1b]11;?\a\x1b]10;?\x1b\\", "\x1b]11;rgb:0000/0000/0000\a\x1b]10;rgb:e5e5/e5e5/e5e5\x1b\\"},
		"modes":                  {"\x1b[?2026$p\x1b[4$p", "\x1b[?2026;0$y\x1b[4;0$y"},
		"settings":               {"\x1bP$qm\x1b\\\x1bP+q544e\x1b\\", "\x1bP0$r\x1b\\\x1bP0+r\x1b\\"},
		"clipboard and title":    {"\x1b]52;c;?\a\x1b]2;secret\a\x1b[21t", "\x1b]52;c;\a\x1b]l\x1b\\"},
		"no question":            {"\x1b[?u\x1b]52;c;aGk=\a\x05\a\x1b[8;10;10t", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsked(t)
			a.Expect(a.ask(test.output)).To(Equal(test.want))
		})
	}
}

// A question that arrives in pieces is one question.
func TestAnswers_QuestionInPieces(t *testing.T) {
	a := newAsked(t)
	for _, piece := range strings.Split("ab\x1b[6nc\x1b[6n", "") {
		a.Publish([]byte(piece))
	}
	a.Expect(a.read("\x1b[1;4R")).To(Equal("\x1b[1;3R"))
}

// The answer counts lines and columns of the current size, also if the program has changed it.
func TestAnswers_FollowsSize(t *testing.T) {
	a := newAsked(t)
	a.Expect(a.ask("\x1b[999;999H\x1b[6n")).To(Equal("\x1b[30;100R"))
	a.Expect(pty.Setsize(a.program, &pty.Winsize{Cols: 50, Rows: 10})).To(Succeed())
	a.Expect(a.ask("\x1b[999;999H\x1b[6n")).To(Equal("\x1b[10;50R"))
	a.Expect(a.ask("\x1b[3;4Ha\x1b[6nb\x1b[6n")).To(Equal("\x1b[3;5R\x1b[3;6R"))
}

// A program that asks without reading the answers must not stop its own output.
func TestAnswers_ProgramThatDoesNotRead(t *testing.T) {
	a := newAsked(t)
	for range 200 {
		_, err := a.program.WriteString(strings.Repeat("\x1b[6n", 1000))
		a.Expect(err).NotTo(HaveOccurred())
	}
}

// What the program has told its terminal does not depend on clients, and a client that joins does not repeat it. Signals of earlier output have no time.
func TestTold_DoesNotDependOnClients(t *testing.T) {
	a := newAsked(t)
	a.PublishEarlier([]byte("\x1b]0;earlier\a\x1b]9;It asked\a"))
	a.Expect(a.Told()).To(Equal(facts.Signals{Title: facts.Signal{Text: "earlier"}, Notice: facts.Signal{Text: "It asked"}}))
	for _, clients := range []int{0, 1, 2} {
		before := a.Told()
		for range clients {
			a.client(80)
		}
		a.Expect(a.Told()).To(Equal(before))
		title := fmt.Sprint("clients: ", clients)
		_, err := a.program.WriteString("\x1b]0;" + title + "\a")
		a.Expect(err).NotTo(HaveOccurred())
		a.Eventually(a.Told).WithTimeout(10 * time.Second).Should(HaveField("Title", And(HaveField("Text", title), HaveField("At", BeTemporally(">", before.Title.At)))))
	}
}

// output is what a client is shown.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// client joins as a client does, and returns what it is shown. columns is the width of its terminal; 0 if it has none.
func (a *asked) client(columns int32) (v *View, shown func() string) {
	near, far := net.Pipe()
	v = a.Join(far)
	a.Resized(v, columns, columns/2, false)
	var all output
	go func() { _, _ = io.Copy(&all, near) }()
	return v, all.String
}

// One client owns the size and answers: the one that joined or was resized last. The others do not see the question. When it leaves, the one before it answers, and
// at last the shim, and the size remains.
func TestAnswers_OneClientAnswers(t *testing.T) {
	a := newAsked(t)
	without, shownWithout := a.client(0)
	a.Expect(a.ask("1")).To(BeEmpty(), "a client without a terminal does not answer")
	first, shownFirst := a.client(80)
	second, shownSecond := a.client(60)
	tell := func(text string, columns int32) {
		t.Helper()
		_, err := fmt.Fprintf(a.program, "%s\x1b[5n", text)
		a.Expect(err).NotTo(HaveOccurred())
		size, _ := a.device.Size()
		a.Expect(size).To(Equal(columns))
	}
	tell("2", 60)
	a.Eventually(shownSecond).Should(HaveSuffix("2\x1b[5n"))
	a.Eventually(shownFirst).Should(HaveSuffix("2"))
	a.Resized(first, 80, 40, false) // not a new size
	tell("3", 60)
	a.Eventually(shownSecond).Should(HaveSuffix("3\x1b[5n"))
	a.Resized(first, 90, 40, false)
	tell("4", 90)
	a.Eventually(shownFirst).Should(HaveSuffix("234\x1b[5n"))
	a.Eventually(shownSecond).Should(HaveSuffix("3\x1b[5n4"))
	behind, _ := a.client(0)
	a.Resized(behind, 50, 40, true)
	a.Leave(first)
	tell("5", 60)
	a.Eventually(shownSecond).Should(HaveSuffix("45\x1b[5n"))
	a.Eventually(shownWithout).Should(Equal("12345"))
	a.Leave(second)
	size, _ := a.device.Size()
	a.Expect(size).To(BeEquivalentTo(50))
	a.Leave(behind)
	a.Expect(a.ask("6")).To(BeEmpty(), "no answer of a client, and one of the shim")
	size, _ = a.device.Size()
	a.Expect(size).To(BeEquivalentTo(50), "the size remains")
	a.Eventually(shownWithout).Should(Equal("123456"))
	a.Leave(without)
}

// A client that joins receives the earlier output without its questions, which have an answer: also a client that shows the output unchanged, such as the window
// in tmux of a new incarnation.
func TestAnswers_JoiningClientSeesNoAnsweredQuestion(t *testing.T) {
	a := newAsked(t)
	a.Expect(a.ask("a\x1b[6nb")).To(Equal("\x1b[1;2R"))
	_, shown := a.client(80)
	a.Eventually(shown).Should(Equal("ab"))
	_, err := a.program.WriteString("c\x1b[6n")
	a.Expect(err).NotTo(HaveOccurred())
	a.Eventually(shown).Should(Equal("abc\x1b[6n"))
}

// Output of the past is shown, but its questions have no answer any more.
func TestAnswers_NoneToEarlierQuestions(t *testing.T) {
	a := newAsked(t)
	v, shown := a.client(80)
	a.PublishEarlier([]byte("a\x1b[6nb\x1b["))
	a.Eventually(shown).Should(Equal("ab\x1b["))
	a.Leave(v)
	a.Expect(a.ask("\x1b[5;5H\x1b[6n")).To(Equal("\x1b[5;5R"))
}
