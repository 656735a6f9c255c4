// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestStaleReadAtEveryRead shows a manager that has just come, at each read of its cache, the object as it was one or two writes ago.
func TestStaleReadAtEveryRead(t *testing.T) {
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			want := undisturbed(t, s)
			for n := 1; n <= want.reads; n++ {
				for lag := 1; lag <= 2; lag++ {
					t.Run(fmt.Sprintf("read %d is %d old", n, lag), func(t *testing.T) {
						stale := func(read int) int {
							if read == n {
								return lag
							}
							return 0
						}
						want.compare(t, newWorld(t, s, faults{lag: stale, forgetful: true}).tell())
					})
				}
			}
		})
	}
}

// TestStaleReadsAtRandom serves caches that are behind half of the time. The seed is the name of the test.
func TestStaleReadsAtRandom(t *testing.T) {
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			want := undisturbed(t, s)
			for seed := range uint64(8) {
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
