// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/berth-dev/berth/cmd/berth-apiserver/internal/pages"
)

const (
	// busyGrowth is by how many percent the heap may grow before it is collected while there are requests, and idleGrowth at rest. With less than 50 % under load,
	// collections would take as much CPU time as the requests.
	busyGrowth, idleGrowth = 50, 20
	// idleRate is the rate of allocation, in bytes per second, below which the process is at rest.
	idleRate = 2 << 20
	// ratePeriod is how often the rate is measured.
	ratePeriod = 10 * time.Second
	// returnPeriod is how often a process at rest returns memory. The runtime collects the heap of such a process every two minutes anyway.
	returnPeriod = 2 * time.Minute
	// returnPause is the minimum time between two returns if there was load in between.
	returnPause = 30 * time.Second
)

// boundMemory returns unused memory to the system while the process is at rest, until the context is done. It does nothing if the user has set GOGC.
func boundMemory(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(busyGrowth)
	tick := time.NewTicker(ratePeriod)
	defer tick.Stop()
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	allocated, loaded, returned := sample[0].Value.Uint64(), true, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		before := allocated
		metrics.Read(sample)
		if allocated = sample[0].Value.Uint64(); allocated-before >= idleRate*uint64(ratePeriod/time.Second) {
			debug.SetGCPercent(busyGrowth)
			loaded = true
			continue
		}
		if since := time.Since(returned); since < returnPause || since < returnPeriod && !loaded {
			continue
		}
		debug.SetGCPercent(idleGrowth)
		debug.FreeOSMemory()
		if program, err := os.Executable(); err == nil {
			_ = pages.Return(program) // an error only means that the pages stay
		}
		loaded, returned = false, time.Now()
	}
}
