// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/terminal"
)

// Limits of the tool logs.
const (
	defaultLogLines = 50
	maxLogLines     = 1000
	// searchLines is how many lines from the end are searched.
	searchLines = 20_000
	// maxLogRead is how many bytes of output one call reads.
	maxLogRead = 4 << 20
	// maxLogText is how many bytes of lines one call returns. maxLogLine is how many of them are of one line.
	maxLogText = 48 << 10
	maxLogLine = 2 << 10
)

type logsInput struct {
	named
	Lines  int    `json:"lines,omitempty" jsonschema:"default 50, at most 1000"`
	Search string `json:"search,omitempty" jsonschema:"only lines that match this RE2 expression"`
	Cursor string `json:"cursor,omitempty" jsonschema:"only output after the cursor of an earlier result"`
}

type logsOutput struct {
	UntrustedOutput []string `json:"untrustedOutput"` // the lines
	Cursor          string   `json:"cursor,omitempty" `
	Cut             bool     `json:"cut,omitempty"` // earlier lines were left out
}

type sendInput struct {
	named
	Text      string   `json:"text,omitempty"`
	Keys      []string `json:"keys,omitempty" jsonschema:"keys after the text instead of Enter: Enter, Escape, Tab, Space, Up, Down…"`
	NoEnter   bool     `json:"noEnter,omitempty" jsonschema:"do not type Enter after the text"`
	Interrupt bool     `json:"interrupt,omitempty" jsonschema:"type Ctrl-C first"`
	// Incarnation is the incarnation that must run.
	Incarnation int64 `json:"incarnation,omitempty" jsonschema:"fail if restarted since screen"`
}

type sendOutput struct {
	Result            string `json:"result"`
	UntrustedQuestion string `json:"untrustedQuestion,omitempty"` // that follows, and is not answered
}

type screenOutput struct {
	UntrustedOutput string `json:"untrustedOutput"`
	Incarnation     int64  `json:"incarnation,omitempty"`
}

func (t *toolContext) addOutputTools(box *toolbox) {
	addTool(box, "logs", reads, "Read the output of an object, including output from before its restarts.", onObject(t, t.logs))
	addTool(box, "screen", reads, "Read the current screen of an instance as plain text.", onObject(t, t.screen))
	addTool(box, "send", changes, "Type text and Enter into a terminal. One call answers one question: in a menu, send the number of a choice, or keys; "+
		"an empty text is Enter alone. If untrustedQuestion is set, that question follows and is not answered.", onObject(t, t.send))
}

func (t *toolContext) logs(ctx context.Context, of *target, input logsInput) (logsOutput, error) {
	search, err := regexp.Compile(input.Search)
	if err != nil {
		return logsOutput{}, fmt.Errorf("search is not a valid RE2 expression: %w", err)
	}
	limit := defaultLogLines
	if input.Lines > 0 {
		limit = min(input.Lines, maxLogLines)
	}
	opts := endpoint.LogOptions{Tail: int64(limit)}
	if input.Search != "" || input.Cursor != "" {
		opts.Tail = searchLines
	}
	text, cursor, err := t.output(ctx, of.ref, of.object, input.Cursor, opts)
	if err != nil {
		return logsOutput{}, err
	}
	output := logsOutput{Cursor: cursor}
	output.UntrustedOutput, output.Cut = selectLines(text, search, limit)
	return output, nil
}

// output reads the output of an object that follows a cursor, and returns the cursor that continues after it. On a machine, a cursor is an offset in the output.
func (t *toolContext) output(ctx context.Context, ref reference, object process.Object, cursor string, opts endpoint.LogOptions) (text []byte, next string, err error) {
	if inPod(object) {
		return t.podOutput(ctx, ref, object, cursor, opts)
	}
	if cursor != "" {
		offset, err := strconv.ParseInt(cursor, 10, 64)
		if err != nil || offset < 0 {
			return nil, "", invalidCursor(cursor)
		}
		opts.Offset = &offset
	}
	manager, err := t.to.manager(ctx, object)
	if err != nil {
		return nil, "", err
	}
	defer manager.Close()
	stream, err := manager.Log(ctx, t.to.endpointObject(ref), opts)
	if err != nil {
		return nil, "", fmt.Errorf("logs of %s: %w", ref, err)
	}
	defer func() { _ = stream.Close() }()
	text, err = io.ReadAll(io.LimitReader(stream, maxLogRead))
	if err != nil {
		return nil, "", fmt.Errorf("logs of %s: %w", ref, err)
	}
	if !stream.Screen {
		next = strconv.FormatInt(stream.Offset+int64(len(text)), 10)
	}
	return text, next, nil
}

