// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"strings"
)

// maxAnswers bounds how many answers wait for a program that does not read.
const maxAnswers = 64

// answers answers the questions of a program to its terminal while no client with a terminal is attached. Programs wait for an answer, some of them for ever.
type answers struct {
	device    Device
	newScreen NewScreen
	// screen shows what the program has drawn. It exists from the first question for the cursor until a client answers or the size changes.
	screen        Screen
	columns, rows int32 // the size of the screen
	drawn         int   // how much of the output of the current call is on the screen
	waits         chan []byte
}

func newAnswers(device Device, newScreen NewScreen) *answers {
	return &answers{device: device, newScreen: newScreen, waits: make(chan []byte, maxAnswers)}
}

// run types the answers into the program until done is closed. It is separate from the output, which has to flow for the program to read.
func (a *answers) run(done <-chan struct{}) {
	for {
		select {
		case answer := <-a.waits:
			_, _ = a.device.Write(answer)
		case <-done:
			return
		}
	}
}

// give answers a question. before is the output of earlier calls, for a new screen, and kept that of the current call before the question.
func (a *answers) give(question []byte, before func() []byte, kept []byte) {
	if len(question) < 2 {
		return // enquiry and bell
	}
	if cursorQuestion(question) {
		if columns, rows := a.device.Size(); a.screen == nil || columns != a.columns || rows != a.rows {
			a.screen, a.columns, a.rows, a.drawn = a.newScreen(int(columns), int(rows)), columns, rows, 0
			_, _ = a.screen.Write(before())
		}
	}
	a.draw(kept)
	text := a.answer(question)
	if text == "" {
		return
	}
	select {
	case a.waits <- []byte(text):
	default: // the program asks without reading
	}
}

// draw draws the rest of the output of the current call.
func (a *answers) draw(kept []byte) {
	if a.screen != nil {
		_, _ = a.screen.Write(kept[a.drawn:])
	}
	a.drawn = len(kept)
}

func cursorQuestion(question []byte) bool {
	return string(question) == "\x1b[6n" || string(question) == "\x1b[?6n"
}

// The size of a cell in pixels that questions for pixels are answered with; no pixel is ever drawn.
const cellWidth, cellHeight = 8, 16

// The answers that do not depend on the state of the terminal: a VT220 with colors, dark.
var fixedAnswers = map[string]string{
	"\x1bZ": "\x1b[?62;22c", "\x1b[c": "\x1b[?62;22c", "\x1b[0c": "\x1b[?62;22c",
	"\x1b[>c": "\x1b[>1;0;0c", "\x1b[>0c": "\x1b[>1;0;0c",
	"\x1b[=c": "\x1bP!|00000000\x1b\\", "\x1b[=0c": "\x1bP!|00000000\x1b\\",
	"\x1b[>q": "\x1bP>|berth\x1b\\", "\x1b[>0q": "\x1bP>|berth\x1b\\",
	"\x1b[5n": "\x1b[0n", "\x1b[?996n": "\x1b[?997;1n",
	"\x1b[x": "\x1b[2;1;1;120;120;1;0x", "\x1b[0x": "\x1b[2;1;1;120;120;1;0x", "\x1b[1x": "\x1b[3;1;1;120;120;1;0x",
	"\x1b[11t": "\x1b[1t", "\x1b[13t": "\x1b[3;0;0t", "\x1b[20t": "\x1b]L\x1b\\", "\x1b[21t": "\x1b]l\x1b\\",
	"\x1b[16t":  fmt.Sprintf("\x1b[6;%d;%dt", cellHeight, cellWidth),
	"\x1b]10;?": "\x1b]10;rgb:e5e5/e5e5/e5e5", "\x1b]11;?": "\x1b]11;rgb:0000/0000/0000", "\x1b]12;?": "\x1b]12;rgb:e5e5/e5e5/e5e5",
	"\x1b]52;c;?": "\x1b]52;c;", // there is no clipboard
}

// answer returns the answer to a question; empty if there is none.
func (a *answers) answer(question []byte) string {
	text, end := string(question), ""
	for _, terminator := range []string{"\x1b\\", "\a"} { // an answer ends as its question
		if inner, found := strings.CutSuffix(text, terminator); found {
			text, end = inner, terminator
			break
		}
	}
	if answer, found := fixedAnswers[text]; found {
		return answer + end
	}
	columns, rows := a.device.Size()
	switch {
	case cursorQuestion(question):
		column, row := a.screen.Cursor()
		if text == "\x1b[6n" {
			return fmt.Sprintf("\x1b[%d;%dR", row+1, column+1)
		}
		return fmt.Sprintf("\x1b[?%d;%d;1R", row+1, column+1)
	case strings.HasPrefix(text, "\x1bP$q"):
		return "\x1bP0$r\x1b\\" // no setting is known
	case strings.HasPrefix(text, "\x1bP+q"):
		return "\x1bP0+r\x1b\\"
	case strings.HasSuffix(text, "$p"):
		return strings.TrimSuffix(text, "$p") + ";0$y" // no mode is known
	case columns == 0: // the size is not known
	case text == "\x1b[18t":
		return fmt.Sprintf("\x1b[8;%d;%dt", rows, columns)
	case text == "\x1b[19t":
		return fmt.Sprintf("\x1b[9;%d;%dt", rows, columns)
	case text == "\x1b[14t":
		return fmt.Sprintf("\x1b[4;%d;%dt", rows*cellHeight, columns*cellWidth)
	}
	return ""
}
