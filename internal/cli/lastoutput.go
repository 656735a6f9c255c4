// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/endpoint"
)

const (
	// outputTimeout bounds how long berth status waits for the output of a process.
	outputTimeout = 3 * time.Second
	// outputRead and outputBytes bound the lines and bytes that are read. outputLines and outputLimit bound the lines and bytes that are printed, and outputLine the
	// bytes of one of them.
	outputRead  = 60
	outputBytes = 1 << 20
	outputLines = 16
	outputLimit = 1 << 10
	outputLine  = 160
)

// lastOutput returns the last lines of output of an object, which may show the cause of a failure. It returns nil if they cannot be read.
func (a *app) lastOutput(ctx context.Context, to *connection, ref reference) []string {
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	text := to.tail(ctx, ref)
	shown := excerpt(text)
	if len(shown) == 0 && text != nil {
		return []string{"  Last output: none; the program has written nothing."}
	}
	if len(shown) == 0 {
		return nil
	}
	for i := range shown {
		shown[i] = "    " + shown[i]
	}
	return append([]string{"  Last output:"}, shown...)
}

// tail returns the end of the output, as much as it could read before the context was done.
func (c *connection) tail(ctx context.Context, ref reference) []byte {
	object, err := c.get(ctx, ref)
	if err != nil {
		return nil
	}
	if inPod(object) {
		api, err := kubernetes.NewForConfig(c.config)
		if err != nil {
			return nil
		}
		newest, err := c.newestPod(ctx, object)
		if err != nil || newest == nil {
			return nil
		}
		var text bytes.Buffer
		from := podOutput{api: api, tail: ptr.To[int64](outputRead), out: &text}
		_, _ = from.print(ctx, newest) // a partial result is still useful
		return text.Bytes()
	}
	manager, err := c.manager(ctx)
	if err != nil {
		return nil
	}
	defer manager.Close()
	stream, err := manager.Log(ctx, c.endpointObject(ref), endpoint.LogOptions{Tail: outputRead})
	if err != nil {
		return nil
	}
	defer func() { _ = stream.Close() }()
	text, _ := io.ReadAll(io.LimitReader(stream, outputBytes)) // a partial result is still useful
	return text
}

// stackFrame matches the lines that JavaScript and Java print below an error. There are often so many that they would displace the error itself.
var stackFrame = regexp.MustCompile(`^\s+at \S`)

// excerpt returns the last lines of text that contain a letter or a digit, within the limits, without stack frames and control characters. Lines without letters are
// parentheses and frames, which would displace the error that they surround.
func excerpt(text []byte) []string {
	var shown []string
	for line := range strings.SplitSeq(string(text), "\n") {
		line = strings.TrimRight(printable(strings.TrimRight(line, "\r")), " \t")
		if strings.ContainsFunc(line, isWord) && !stackFrame.MatchString(line) {
			shown = append(shown, shortened(line, outputLine))
		}
	}
	shown = shown[max(0, len(shown)-outputLines):]
	size := 0
	for i := len(shown) - 1; i >= 0; i-- {
		if size += len(shown[i]) + 1; size <= outputLimit {
			continue
		}
		return shown[i+1:]
	}
	return shown
}

func isWord(char rune) bool { return unicode.IsLetter(char) || unicode.IsDigit(char) }

// shortened cuts a line to limit bytes, at a character boundary.
func shortened(line string, limit int) string {
	if len(line) <= limit {
		return line
	}
	const mark = "…"
	cut := limit - len(mark)
	for cut > 0 && !utf8.RuneStart(line[cut]) {
		cut--
	}
	return line[:cut] + mark
}
