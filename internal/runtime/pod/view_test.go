// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
)

func TestView_JoinsLogAndConnection(t *testing.T) {
	for name, test := range map[string]struct{ text, logged, heard, want string }{
		"no output":                         {},
		"only the log":                      {logged: "a\r\n", want: "a\r\n"},
		"not logged yet":                    {heard: "a\r\nask? ", want: "a\r\nask? "},
		"all logged meanwhile":              {logged: "a\r\nb\r\n", heard: "b\r\n", want: "a\r\nb\r\n"},
		"partly logged meanwhile":           {logged: "a\r\nb\r\n", heard: "b\r\nc\r\nask? ", want: "a\r\nb\r\nc\r\nask? "},
		"a line from before the connection": {logged: "a\r\nask? yes\r\n", heard: "yes\r\nask? ", want: "a\r\nask? yes\r\nask? "},
		"log ahead of the connection":       {logged: "a\r\nb\r\nc\r\n", heard: "b\r\n", want: "a\r\nb\r\n"},
		"an unfinished line":                {logged: "a\r\n", heard: "ask? ", want: "a\r\nask? "},
		"newlines without carriage returns": {logged: "a\r\nb\r\n", heard: "b\nask? ", want: "a\r\nb\r\nask? "},
		"reconnected, nothing missed":       {text: "a\r\nask? ", logged: "a\r\n", want: "a\r\nask? "},
		"reconnected, output missed":        {text: "a\r\nask? ", logged: "a\r\nask? y\r\nb\r\n", heard: "more? ", want: "a\r\nask? y\r\nb\r\nmore? "},
		"reconnected, nothing logged":       {text: "ask? ", want: "ask? "},
		"reconnected, rotated log":          {text: "a\r\n", logged: "x\r\n", want: "x\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			v := &view{text: []byte(test.text), heard: []byte(test.heard)}
			v.join([]byte(test.logged), time.Time{})
			text, live := v.output()
			g.Expect(string(text)).To(Equal(test.want))
			g.Expect(live).To(BeTrue())
		})
	}
}

func TestView_TellsSignals(t *testing.T) {
	g := NewWithT(t)
	v := &view{tell: func() {}}
	title := func() facts.Signal { return v.signals().Title }
	v.join([]byte("\x1b]0;logged\aa\r\n"), time.Time{})
	g.Expect(title()).To(Equal(facts.Signal{Text: "logged"}), "of the log, without a time")
	_, _ = v.Write([]byte("\x1b]0;live\ab\r\n"))
	g.Expect(title()).To(And(HaveField("Text", "live"), HaveField("At", Not(BeZero()))))
	v.lost()
	g.Expect(title()).To(BeZero(), "without a connection")
	v.join([]byte("\x1b]0;logged\aa\r\n\x1b]0;live\ab\r\n"), time.Time{})
	g.Expect(title()).To(And(HaveField("Text", "live"), HaveField("At", Not(BeZero()))), "nothing was missed")
	v.lost()
	v.join([]byte("b\r\n\x1b]0;missed\ac\r\n"), time.Time{})
	g.Expect(title()).To(Equal(facts.Signal{Text: "missed"}))
}

func TestView_NotifiesOncePerWatch(t *testing.T) {
	g, told := NewWithT(t), 0
	v := &view{tell: func() { told++ }}
	g.Expect(v.watch()).To(BeTrue(), "the connection is still being opened")
	v.join(nil, time.Unix(9, 0))
	g.Expect(told).To(Equal(1))
	last, live := v.activity()
	g.Expect(live).To(BeTrue())
	g.Expect(last).To(Equal(time.Unix(9, 0)))
	_, _ = v.Write([]byte("a"))
	g.Expect(told).To(Equal(1), "no watch is active")
	g.Expect(v.watch()).To(BeTrue())
	g.Expect(v.watch()).To(BeTrue())
	_, _ = v.Write([]byte("b"))
	_, _ = v.Write([]byte("c"))
	g.Expect(told).To(Equal(2))
	g.Expect(v.watch()).To(BeTrue())
	g.Expect(v.lost()).To(BeTrue())
	g.Expect(told).To(Equal(3), "the loss is the last event")
	g.Expect(v.watch()).To(BeFalse())
	g.Expect(v.lost()).To(BeFalse())
	var none *view
	g.Expect(none.watch()).To(BeFalse())
}

func TestView_KeepsEndOfLongOutput(t *testing.T) {
	g := NewWithT(t)
	v := &view{tell: func() {}}
	v.join(nil, time.Time{})
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 1000 {
		_, _ = v.Write(line)
	}
	_, _ = v.Write([]byte("last"))
	text, _ := v.output()
	g.Expect(len(text)).To(And(BeNumerically(">=", mostShown), BeNumerically("<=", 2*mostShown)))
	g.Expect(string(text)).To(HaveSuffix("x\nlast"))
}

func TestUnstamp_RemovesTimestamps(t *testing.T) {
	g := NewWithT(t)
	text, last := unstamp([]byte("2026-01-02T03:04:05.678Z one\n2026-01-02T03:04:06Z two words\n2026-01-02T03:04:07Z \n"))
	g.Expect(string(text)).To(Equal("one\r\ntwo words\r\n\r\n"))
	g.Expect(last).To(BeTemporally("==", time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC)))
	text, last = unstamp(nil)
	g.Expect(text).To(BeEmpty())
	g.Expect(last).To(BeZero())
}
