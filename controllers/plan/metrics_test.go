// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// plansThatWait returns the value of berth_waiting for plans.
func plansThatWait(g Gomega) float64 {
	families, err := metrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		for _, series := range family.GetMetric() {
			if family.GetName() == "berth_waiting" && series.GetLabel()[0].GetValue() == "plans" {
				return series.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func TestWaiting_CountsPlansOnce(t *testing.T) {
	g := NewWithT(t)
	g.Expect(plansThatWait(g)).To(BeZero(), "0 is served, too")
	first, second := types.NamespacedName{Name: "first"}, types.NamespacedName{Name: "second"}
	for range 3 {
		waiting.set(first, true)
	}
	waiting.set(second, true)
	g.Expect(plansThatWait(g)).To(BeEquivalentTo(2))
	waiting.set(first, false)
	waiting.set(types.NamespacedName{Name: "unknown"}, false)
	g.Expect(plansThatWait(g)).To(BeEquivalentTo(1))
	waiting.set(second, false)
	g.Expect(plansThatWait(g)).To(BeZero())
}
