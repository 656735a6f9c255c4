// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hook receives what the hooks of coding agents report: that the agent works, waits for an answer, or is done. berth hook, which an agent calls, sends a
// Report over a Unix socket to the manager of the machine. The manager trusts no claim about the object: the kernel names the process that has connected, and its
// ancestors determine the object.
package hook

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// SocketVariable is the environment variable with the path of the socket. A program that Berth starts gets it. It is a hint, not a proof.
	SocketVariable = "BERTH_HOOK_SOCKET"
	// SocketFile is the name of the socket in its directory.
	SocketFile = "hook.sock"

	// maxReport is the maximum size in bytes of an encoded report, and of an answer.
	maxReport = 4 << 10
)

// ErrUnsupported is the error on systems that do not name the process at the other end of a socket.
var ErrUnsupported = errors.New("hooks are supported only on Linux")

// Report is what a hook reports. It contains no text that the agent shows.
type Report struct {
	// State is what the agent does; empty if only SessionID is reported.
	State v1alpha1.AgentState `json:"state,omitempty"`
	// Question is the kind of the question; required with the state Waiting, else empty.
	Question string `json:"question,omitempty"`
	// SessionID is the ID that the agent uses for its conversation. Optional.
	SessionID string `json:"sessionID,omitempty"`
}

var (
	validQuestion = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	validSession  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
)

// Validate returns an error if a field has an invalid value, or if the report is empty.
func (r Report) Validate() error {
	switch r.State {
	case "", v1alpha1.AgentWorking, v1alpha1.AgentWaiting, v1alpha1.AgentDone, v1alpha1.AgentFailed:
	default:
		return fmt.Errorf("invalid state %.40q: use Working, Waiting, Done or Failed", r.State)
	}
	waits := r.State == v1alpha1.AgentWaiting
	switch {
	case r.State == "" && r.SessionID == "":
		return errors.New("the report has neither a state nor a session ID")
	case waits && !validQuestion.MatchString(r.Question):
		return fmt.Errorf("invalid kind of question %.40q: use up to 32 lower-case letters, digits and hyphens", r.Question)
	case !waits && r.Question != "":
		return errors.New("only a report with the state Waiting has a question")
	case r.SessionID != "" && !validSession.MatchString(r.SessionID):
		return fmt.Errorf("invalid session ID %.40q: use up to 128 letters, digits, dots, hyphens and underscores", r.SessionID)
	}
	return nil
}
