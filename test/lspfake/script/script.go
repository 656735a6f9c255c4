// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package script is what the fake language server is told, and what it tells of itself.
//
// The server is started as lspfake -dir DIR -name NAME. It reads DIR/NAME.json, anew at every start, and appends to DIR/NAME.journal,
// DIR/NAME.effects, and to DIR/starts, DIR/signals and DIR/violations, as the workload of test/races does.
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

// Where a start fails. One more place is before the program: a command that is not there.
const (
	StartExit        = "exit"        // ends before it reads anything
	StartError       = "error"       // answers initialize with an error
	StartSilent      = "silent"      // reads, and never answers
	StartGarbage     = "garbage"     // writes no frames
	StartOversize    = "oversize"    // announces a message of a terabyte
	StartLogFirst    = "logFirst"    // tells much, then ends before it answers
	StartInitExit    = "initExit"    // ends right after it answered initialize
	StartIgnoreEOF   = "ignoreEOF"   // never answers, and lives on without its stdin
	StartIgnoreTERM  = "ignoreTERM"  // never answers, and ends neither without stdin nor on SIGTERM
	StartFork        = "fork"        // ends, and leaves a child in a session of its own, that has its pipes and ignores SIGTERM
	StartCloseStdout = "closeStdout" // closes its stdout and lives on
)

// Starts are all of them.
var Starts = []string{
	StartExit, StartError, StartSilent, StartGarbage, StartOversize, StartLogFirst, StartInitExit, StartIgnoreEOF, StartIgnoreTERM, StartFork, StartCloseStdout,
}

// What may happen instead of an answer, or before it.
const (
	Die          = "die"          // ends with code 1
	Kill         = "kill"         // is killed, as by the kernel
	DieMidFrame  = "dieMidFrame"  // ends in the middle of its answer
	Freeze       = "freeze"       // neither reads nor answers any more
	Silent       = "silent"       // never answers this one
	Delay        = "delay"        // answers after MS, and others meanwhile
	Block        = "block"        // answers after MS, and nobody meanwhile
	Huge         = "huge"         // answers with so many Bytes
	Endless      = "endless"      // announces a message of Bytes, and writes for ever
	HeaderFlood  = "headerFlood"  // writes header lines for ever
	HeaderLine   = "headerLine"   // writes one header line for ever
	LieShort     = "lieShort"     // announces less than it writes
	LieLong      = "lieLong"      // announces more than it writes, and goes on with the next message
	Negative     = "negative"     // announces a negative length
	Stall        = "stall"        // writes so many Bytes, half of a message, and then nothing
	LogFlood     = "logFlood"     // writes so many Bytes to stderr, then answers
	MessageFlood = "messageFlood" // sends so many Bytes of window/logMessage, then answers
	Fail         = "fail"         // answers with an error
	Empty        = "empty"        // answers null
)

// Script is what one server does. The zero value is a server without faults.
type Script struct {
	// Start is where the start fails, the first Fails times; 0: always.
	Start string `json:"start,omitempty"`
	Fails int    `json:"fails,omitempty"`
	// InitializeMS is how long initialize takes; IndexingMS how long progress is reported after it.
	InitializeMS int `json:"initializeMS,omitempty"`
	IndexingMS   int `json:"indexingMS,omitempty"`
	// IgnoreEOF and IgnoreTERM: it does not end by these. IgnoreShutdown: it answers no shutdown and ends on no exit.
	IgnoreEOF      bool `json:"ignoreEOF,omitempty"`
	IgnoreTERM     bool `json:"ignoreTERM,omitempty"`
	IgnoreShutdown bool `json:"ignoreShutdown,omitempty"`
	// Child starts a child in a session of its own that ignores SIGTERM.
	Child bool `json:"child,omitempty"`
	// Diagnostics publishes each line that holds the word error.
	Diagnostics bool `json:"diagnostics,omitempty"`
	// Ballast is so many MiB of memory that it holds and has written to.
	Ballast int `json:"ballast,omitempty"`
	// Quiet keeps it from writing a journal.
	Quiet bool `json:"quiet,omitempty"`
	// Faults are looked through in order; the first that fits a request happens.
	Faults []Fault `json:"faults,omitempty"`
}

// Fault is something that happens to a request. A client may ask for one in a member "fake" of its params.
type Fault struct {
	// Method and URI, if set, have to fit. Nth is the how-manieth request that fits, counted by one process; 0: every one.
	Method string `json:"method,omitempty"`
	URI    string `json:"uri,omitempty"`
	Nth    int    `json:"nth,omitempty"`

	Do    string `json:"do"`
	MS    int    `json:"ms,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	// Pad makes the answer of a hover so much longer.
	Pad int `json:"pad,omitempty"`
}

// What a line of the journal tells.
const (
	Started   = "started"
	Open      = "open"
	Change    = "change"
	Save      = "save"
	Close     = "close"
	Request   = "request"
	Answer    = "answer" // of the client, to what the server asked
	Cancel    = "cancel"
	Notice    = "notice" // any other notification
	Shutdown  = "shutdown"
	Exit      = "exit"
	EOF       = "eof"
	Stalled   = "stalled"   // half a message was taken from it
	Violation = "violation" // of the protocol
)

// Line is one line of the journal.
type Line struct {
	PID     int             `json:"pid"`
	What    string          `json:"what"`
	URI     string          `json:"uri,omitempty"`
	Version int64           `json:"version,omitempty"`
	Sum     string          `json:"sum,omitempty"` // of the text of the document
	Method  string          `json:"method,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"` // of initialize and answers
	Message string          `json:"message,omitempty"`
}

// Sum tells texts apart.
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

// Read reads the script; one that is not there is one without faults.
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

// Journal reads what servers of that name have told.
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

// Effects counts, for each effect that a client asked for, how often it was carried out.
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
