// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package facts

// Input describes how the foreground process group of a terminal reads from the terminal. It contains no text that the terminal shows.
type Input struct {
	// Reader is what the foreground process group waits for: one of the constants below.
	Reader string `json:"reader,omitempty"`
	// Program is the name of the process that waits, at most 15 bytes; empty if no process waits.
	Program string `json:"program,omitempty"`
	// Canonical means that programs read whole lines. Echo means that the terminal shows typed characters.
	Canonical bool `json:"canonical,omitempty"`
	Echo      bool `json:"echo,omitempty"`
}

// Values of Input.Reader.
const (
	// ReaderUnknown means that a process of the group could not be inspected or is computing.
	ReaderUnknown = ""
	// ReaderNone means that every process of the group waits for something other than the terminal.
	ReaderNone = "None"
	// ReaderRead means that a process is blocked in a read of the terminal.
	ReaderRead = "Read"
	// ReaderPoll means that a process waits for the terminal to become readable, possibly together with other descriptors (poll, select, epoll).
	ReaderPoll = "Poll"
)
