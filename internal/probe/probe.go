// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probe asks servers how they are, outside of reconciles.
//
// A Manager has one worker per object, incarnation and kind of probe. A reconcile says with Ensure what is to be asked, and reads with
// Result what the newest answer is; it never waits for one.
package probe

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Kind is what a worker is for.
type Kind string

const (
	// Readiness asks whether a server can be used.
	Readiness Kind = "Readiness"
	// Liveness asks whether a server has to be restarted.
	Liveness Kind = "Liveness"
)

// Key names a worker: answers of one incarnation are never those of another.
type Key struct {
	UID         types.UID
	Incarnation int64
	Kind        Kind
}

// Config is what a worker asks, and how often.
type Config struct {
	Check Check
	// Period is the time between two probes, once the answer is settled. While a server is not ready it is asked more often.
	Period time.Duration
	// Timeout is the time until a probe that got no answer has failed.
	Timeout time.Duration
	// Threshold is how many failures in a row make a failure; at least 1.
	Threshold int
	// Proven says that the server was ready before this worker began, so that a first failure is one of Threshold.
	Proven bool
	// Once ends the worker with its first success, which then stands.
	Once bool
}

// sameQuestion says whether a worker with the one config may go on for the other.
func (c Config) sameQuestion(other Config) bool {
	return c.Check.equal(other.Check) && c.Period == other.Period && c.Timeout == other.Timeout &&
		c.Threshold == other.Threshold && c.Once == other.Once
}

// Check is one way to ask; exactly one field is set.
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

// HTTP is a GET request. Redirects are not followed, certificates not verified, and the answer's body is dropped.
type HTTP struct {
	URL string
	// Serving asks only whether the server serves: any status below 500 will do, and so does a server that doesn't speak HTTP.
	// Without it the status has to be from 200 to 399.
	Serving bool
}

// TCP is a connection that is made and closed.
type TCP struct {
	Address string // host:port
}

// Exec is a command that has to exit with code 0. It runs beside the process that it probes, and nothing of it is left after the probe.
type Exec struct {
	// Inspection runs the command; nil if the backend cannot.
	Inspection runtime.Inspection
	// Process is the incarnation to probe with the command, directory and environment of the probe. The environment is never put into a message.
	Process runtime.Process
}

func (e Exec) equal(other Exec) bool {
	a, b := e.Process, other.Process
	return a.UID == b.UID && a.Incarnation == b.Incarnation && a.Dir == b.Dir && slices.Equal(a.Command, b.Command) && slices.Equal(a.Env, b.Env)
}

// Result is the newest answer of a worker.
type Result struct {
	// Known is false until the first success, or Threshold failures in a row.
	Known bool
	OK    bool
	// Message says why the last probe failed; empty after a success.
	Message string
}

// outcome is how one probe ended.
type outcome struct {
	ok      bool
	message string
	// mute: a connection was made and closed without an answer. Several in a row are a server that doesn't speak HTTP.
	mute bool
}

func failed(message string) outcome { return outcome{message: message} }
