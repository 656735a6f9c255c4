// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestProcess_StaleReadAtEveryRead runs the scenario once for each cache read, with a new manager for every reconcile. In each run, that one read
// returns the object as it was one or two writes ago.
func TestProcess_StaleReadAtEveryRead(t *testing.T) {
	for i, s := range kindsUnderTest {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := runBaseline(t, s)
			// All kinds share the reconcile loop, so it suffices to test each read with one of the kinds.
			for n := 1 + i; n <= want.reads; n += len(kindsUnderTest) {
				lag := 1 + n/2%2
				t.Run(fmt.Sprintf("read %d is %d writes old", n, lag), func(t *testing.T) {
					w := newWorld(t, s, faults{newLeaderPerReconcile: true})
					w.faults.lag = func(read int) int {
						if read != n {
							return 0
						}
						w.faultOccurred = true
						return lag
					}
					want.compare(t, w.runScenario())
				})
			}
		})
	}
}

// TestProcess_RandomStaleReads makes half of the cache reads stale, at random. The subtest name contains the seed.
func TestProcess_RandomStaleReads(t *testing.T) {
	for _, s := range kindsUnderTest {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := runBaseline(t, s)
			for seed := range uint64(3) {
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 1))
					lag := func(int) int { return max(0, random.IntN(6)-2) }
					want.compare(t, newWorld(t, s, faults{lag: lag, newLeaderPerReconcile: true}).runScenario())
					want.compare(t, newWorld(t, s, faults{lag: lag}).runScenario())
				})
			}
		})
	}
}
