// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestCrashAtEveryWrite kills the manager before each write reaches the API, and after it was applied with its answer lost.
func TestCrashAtEveryWrite(t *testing.T) {
	everywhere(t, func(r reference) int { return r.writes }, func(n int, after bool, strike func()) faults {
		return faults{write: once(n, after, strike)}
	})
}

// TestCrashAtEveryAct kills the manager before each call that changes something outside, and after it took effect.
func TestCrashAtEveryAct(t *testing.T) {
	everywhere(t, func(r reference) int { return r.acts }, func(n int, after bool, strike func()) faults {
		return faults{act: once(n, after, strike)}
	})
}

// everywhere tells the story once for each place of a fault, before and after.
func everywhere(t *testing.T, places func(reference) int, plan func(n int, after bool, strike func()) faults) {
	for i, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := undisturbed(t, s)
			// The kinds share the loop: the first meets every fault, the others every third.
			for n := 1; n <= places(want); n += 1 + 2*min(i, 1) {
				for when, after := range map[string]bool{"before": false, "after": true} {
					t.Run(fmt.Sprintf("%s %d", when, n), func(t *testing.T) {
						w := newWorld(t, s, faults{})
						w.faults = plan(n, after, func() { w.struck = true })
						want.compare(t, w.tell())
					})
				}
			}
		})
	}
}

// once is a fault at the nth call.
func once(n int, after bool, strike func()) func(int, bool) error {
	return func(call int, done bool) error {
		if call == n && done == after {
			strike()
			return errFault
		}
		return nil
	}
}

// TestCrashesAtRandom kills the manager again and again. The seed is the name of the test.
func TestCrashesAtRandom(t *testing.T) {
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := undisturbed(t, s)
			for seed := range uint64(4) {
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 0))
					sometimes := func(int, bool) error {
						if random.IntN(5) == 0 {
							return errFault
						}
						return nil
					}
					want.compare(t, newWorld(t, s, faults{write: sometimes, act: sometimes}).tell())
				})
			}
		})
	}
}
