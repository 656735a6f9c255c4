// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package arbitration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

var begin = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func TestFirst_PrefersHolderThenAge(t *testing.T) {
	old := Claim{UID: "b", Created: begin}
	twin := Claim{UID: "a", Created: begin}
	young := Claim{UID: "c", Created: begin.Add(time.Second)}
	holder := Claim{UID: "d", Created: begin.Add(time.Hour), Holds: true}
	for name, test := range map[string]struct {
		claims []Claim
		want   string
	}{
		"the older one":               {[]Claim{young, old}, "b"},
		"the lower UID at equal age":  {[]Claim{old, twin}, "a"},
		"the holder, even if younger": {[]Claim{old, twin, holder, young}, "d"},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(First(test.claims).UID).To(BeEquivalentTo(test.want))
		})
	}
}

func TestReservations_TakePrecedenceUntilExpiry(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(begin)
	r := NewReservations(clock)
	young, old := Claim{UID: "b", Created: begin.Add(time.Second)}, Claim{UID: "a", Created: begin}

	g.Expect(r.Settle("main", "b", []Claim{young}).UID).To(BeEquivalentTo("b"), "the younger object sees no other claim")
	g.Expect(r.Settle("main", "a", []Claim{old, young}).UID).To(BeEquivalentTo("b"), "the reservation of the younger object takes precedence")
	g.Expect(r.Settle("other", "a", []Claim{old, young}).UID).To(BeEquivalentTo("a"), "the older object wins a session that is not reserved")

	r.Release("b")
	g.Expect(r.Settle("main", "a", []Claim{old, young}).UID).To(BeEquivalentTo("a"), "after the release the older object wins")
	clock.SetTime(begin.Add(time.Minute))
	g.Expect(r.Settle("main", "0", []Claim{{UID: "0", Created: begin}, old}).UID).To(BeEquivalentTo("0"), "a reservation expires")
}