// clockMargin is how much the clocks of this machine and of a node may differ.
const clockMargin = time.Minute

// podOutput is output for an object in a Pod. There a cursor is the time of the last line, because a node records times and not offsets.
func (t *toolContext) podOutput(ctx context.Context, ref reference, object process.Object, cursor string, opts endpoint.LogOptions) (text []byte, next string, err error) {
	var after time.Time
	selected := logOptions{LogOptions: opts, timestamps: true, maxBytes: maxLogRead}
	if cursor != "" {
		if after, err = time.Parse(time.RFC3339Nano, cursor); err != nil {
			return nil, "", invalidCursor(cursor)
		}
		selected.since = max(0, t.app.clock.Since(after)) + clockMargin
	}
	var stamped bytes.Buffer
	if err := t.app.copyLogs(ctx, t.to, ref, object, selected, &stamped); err != nil {
		return nil, "", err
	}
	text, last := linesAfter(stamped.Bytes(), after)
	if last.IsZero() {
		return text, cursor, nil
	}
	return text, last.Format(time.RFC3339Nano), nil
}

// linesAfter returns the lines that are newer than a time, without the time before each line, and the time of the last line.
func linesAfter(stamped []byte, after time.Time) (text []byte, last time.Time) {
	for line := range bytes.Lines(stamped) {
		stamp, content, _ := bytes.Cut(line, []byte(" "))
		at, err := time.Parse(time.RFC3339Nano, string(stamp))
		if err != nil {
			content, at = line, last // not a line of the program
		}
		if !at.After(after) {
			continue
		}
		last = at
		text = append(text, content...)
	}
	return text, last
}

func invalidCursor(cursor string) error {
	return fmt.Errorf("cursor %q is invalid: pass the cursor of an earlier result", cursor)
}

// selectLines returns the last lines of text that match the expression, within the limits. cut reports whether it left out earlier ones.
func selectLines(text []byte, search *regexp.Regexp, limit int) (lines []string, cut bool) {
	lines = []string{}
	if len(text) == 0 {
		return lines, false
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(text), "\n"), "\n") {
		line = strings.TrimRight(printable.Text(strings.TrimRight(line, "\r")), " \t")
		if search.MatchString(line) {
			lines = append(lines, line)
		}
	}
	size, first := 0, len(lines)
	for first > 0 && len(lines)-first < limit {
		lines[first-1] = printable.Shorten(lines[first-1], maxLogLine)
		if size += len(lines[first-1]) + 1; size > maxLogText {
			break
		}
		first--
	}
	return lines[first:], first > 0
}

func (t *toolContext) screen(ctx context.Context, of *target, _ named) (screenOutput, error) {
	text, err := t.app.screen(ctx, t.to, of.ref, of.object)
	// The object was read before the screen. After a restart in between, send refuses this incarnation.
	return screenOutput{UntrustedOutput: printable.Text(text), Incarnation: of.object.GetProcessStatus().Incarnation}, err
}

func (t *toolContext) send(ctx context.Context, of *target, input sendInput) (sendOutput, error) {
	options := typing{noEnter: input.NoEnter, interrupt: input.Interrupt, keys: input.Keys}
	var words []string
	if input.Text != "" || !input.NoEnter && !input.Interrupt && len(input.Keys) == 0 {
		words = []string{input.Text}
	}
	strokes, err := options.keystrokes(words)
	if err != nil {
		return sendOutput{}, fmt.Errorf("%s: set text, keys or interrupt: %w", of.ref, err)
	}
	if input.Incarnation < 0 {
		return sendOutput{}, fmt.Errorf("incarnation %d: pass the incarnation that screen shows", input.Incarnation)
	}
	of.ref.incarnation = input.Incarnation
	err = t.app.typeInto(ctx, t.to, of.ref, strokes)
	withheld := withheldBy(err)
	switch {
	case err == nil:
		return sendOutput{Result: "typed; call screen or logs to see the effect"}, nil
	case withheld == nil:
		return sendOutput{}, err
	case withheld.Verdict == terminal.NotTaken:
		return sendOutput{}, fmt.Errorf("%w; call screen", err)
	}
	return sendOutput{Result: withheld.Error(), UntrustedQuestion: printable.Text(withheld.Question)}, nil
}
