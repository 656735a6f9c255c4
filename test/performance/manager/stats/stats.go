// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stats is what the manager of the benchmarks says about itself.
package stats

import "time"

// Stats is one answer.
type Stats struct {
	// CPU is the time computed for so far.
	CPU time.Duration
	// Goroutines is how many there are.
	Goroutines int
	// Opening is how long it took to open the runtime, which adopts what is there.
	Opening time.Duration
	// Reconciles is how many there were of DevServers, and Reconciling is how long they took in all.
	Reconciles  int
	Reconciling time.Duration
	// Synced says that the cache has synced.
	Synced bool
	// Looked is how many objects were looked at since.
	Looked int
	// AllLooked is how long it took from the sync until as many were looked at as were expected; 0 before.
	AllLooked time.Duration
}
