// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server runs the language server as a child process. A failed start leaves nothing behind, a stop proceeds in steps, and the remaining processes of
// the server's tree are terminated when the server exits.
//
// The process that calls Start becomes the subreaper of the server's descendants and reaps all of its own children, so the kernel reports reliably when none is
// left. The calling process must therefore have no other children, and can run only one server at a time.
package server

import "time"

// Maximum durations of the steps of a stop if the grace period is at least the constant ladder. A shorter grace period shortens the steps in proportion. The
// time that remains is for the signal.
const (
	ladder       = 10 * time.Second
	shutdownRung = 5 * time.Second
	exitRung     = 2 * time.Second
	stdinRung    = time.Second
)

// rung returns how long a step may take within a grace period. full is the duration of the step in a long grace period.
func rung(full, grace time.Duration) time.Duration {
	if grace <= 0 || grace >= ladder {
		return full
	}
	return time.Duration(float64(full) * float64(grace) / float64(ladder))
}
