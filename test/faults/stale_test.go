// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestStaleReadAtEveryRead runs the story once for each cache read, with a new manager for every reconcile. In each run, that one read
// returns the object as it was one or two writes ago.
func TestStaleReadAtEveryRead(t *testing.T) {
	for i, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := undisturbed(t, s)
			// All kinds share the reconcile loop, so it suffices to test each read with one of the kinds.
			for n := 1 + i; n <= want.reads; n += len(subjects) {
				lag := 1 + n/2%2
				t.Run(fmt.Sprintf("read %d is %d old", n, lag), func(t *testing.T) {
					w := newWorld(t, s, faults{forgetful: true})
					w.faults.lag = func(read int) int {
						if read != n {
							return 0
						}
						w.struck = true
						return lag
					}
					want.compare(t, w.tell())
				})
			}
		})
	}
}

// TestStaleReadsAtRandom makes half of the cache reads stale, at random. The subtest name contains the seed.
func TestStaleReadsAtRandom(t *testing.T) {
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := undisturbed(t, s)
			for seed := range uint64(3) {
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 1))
					lag := func(int) int { return max(0, random.IntN(6)-2) }
					want.compare(t, newWorld(t, s, faults{lag: lag, forgetful: true}).tell())
					want.compare(t, newWorld(t, s, faults{lag: lag}).tell())
				})
			}
		})
	}
}
