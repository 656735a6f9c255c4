// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/runtime"
)

// recordingTerminal is a terminal that records each write and its time.
type recordingTerminal struct {
	began  time.Time
	writes []string
	at     []time.Duration
}

func (t *recordingTerminal) Write(p []byte) (int, error) {
	t.writes = append(t.writes, string(p))
	t.at = append(t.at, time.Since(t.began))
	return len(p), nil
}

// strokesOf returns the keystrokes for a text that may begin with Ctrl-C and end with Enter.
func strokesOf(input string) runtime.Keystrokes {
	text, interrupt := strings.CutPrefix(input, "\x03")
	text, enter := strings.CutSuffix(text, "\r")
	strokes := runtime.Keystrokes{Interrupt: interrupt, Text: text}
	if enter {
		strokes.Keys = []runtime.Key{runtime.KeyEnter}
	}
	return strokes
}

func TestTypist_SplitsInputIntoWrites(t *testing.T) {
	for name, test := range map[string]struct {
		input  string
		output string // what the terminal had shown before
		writes []string
		at     []time.Duration
	}{
		"Enter is a separate write":      {input: "continue\r", writes: []string{"continue", "\r"}, at: []time.Duration{0, 500 * time.Millisecond}},
		"Ctrl-C comes first":             {input: "\x03stop that\r", writes: []string{"\x03", "stop that", "\r"}, at: []time.Duration{0, 500 * time.Millisecond, time.Second}},
		"only Ctrl-C does not wait":      {input: "\x03", writes: []string{"\x03"}, at: []time.Duration{0}},
		"only Enter does not wait":       {input: "\r", writes: []string{"\r"}, at: []time.Duration{0}},
		"no Enter":                       {input: "y", writes: []string{"y"}, at: []time.Duration{0}},
		"lines are typed":                {input: "a\nb\r", writes: []string{"a\nb", "\r"}, at: []time.Duration{100 * time.Millisecond, 600 * time.Millisecond}},
		"lines are pasted in paste mode": {input: "a\n\x1b[201~b\r", output: "\x1b[?2004h$ ", writes: []string{"\x1b[200~a\nb\x1b[201~", "\r"}},
		"paste mode is off again":        {input: "a\nb\r", output: "\x1b[?2004h$ \x1b[?2004l", writes: []string{"a\nb", "\r"}},
		"several words are pasted":       {input: "go on?\r", output: "\x1b[?2004h", writes: []string{"\x1b[200~go on?\x1b[201~", "\r"}},
		"a single word is typed":         {input: "no\r", output: "\x1b[?2004h", writes: []string{"no", "\r"}},
		"nothing":                        {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				typist, terminal := runtime.NewTypist(), &recordingTerminal{began: time.Now()}
				for i := range len(test.output) { // byte by byte
					_, err := typist.Write([]byte{test.output[i]})
					g.Expect(err).NotTo(HaveOccurred())
				}
				g.Expect(typist.Type(t.Context(), terminal, strokesOf(test.input))).To(Succeed())
				g.Expect(terminal.writes).To(Equal(test.writes))
				if test.at != nil {
					g.Expect(terminal.at).To(Equal(test.at))
				}
			})
		})
	}
}

func TestTypist_WaitsForSilence(t *testing.T) {
	for name, test := range map[string]struct {
		prompt        string
		output, waits time.Duration
	}{
		"a program that draws for half a second":   {"", 500 * time.Millisecond, time.Second},
		"a spinner":                                {"", time.Hour, 2 * time.Second},
		"a spinner in a program with pasted input": {"\x1b[?2004h", time.Hour, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				ctx, cancel := context.WithCancel(t.Context())
				var drawing sync.WaitGroup
				defer drawing.Wait()
				defer cancel()
				typist, terminal := runtime.NewTypist(), &recordingTerminal{began: time.Now()}
				_, _ = typist.Write([]byte(test.prompt))
				drawing.Go(func() {
					for ctx.Err() == nil && time.Since(terminal.began) <= test.output {
						_, _ = typist.Write([]byte("."))
						time.Sleep(50 * time.Millisecond)
					}
				})
				g.Expect(typist.Type(ctx, terminal, runtime.Line("continue"))).To(Succeed())
				g.Expect(terminal.at[1]).To(Equal(test.waits))
			})
		})
	}
}

func TestTypist_WaitsForEchoBeforeEnter(t *testing.T) {
	for name, test := range map[string]struct {
		prompt        string
		reacts, waits time.Duration
	}{
		"a program draws the text":                      {"prompt> ", 10 * time.Millisecond, 510 * time.Millisecond},
		"a busy program draws the text late":            {"prompt> ", 400 * time.Millisecond, 1200 * time.Millisecond},
		"a program that does not echo":                  {"prompt> ", time.Hour, 2 * time.Second},
		"a program with bracketed paste":                {"\x1b[?2004hprompt> ", 10 * time.Millisecond, 1010 * time.Millisecond},
		"a program with bracketed paste on a busy host": {"\x1b[?2004hprompt> ", 4 * time.Second, 6 * time.Second},
		"a program with bracketed paste that hangs":     {"\x1b[?2004hprompt> ", time.Hour, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				typist, terminal := runtime.NewTypist(), &recordingTerminal{began: time.Now()}
				_, _ = typist.Write([]byte(test.prompt))
				reaction := time.AfterFunc(test.reacts, func() { _, _ = typist.Write([]byte("continue")) })
				defer reaction.Stop()
				g.Expect(typist.Type(t.Context(), terminal, runtime.Line("continue"))).To(Succeed())
				g.Expect(terminal.at[1]).To(Equal(test.waits))
			})
		})
	}
}

func TestTypist_StopsWhenContextIsCanceled(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var terminal bytes.Buffer
	g.Expect(runtime.NewTypist().Type(ctx, &terminal, runtime.Line("go on"))).To(MatchError(context.Canceled))
	g.Expect(terminal.String()).To(BeEmpty())
}
