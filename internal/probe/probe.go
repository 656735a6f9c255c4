// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probe runs readiness and liveness probes (HTTP, TCP, exec) in background goroutines, so that no reconcile waits for a probe.
//
// A Manager has one worker for each object, incarnation and kind of probe. A reconcile configures a worker with Ensure and reads the latest result with Result;
// it never waits for a result.
package probe

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Kind is the purpose of a worker.
type Kind string

const (
	// Readiness checks whether a server can be used.
	Readiness Kind = "Readiness"
	// Liveness checks whether a server must be restarted.
	Liveness Kind = "Liveness"
)

// Key identifies a worker. It includes the incarnation, so that results of different incarnations are never mixed.
type Key struct {
	UID         types.UID
	Incarnation int64
	Kind        Kind
}

// Config configures a worker.
type Config struct {
	Check Check
	// Period is the time between two probes once the result is known. While a server is not ready, it is probed more often.
	Period time.Duration
	// Timeout is the time after which a probe without a response fails.
	Timeout time.Duration
	// Threshold is the number of consecutive failures that make the result a failure; at least 1.
	Threshold int
	// Proven means that the server was ready before this worker started. The worker then probes once per Period even while the result is not known yet.
	Proven bool
	// Once ends the worker at its first success. The result then remains.
	Once bool
}

// sameQuestion reports whether a worker with the configuration c can continue unchanged when the configuration other replaces c. Proven is ignored, because it
// only matters before the first result.
func (c Config) sameQuestion(other Config) bool {
	return c.Check.equal(other.Check) && c.Period == other.Period && c.Timeout == other.Timeout &&
		c.Threshold == other.Threshold && c.Once == other.Once
}

// Check is one kind of check; exactly one field is set.
type Check struct {
	HTTP *HTTP
	TCP  *TCP
	Exec *Exec
}

func (c Check) equal(other Check) bool {
	switch {
	case c.HTTP != nil && other.HTTP != nil:
		return *c.HTTP == *other.HTTP
	case c.TCP != nil && other.TCP != nil:
		return *c.TCP == *other.TCP
	case c.Exec != nil && other.Exec != nil:
		return c.Exec.equal(*other.Exec)
	}
	return c == Check{} && other == Check{}
}

// HTTP is a GET request. It does not follow redirects or verify certificates, and drops the response body.
type HTTP struct {
	URL string
	// Serving only checks whether the server responds: any status below 500 succeeds, and so does a server that does not use HTTP. Without it the status must
	// be from 200 to 399.
	Serving bool
}

// TCP is a connection that is opened and closed.
type TCP struct {
	Address string // host:port
}

// Exec is a command that must exit with code 0. It runs beside the probed process, and none of its processes remain after the probe.
type Exec struct {
	// Inspection runs the command; nil if the backend does not support exec probes.
	Inspection runtime.Inspection
	// Process is the incarnation to probe, with the command, directory and environment of the probe. The environment must not appear in messages.
	Process runtime.Process
}

func (e Exec) equal(other Exec) bool {
	a, b := e.Process, other.Process
	return a.UID == b.UID && a.Incarnation == b.Incarnation && a.Dir == b.Dir && slices.Equal(a.Command, b.Command) && slices.Equal(a.Env, b.Env)
}

// Result is the latest result of a worker.
type Result struct {
	// Known is false until the first success or until Threshold consecutive failures.
	Known bool
	OK    bool
	// Message is the reason why the last probe failed; empty after a success.
	Message string
}

// outcome is the result of one probe.
type outcome struct {
	ok      bool
	message string
	// mute means that the server accepted the connection and closed it without a response. After muteLimit such outcomes in a row, the server counts as one
	// that does not use HTTP.
	mute bool
}

func failed(message string) outcome { return outcome{message: message} }
