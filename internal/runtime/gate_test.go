// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
)

// A program that starts loses what is typed, so the text waits until the program reads. Without a reader, a terminal keeps only lines.
func TestTypist_WaitsForReader(t *testing.T) {
	starts := terminal.Moment{Input: facts.Input{Reader: facts.ReaderNone, Canonical: true, Echo: true}, Known: true}
	blank := terminal.Moment{Input: facts.Input{Reader: facts.ReaderPoll, Program: "agent"}, Known: true}
	shows := func(text string) terminal.Moment {
		return terminal.Moment{View: terminal.View{Text: text}, Input: blank.Input, Known: true}
	}
	for name, test := range map[string]struct {
		look    func(since time.Duration) terminal.Moment
		writes  []string
		first   time.Duration // the time of the first write, at least
		verdict terminal.Verdict
	}{
		"a program that reads": {
			look: func(since time.Duration) terminal.Moment {
				if since < 400*time.Millisecond {
					return shows("> ")
				}
				return shows("> continue")
			},
			writes: []string{"continue", "\r"},
		},
		"a program that reads after 3 s and shows the text 4 s later": {
			look: func(since time.Duration) terminal.Moment {
				switch {
				case since < time.Second:
					return starts
				case since < 3*time.Second:
					return blank
				case since < 7*time.Second:
					return shows("> ")
				}
				return shows("> continue")
			},
			writes: []string{"continue", "\r"}, first: 3 * time.Second,
		},
		"a program that does not show the text": {
			look:   func(time.Duration) terminal.Moment { return shows("Allow   Reject") },
			writes: []string{"continue"}, verdict: terminal.NotTaken,
		},
		"a program that never reads, in line mode": {
			look:   func(time.Duration) terminal.Moment { return starts },
			writes: []string{"continue", "\r"}, first: 15 * time.Second, verdict: terminal.Unread,
		},
		"a program that never reads, in raw mode": {
			look:    func(time.Duration) terminal.Moment { return blank },
			verdict: terminal.NotTaken,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				typed := &recordingTerminal{began: time.Now()}
				strokes := runtime.Line("continue")
				strokes.Look = func(context.Context) (terminal.Moment, error) { return test.look(time.Since(typed.began)), nil }
				err := runtime.NewTypist().Type(t.Context(), typed, strokes)
				g.Expect(typed.writes).To(Equal(test.writes))
				if len(typed.at) > 0 {
					g.Expect(typed.at[0]).To(BeNumerically(">=", test.first))
				}
				var withheld *runtime.WithheldError
				if test.verdict == "" {
					g.Expect(err).NotTo(HaveOccurred())
				} else {
					g.Expect(errors.As(err, &withheld)).To(BeTrue(), "%v", err)
					g.Expect(withheld.Verdict).To(Equal(test.verdict))
				}
			})
		})
	}
}

func TestTypist_ReturnsErrorOfLook(t *testing.T) {
	g := NewWithT(t)
	typed, strokes, cause := &recordingTerminal{}, runtime.Line("continue"), errors.New("the disk is broken")
	strokes.Look = func(context.Context) (terminal.Moment, error) { return terminal.Moment{}, cause }
	g.Expect(runtime.NewTypist().Type(t.Context(), typed, strokes)).To(MatchError(cause))
	g.Expect(typed.writes).To(BeEmpty())

	cause = runtime.ErrNotFound
	g.Expect(runtime.NewTypist().Type(t.Context(), typed, strokes)).To(Succeed(), "nothing of the terminal is known")
	g.Expect(typed.writes).To(Equal([]string{"continue", "\r"}))
}

func TestTypist_TypesCursorKeysOfItsMode(t *testing.T) {
	for output, want := range map[string]string{"": "\x1b[A", "\x1b[?1h": "\x1bOA", "\x1b[?1h\x1b[?1l": "\x1b[A"} {
		g := NewWithT(t)
		typist, typed := runtime.NewTypist(), &recordingTerminal{}
		_, _ = typist.Write([]byte(output))
		g.Expect(typist.Type(t.Context(), typed, runtime.Keystrokes{Keys: []runtime.Key{"Up"}})).To(Succeed())
		g.Expect(typed.writes).To(Equal([]string{want}))
	}
}
