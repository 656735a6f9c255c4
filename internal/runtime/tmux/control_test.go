// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func readAll(text string) (all []event, err error) {
	messages := events{bufio.NewReader(strings.NewReader(text))}
	for {
		e, err := messages.next()
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
}

func TestEvents_ParsesMessages(t *testing.T) {
	g := NewWithT(t)
	all, err := readAll("%begin 1 7 0\n%end 1 7 0\n%session-changed $0 work\n%output %0 a\\033[1m\\134\xc3\xa9\n%begin 1 8 1\none\n%end 1 7 1\n%output %0 x\n%end 1 8 1\n" +
		"%begin 1 9 1\ncan't find pane: %9\n%error 1 9 1\n%layout-change @0 x y *\n%begin 2 1 1\n%end 2 1 1\n%exit\n")
	g.Expect(err).To(MatchError(io.EOF))
	g.Expect(all).To(Equal([]event{
		{kind: replyEvent, data: []byte{}},
		{},
		{kind: outputEvent, pane: "%0", data: []byte("a\x1b[1m\\é")},
		{kind: replyEvent, data: []byte("one\n%end 1 7 1\n%output %0 x"), asked: true},
		{kind: errorEvent, data: []byte("can't find pane: %9"), asked: true},
		{kind: layoutEvent},
		{kind: replyEvent, data: []byte{}, asked: true},
		{kind: exitEvent},
	}))
}

func TestEvents_LimitsMemory(t *testing.T) {
	g := NewWithT(t)
	_, err := readAll("%output %0 " + strings.Repeat("x", mostLine))
	g.Expect(err).To(MatchError(ContainSubstring("a line of tmux exceeds")))
	_, err = readAll("%begin 1 1 1\n" + strings.Repeat(strings.Repeat("x", 1023)+"\n", mostAnswer>>10) + "\n")
	g.Expect(err).To(MatchError(ContainSubstring("the response of tmux exceeds")))
}

func FuzzEvents(f *testing.F) {
	f.Add("%output %0 a\\033\\\n%begin 1 2 1\nx\n%end 1 2 1\n")
	f.Add("%begin \n%end \n%output\n\\\n\\1\n%output %1 \\777\\400\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := readAll(text)
		if err == nil || errors.Is(err, bufio.ErrBufferFull) {
			t.Errorf("after %d messages: %v", len(all), err)
		}
	})
}

func TestPaneState_RejectsOtherResponses(t *testing.T) {
	g := NewWithT(t)
	_, err := parseState([]byte("1,2"))
	g.Expect(err).To(HaveOccurred())
	state, err := parseState([]byte("11,12,3,4,2,19,24,0,1,0,0,0,1,1,0,0,0,0,0,"))
	g.Expect(err).NotTo(HaveOccurred())
	drawn := string(state.draw([]byte("one\ntwo"), []byte("\x1b[")))
	g.Expect(drawn).To(And(HavePrefix("\x1b[?1049l"), ContainSubstring("\x1b[1;1Hone\x1b[2;1Htwo"), ContainSubstring("\x1b[3;20r"), ContainSubstring("\x1b[?6h")))
	g.Expect(drawn).To(HaveSuffix("\x1b[3;4H\x1b["), "rows are counted from the scroll region")
	g.Expect(bytes.Count([]byte(drawn), []byte("\x1b[?2004l"))).To(Equal(1), "a version of tmux that does not know the mode")
}
