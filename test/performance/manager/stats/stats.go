// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stats defines what the manager of the benchmarks reports about itself.
package stats

import "time"

// Stats is one report.
type Stats struct {
	// CPU is the CPU time used so far.
	CPU time.Duration
	// Goroutines is the current number of goroutines.
	Goroutines int
	// Opening is how long it took to open the runtime, including the adoption of existing processes.
	Opening time.Duration
	// Reconciles is the number of reconciles of DevServers; Reconciling is their total duration.
	Reconciles  int
	Reconciling time.Duration
	// Synced reports whether the cache has synced.
	Synced bool
	// Observed is the number of objects that have been checked so far.
	Observed int
	// AllObserved is the time from the sync until the expected number of objects was checked. It is 0 until this number is reached.
	AllObserved time.Duration
}
