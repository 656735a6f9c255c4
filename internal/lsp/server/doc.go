// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server is the language server as a child process: its start is a transaction, its stop a ladder, and nothing of its tree is left over.
//
// Whoever calls Start becomes the subreaper of what the server forks and collects every child of its own process, so that "nothing is left" is
// what the kernel says and not a guess. A process that uses this package has no other children, and one server at a time.
package server

import "time"

// The rungs of the ladder for a grace period of ladder or more; shorter ones get the same share of theirs. What remains is for the signal.
const (
	ladder       = 10 * time.Second
	shutdownRung = 5 * time.Second
	exitRung     = 2 * time.Second
	stdinRung    = time.Second
)

// rung gives the part of a grace period that a rung may take.
func rung(full, grace time.Duration) time.Duration {
	if grace <= 0 || grace >= ladder {
		return full
	}
	return time.Duration(float64(full) * float64(grace) / float64(ladder))
}
