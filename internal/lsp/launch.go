// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lsp

import (
	"encoding/json"
	"time"

	"github.com/berth-dev/berth/internal/shim"
)

// Launch contains everything that the multiplexer needs to start one incarnation of the server. It may contain secrets, so it is sent over the control socket
// only and is never written to disk.
type Launch struct {
	Incarnation int64 `json:"incarnation"`
	// Command is argv. Env contains NAME=value and is the whole environment of the server, unless Inherit is set. Dir is an absolute path.
	Command []string `json:"command"`
	Env     []string `json:"env,omitempty"`
	// Inherit prepends the environment of the multiplexer to Env. It is set in a container, whose environment only the multiplexer knows.
	Inherit bool   `json:"inherit,omitempty"`
	Dir     string `json:"dir,omitempty"`
	// RunAs is the user of the server; nil: the user of the multiplexer.
	RunAs *shim.User `json:"runAs,omitempty"`
	// StopSignal is the name of a signal, such as SIGTERM. It is sent to the server's process tree if the server does not exit after the shutdown request, the
	// exit notification and the end of its stdin.
	StopSignal string `json:"stopSignal,omitempty"`
	// Grace is the maximum duration of a stop, after which the manager kills the server. The steps of the stop are shortened to fit.
	Grace time.Duration `json:"grace,omitempty"`

	Config Config `json:"config"`
}

// Config is the part of a LanguageServer spec that does not describe the process. Unless stated otherwise, zero durations and numbers mean the default.
type Config struct {
	// Language is the language ID, such as go. It is the languageId of documents that a client opens without one.
	Language string `json:"language,omitempty"`
	// Folders are the absolute paths of the workspace folders; the first one is the root.
	Folders []string `json:"folders,omitempty"`
	// InitializationOptions and Settings are passed to the server unchanged.
	InitializationOptions json.RawMessage `json:"initializationOptions,omitempty"`
	Settings              json.RawMessage `json:"settings,omitempty"`

	Limits Limits `json:"limits"`
	Hold   Hold   `json:"hold"`
	Health Health `json:"health"`

	// StartupTimeout is how long the server may send nothing before it answers initialize (default 5 min). A server that sends other messages may take up to six
	// times as long.
	StartupTimeout time.Duration `json:"startupTimeout,omitempty"`
	// WhileIndexing is what happens to requests before the server has read its workspace: Forward (default) or Hold.
	WhileIndexing string `json:"whileIndexing,omitempty"`
	// Replay lists methods whose requests may be sent again after a crash, in addition to the methods that are known to be reads.
	Replay []string `json:"replay,omitempty"`
}

// Values of WhileIndexing.
const (
	indexingForward = "Forward"
	IndexingHold    = "Hold"
)

// Limits bound the resources of one multiplexer.
type Limits struct {
	// HeaderBytes is the maximum size of the header block of a message (default 8 KiB); a line may have at most half of it.
	HeaderBytes int `json:"headerBytes,omitempty"`
	// MessageBytes is the maximum size of a message from the server (default 64 MiB), ClientMessageBytes that of a message from a client (default 32 MiB).
	MessageBytes       int `json:"messageBytes,omitempty"`
	ClientMessageBytes int `json:"clientMessageBytes,omitempty"`
	// Clients is the maximum number of clients (default 64). The next four limits are per client: the number of open documents (default 1000), the size of their
	// text (default 64 MiB), the number of requests in flight (default 64), and the size of the messages that wait to be sent to the client (default 8 MiB).
	Clients       int `json:"clients,omitempty"`
	OpenDocuments int `json:"openDocuments,omitempty"`
	DocumentBytes int `json:"documentBytes,omitempty"`
	InFlight      int `json:"inFlight,omitempty"`
	QueueBytes    int `json:"queueBytes,omitempty"`
	// RequestTimeout is the age at which a request is canceled (default 120 s).
	RequestTimeout time.Duration `json:"requestTimeout,omitempty"`
	// MemoryBytes is how much memory the server's process tree may use before the server is restarted; 0: no limit.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
}

// Hold bounds the requests that wait while the server restarts, per client.
type Hold struct {
	// Timeout is the maximum wait per request (default 30 s); negative: requests are not held.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Requests is the maximum number of held requests (default 256), Bytes their maximum size (default 16 MiB).
	Requests int `json:"requests,omitempty"`
	Bytes    int `json:"bytes,omitempty"`
}

// Health configures when a running server counts as unhealthy.
type Health struct {
	// PingAfter is how long the server may be silent before it is pinged (default 10 s), at most half of HangTimeout. HangTimeout is how long a server that does
	// not answer may be silent before it counts as hung (default 60 s). While the process tree of the server uses CPU, the timeout is five times as long.
	PingAfter   time.Duration `json:"pingAfter,omitempty"`
	HangTimeout time.Duration `json:"hangTimeout,omitempty"`
	// Canary is sent periodically, if its method is set, to detect a server whose answers are empty.
	Canary Canary `json:"canary,omitzero"`
}

// Canary is a request whose result must be neither null nor empty.
type Canary struct {
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Period time.Duration   `json:"period,omitempty"` // default 60 s
}

// WithDefaults returns c with the defaults in place of zero values.
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
		c.WhileIndexing = indexingForward
	}
	return c
}

func fill[T ~int | ~int64](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}
