// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/charmbracelet/x/ansi"

	"github.com/berth-dev/berth/internal/printable"
)

// maxColor bounds the parameters of one sequence that sets a color.
const maxColor = 32

// printedLog passes only text, line ends and colors on. A program writes much more to its terminal: it moves the cursor, changes modes, asks questions, whose answers
// would be typed into the shell of the user, and writes to the clipboard.
type printedLog struct {
	to      io.Writer
	parser  *ansi.Parser
	colors  bool
	colored bool // the text that follows has a color
	text    bytes.Buffer
}

func newPrintedLog(to io.Writer, colors bool) *printedLog {
	l := &printedLog{to: to, parser: ansi.NewParser(), colors: colors}
	l.parser.SetParamsSize(maxColor)
	l.parser.SetDataSize(1) // the strings of sequences are dropped
	l.parser.SetHandler(ansi.Handler{Print: l.print, Execute: l.execute, HandleCsi: l.control})
	return l
}

// Write implements io.Writer.
func (l *printedLog) Write(text []byte) (int, error) {
	l.text.Reset()
	for _, b := range text {
		l.parser.Advance(b)
	}
	if _, err := l.to.Write(l.text.Bytes()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// end resets the color.
func (l *printedLog) end() {
	if l.colored {
		_, _ = io.WriteString(l.to, ansi.ResetStyle)
	}
}

func (l *printedLog) print(r rune) { l.text.WriteString(printable.Text(string(r))) }

func (l *printedLog) execute(b byte) {
	if b == '\n' || b == '\t' || b == '\r' {
		l.text.WriteByte(b)
	}
}

func (l *printedLog) control(cmd ansi.Cmd, params ansi.Params) {
	if cmd != 'm' || !l.colors {
		return
	}
	l.text.WriteString("\x1b[")
	params.ForEach(-1, func(i, value int, hasMore bool) {
		if value >= 0 {
			l.text.WriteString(strconv.Itoa(value))
		}
		switch {
		case i == len(params)-1:
		case hasMore:
			l.text.WriteByte(':')
		default:
			l.text.WriteByte(';')
		}
	})
	l.text.WriteByte('m')
	last, _, _ := params.Param(len(params)-1, 0)
	l.colored = len(params) > 1 || last != 0
}

// logDisplay selects what berth logs prints of the output of a process: text and colors at a terminal, and everything to a file or a pipe. Without colors, it is
// text in both cases.
type logDisplay struct {
	raw   bool
	color string
}

func (d *logDisplay) check() error {
	switch d.color {
	case "auto", "always", "never":
		return nil
	}
	return fmt.Errorf("--color %q is not supported: use auto, always or never", d.color)
}

// writer returns what copies the output of a process to out, and a function that ends it.
func (d *logDisplay) writer(out io.Writer, terminal bool) (to io.Writer, end func()) {
	colors := d.color == "always" || d.color == "auto" && os.Getenv("NO_COLOR") == ""
	if d.raw || !terminal && colors {
		return out, func() {}
	}
	text := newPrintedLog(out, colors)
	return text, text.end
}
