// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package script defines the input of the fake language server and the files that it writes.
//
// The server is started as lspfake -dir DIR -name NAME. It reads DIR/NAME.json at every start, and appends to DIR/NAME.journal and DIR/NAME.effects. It
// also appends to DIR/starts, DIR/signals and DIR/violations, in the format that the workload of test/races uses.
package script

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// The values of Script.Start describe how the start of the server fails. A start can also fail before the program runs, if the command does not exist.
const (
	StartExit        = "exit"        // exits before it reads anything
	StartError       = "error"       // answers initialize with an error
	StartSilent      = "silent"      // reads, and never answers
	StartGarbage     = "garbage"     // writes text without frames
	StartOversize    = "oversize"    // announces a message of a terabyte
	StartLogFirst    = "logFirst"    // writes many log messages, then exits before it answers
	StartInitExit    = "initExit"    // exits right after it answered initialize
	StartIgnoreEOF   = "ignoreEOF"   // never answers, and keeps running after the end of stdin
	StartIgnoreTERM  = "ignoreTERM"  // never answers, and keeps running after the end of stdin and after SIGTERM
	StartFork        = "fork"        // exits, and leaves a child in a separate session that holds the server's pipes and ignores SIGTERM
	StartCloseStdout = "closeStdout" // closes its stdout and keeps running
)

// Starts lists all values of Script.Start.
var Starts = []string{
	StartExit, StartError, StartSilent, StartGarbage, StartOversize, StartLogFirst, StartInitExit, StartIgnoreEOF, StartIgnoreTERM, StartFork, StartCloseStdout,
}

// The values of Fault.Do describe what the server does before it answers or instead of answering. MS and Bytes are fields of Fault.
const (
	Die          = "die"          // exits with code 1
	Kill         = "kill"         // is killed with SIGKILL
	DieMidFrame  = "dieMidFrame"  // exits in the middle of a message
	Freeze       = "freeze"       // stops reading and answering
	Silent       = "silent"       // never answers this request
	Delay        = "delay"        // answers after MS milliseconds, and answers other requests in the meantime
	Block        = "block"        // answers after MS milliseconds, and does not read in the meantime
	Huge         = "huge"         // answers with a result of Bytes bytes
	Endless      = "endless"      // announces a message of Bytes bytes, and writes forever
	HeaderFlood  = "headerFlood"  // writes header lines forever
	HeaderLine   = "headerLine"   // writes one header line forever
	LieShort     = "lieShort"     // announces a shorter message than it writes
	LieLong      = "lieLong"      // announces a longer message than it writes, and continues with the next message
	Negative     = "negative"     // announces a negative length
	Stall        = "stall"        // writes the first half of a message (Bytes bytes, at least 1000), and then nothing
	LogFlood     = "logFlood"     // writes Bytes bytes to stderr, then answers
	MessageFlood = "messageFlood" // sends window/logMessage notifications with Bytes bytes of text, then answers
	Fail         = "fail"         // answers with an error
	Empty        = "empty"        // answers null
)

// Script is the behavior of one server. The zero value is a server without faults.
type Script struct {
	// Start describes how a start fails. If it is empty, every start succeeds. Fails is the number of failing starts; later starts succeed. If Fails is 0,
	// every start fails.
	Start string `json:"start,omitempty"`
	Fails int    `json:"fails,omitempty"`
	// InitializeMS is how long initialize takes, in milliseconds. IndexingMS is how long progress is reported after initialized, in milliseconds.
	InitializeMS int `json:"initializeMS,omitempty"`
	IndexingMS   int `json:"indexingMS,omitempty"`
	// IgnoreEOF keeps the server running after the end of stdin. IgnoreTERM keeps it running after SIGTERM. With IgnoreShutdown the server neither answers
	// the shutdown request nor exits on the exit notification.
	IgnoreEOF      bool `json:"ignoreEOF,omitempty"`
	IgnoreTERM     bool `json:"ignoreTERM,omitempty"`
	IgnoreShutdown bool `json:"ignoreShutdown,omitempty"`
	// Child starts a child in a separate session that ignores SIGTERM.
	Child bool `json:"child,omitempty"`
	// Diagnostics makes the server publish a diagnostic for each line that contains the text "error".
	Diagnostics bool `json:"diagnostics,omitempty"`
	// Ballast is the memory, in MiB, that the server allocates and writes to.
	Ballast int `json:"ballast,omitempty"`
	// Quiet disables the journal.
	Quiet bool `json:"quiet,omitempty"`
	// Faults are checked in order; the first one that matches a message is carried out.
	Faults []Fault `json:"faults,omitempty"`
}

// Fault is a fault in the handling of a request, or of a didOpen or didChange notification. A client can request a fault in the member "fake" of the
// params of a message.
type Fault struct {
	// Method and URI must match the message if they are set. Nth selects one of the matching messages, counted from 1 in each process; 0 selects all of
	// them.
	Method string `json:"method,omitempty"`
	URI    string `json:"uri,omitempty"`
	Nth    int    `json:"nth,omitempty"`

	Do    string `json:"do"`
	MS    int    `json:"ms,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	// Pad is the number of bytes appended to the answer of a hover.
	Pad int `json:"pad,omitempty"`
}

// The values of Line.What are the kinds of lines in the journal.
const (
	Started   = "started"
	Open      = "open"
	Change    = "change"
	Save      = "save"
	Close     = "close"
	Request   = "request"
	Answer    = "answer" // response of the client to a request of the server
	Cancel    = "cancel"
	Notice    = "notice" // any other notification
	Shutdown  = "shutdown"
	Exit      = "exit"
	EOF       = "eof"
	Stalled   = "stalled"   // half of a message was written
	Violation = "violation" // the client violated the protocol
)

// Line is one line of the journal.
type Line struct {
	PID     int             `json:"pid"`
	What    string          `json:"what"`
	URI     string          `json:"uri,omitempty"`
	Version int64           `json:"version,omitempty"`
	Sum     string          `json:"sum,omitempty"` // hash of the text of the document
	Method  string          `json:"method,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"` // params of initialize, or the result or error of an answer
	Message string          `json:"message,omitempty"`
}

// Sum returns a hash of a text.
func Sum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// Write writes the script that the server reads at its next start.
func (s Script) Write(dir, name string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, "."+name+".json")
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, name+".json"))
}

// Read reads the script. If the file does not exist, it returns a script without faults.
func Read(dir, name string) (s Script, err error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("the script of %s: %w", name, err)
	}
	return s, nil
}

// Journal reads the journal of the servers with this name.
func Journal(dir, name string) (lines []Line, err error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".journal"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for text := range bytes.Lines(text) {
		var line Line
		if err := json.Unmarshal(text, &line); err != nil {
			return nil, fmt.Errorf("a line of the journal of %s: %w", name, err)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// Effects returns, for each effect that a client requested, how often it was carried out.
func Effects(dir, name string) (map[string]int, error) {
	effects := map[string]int{}
	file, err := os.Open(filepath.Join(dir, name+".effects"))
	if errors.Is(err, fs.ErrNotExist) {
		return effects, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		effects[lines.Text()]++
	}
	return effects, lines.Err()
}
