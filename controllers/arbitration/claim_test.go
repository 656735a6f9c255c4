// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package arbitration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
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
	var r Reservations[string, types.UID]
	now := begin
	settle := func(thing string, uid types.UID, claims ...Claim) types.UID {
		return Settle(&r, thing, uid, claims, now).UID
	}
	young, old := Claim{UID: "b", Created: begin.Add(time.Second)}, Claim{UID: "a", Created: begin}

	g.Expect(settle("main", "b", young)).To(BeEquivalentTo("b"), "the younger object sees no other claim")
	g.Expect(settle("main", "a", old, young)).To(BeEquivalentTo("b"), "the reservation of the younger object takes precedence")
	g.Expect(settle("other", "a", old, young)).To(BeEquivalentTo("a"), "the older object wins a session that is not reserved")

	r.Release("b", now)
	g.Expect(settle("main", "a", old, young)).To(BeEquivalentTo("a"), "after the release the older object wins")
	now = begin.Add(time.Minute)
	g.Expect(settle("main", "0", Claim{UID: "0", Created: begin}, old)).To(BeEquivalentTo("0"), "a reservation expires")
}

func TestReservations_TakeReturnsHolderUntilRelease(t *testing.T) {
	g := NewWithT(t)
	var r Reservations[string, string]
	g.Expect(r.Holder("main", begin)).To(BeEmpty())
	g.Expect(r.Take("main", "a", begin)).To(Equal("a"))
	g.Expect(r.Take("main", "b", begin)).To(Equal("a"), "the thing is reserved for the other object")
	g.Expect(r.Take("main", "a", begin)).To(Equal("a"))
	g.Expect(r.Take("other", "b", begin)).To(Equal("b"))
	g.Expect(r.Take("main", "b", begin.Add(ReservationTime))).To(Equal("b"), "the reservation has expired")
	r.Release("b", begin.Add(ReservationTime))
	g.Expect(r.given).To(BeEmpty())
	r.Reserve("main", "a", begin)
	r.Reserve("main", "b", begin)
	g.Expect(r.Holder("main", begin)).To(Equal("b"))
}
