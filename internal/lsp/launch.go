// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lsp

import (
	"encoding/json"
	"time"

	"github.com/berth-dev/berth/internal/shim"
)

// Launch is all that the multiplexer needs to know to start one incarnation of the server. It may hold secrets: it is sent over the control
// socket and never written to disk.
type Launch struct {
	Incarnation int64 `json:"incarnation"`
	// Command is argv, Env the whole environment as NAME=value, Dir absolute.
	Command []string `json:"command"`
	Env     []string `json:"env,omitempty"`
	// Inherit puts the environment of the multiplexer before Env: that of a container, which nobody else knows.
	Inherit bool   `json:"inherit,omitempty"`
	Dir     string `json:"dir,omitempty"`
	// RunAs is the user of the server; nil: the user of the multiplexer.
	RunAs *shim.User `json:"runAs,omitempty"`
	// StopSignal ends the server's tree when the protocol's own way did not, such as SIGTERM.
	StopSignal string `json:"stopSignal,omitempty"`
	// Grace is how long the whole ladder of a stop may take before the manager kills; its rungs are cut to fit.
	Grace time.Duration `json:"grace,omitempty"`

	Config Config `json:"config"`
}

// Config is what the spec of a LanguageServer says beyond its process. Zero durations and numbers mean the defaults below.
type Config struct {
	// Language is the id of the language, such as go; for messages and as languageId where a client leaves it out.
	Language string `json:"language,omitempty"`
	// Folders are the absolute paths of the workspace, the first being its root.
	Folders []string `json:"folders,omitempty"`
	// InitializationOptions and Settings are passed to the server as they are.
	InitializationOptions json.RawMessage `json:"initializationOptions,omitempty"`
	Settings              json.RawMessage `json:"settings,omitempty"`

	Limits Limits `json:"limits"`
	Hold   Hold   `json:"hold"`
	Health Health `json:"health"`

	// StartupTimeout is how long initialize may take; progress prolongs it up to six times.
	StartupTimeout time.Duration `json:"startupTimeout,omitempty"`
	// WhileIndexing says what becomes of requests before the server has read its workspace: Forward (default) or Hold.
	WhileIndexing string `json:"whileIndexing,omitempty"`
	// Replay names methods, beyond the known reads, that may be sent again after a crash.
	Replay []string `json:"replay,omitempty"`
}

// What WhileIndexing may say.
const (
	IndexingForward = "Forward"
	IndexingHold    = "Hold"
)

// Limits bound what one multiplexer takes.
type Limits struct {
	// HeaderBytes is for the whole header block of a message (default 8 KiB; a line at most half of it).
	HeaderBytes int `json:"headerBytes,omitempty"`
	// MessageBytes is for a message from the server (default 64 MiB); ClientMessageBytes for one from a client (default 32 MiB).
	MessageBytes       int `json:"messageBytes,omitempty"`
	ClientMessageBytes int `json:"clientMessageBytes,omitempty"`
	// Clients (default 64), and for each: open documents (1000), bytes of their text (64 MiB), requests in flight (64), and bytes that wait to be
	// sent to it (8 MiB).
	Clients       int `json:"clients,omitempty"`
	OpenDocuments int `json:"openDocuments,omitempty"`
	DocumentBytes int `json:"documentBytes,omitempty"`
	InFlight      int `json:"inFlight,omitempty"`
	QueueBytes    int `json:"queueBytes,omitempty"`
	// RequestTimeout is how old a request may get before it is cancelled (default 120 s).
	RequestTimeout time.Duration `json:"requestTimeout,omitempty"`
	// MemoryBytes is how much the server's tree may hold before it is restarted; 0: not watched.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
}

// Hold bounds what waits while the server restarts, per client.
type Hold struct {
	// Timeout per request (default 30 s); negative: nothing is held.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Requests (default 256) and Bytes (default 16 MiB).
	Requests int `json:"requests,omitempty"`
	Bytes    int `json:"bytes,omitempty"`
}

// Health says when a server that runs is given up.
type Health struct {
	// PingAfter is how long the server may be silent before it is asked (default 10 s), HangTimeout how long it may owe an answer (default 60 s).
	// While its tree computes, it may take five times as long.
	PingAfter   time.Duration `json:"pingAfter,omitempty"`
	HangTimeout time.Duration `json:"hangTimeout,omitempty"`
	// Canary is asked regularly, if its method is set, to notice a server that answers without being of use.
	Canary Canary `json:"canary,omitzero"`
}

// Canary is a request whose answer has to hold something: neither null nor empty.
type Canary struct {
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Period time.Duration   `json:"period,omitempty"` // default 60 s
}

// WithDefaults fills what is zero.
func (c Config) WithDefaults() Config {
	fill(&c.Limits.HeaderBytes, 8<<10)
	fill(&c.Limits.MessageBytes, 64<<20)
	fill(&c.Limits.ClientMessageBytes, 32<<20)
	fill(&c.Limits.Clients, 64)
	fill(&c.Limits.OpenDocuments, 1000)
	fill(&c.Limits.DocumentBytes, 64<<20)
	fill(&c.Limits.InFlight, 64)
	fill(&c.Limits.QueueBytes, 8<<20)
	fill(&c.Limits.RequestTimeout, 120*time.Second)
	fill(&c.Hold.Timeout, 30*time.Second)
	fill(&c.Hold.Requests, 256)
	fill(&c.Hold.Bytes, 16<<20)
	fill(&c.Health.PingAfter, 10*time.Second)
	fill(&c.Health.HangTimeout, 60*time.Second)
	fill(&c.Health.Canary.Period, 60*time.Second)
	fill(&c.StartupTimeout, 5*time.Minute)
	if c.WhileIndexing == "" {
		c.WhileIndexing = IndexingForward
	}
	return c
}

func fill[T ~int | ~int64](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}
