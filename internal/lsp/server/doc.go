// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server runs the language server as a child process. A start either succeeds or leaves nothing behind, a stop proceeds in steps, and no process of the
// server's tree outlives it.
//
// The process that calls Start becomes the subreaper of the server's descendants and reaps all of its own children, so the kernel reports reliably when none is
// left. A process that uses this package has no other children, and one server at a time.
package server

import "time"

// The maximum duration of the steps of a stop for a grace period of at least ladder; for shorter ones they are scaled. The remaining time is for the signal.
const (
	ladder       = 10 * time.Second
	shutdownRung = 5 * time.Second
	exitRung     = 2 * time.Second
	stdinRung    = time.Second
)

// rung returns the part of a grace period that a step may take.
func rung(full, grace time.Duration) time.Duration {
	if grace <= 0 || grace >= ladder {
		return full
	}
	return time.Duration(float64(full) * float64(grace) / float64(ladder))
}
