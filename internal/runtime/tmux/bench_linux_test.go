// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// BenchmarkStart alternates between Start and a manual start with tmux, so that both run under the same conditions.
func BenchmarkStart(b *testing.B) {
	f := newFixture(b)
	f.newForeignSession("stays") // so that neither measurement includes the start of a server
	var hands, ours []time.Duration
	for i := range b.N {
		name := fmt.Sprintf("s%d", i)
		began := time.Now()
		f.mustTmux("new-session", "-d", "-s", "hand-"+name, "--", conformance.Workload(b), "sleep")
		hands = append(hands, time.Since(began))
		f.mustTmux("kill-session", "-t", "=hand-"+name)

		uid := newUID()
		p := f.process(uid, 1, sessionConfig{Session: "berth-" + name}, "sleep")
		began = time.Now()
		f.Expect(f.Start(f.ctx, p)).To(Succeed())
		for f.observe(uid).Phase != facts.Running {
			<-f.Events()
		}
		ours = append(ours, time.Since(began))
		f.killAndWait(uid)
		f.Expect(f.Forget(f.ctx, uid)).To(Succeed())
	}
	slices.Sort(hands)
	slices.Sort(ours)
	hand, own := hands[len(hands)/2], ours[len(ours)/2]
	b.ReportMetric(milliseconds(hand), "by-hand-p50-ms")
	b.ReportMetric(milliseconds(own), "berth-p50-ms")
	b.ReportMetric(milliseconds(own-hand), "added-p50-ms")
	b.ReportMetric(0, "ns/op")
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
