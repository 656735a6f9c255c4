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
func BenchmarkStart(bench *testing.B) {
	b := newBench(bench)
	b.foreign("stays") // so that neither measurement includes the start of a server
	var hands, ours []time.Duration
	for i := range bench.N {
		name := fmt.Sprintf("s%d", i)
		began := time.Now()
		b.mustTmux("new-session", "-d", "-s", "hand-"+name, "--", conformance.Workload(bench), "sleep")
		hands = append(hands, time.Since(began))
		b.mustTmux("kill-session", "-t", "=hand-"+name)

		uid := newUID()
		p := b.process(uid, 1, Config{Session: "berth-" + name}, "sleep")
		began = time.Now()
		b.Expect(b.Start(b.ctx, p)).To(Succeed())
		for b.observe(uid).Phase != facts.Running {
			<-b.Events()
		}
		ours = append(ours, time.Since(began))
		b.end(uid)
		b.Expect(b.Forget(b.ctx, uid)).To(Succeed())
	}
	slices.Sort(hands)
	slices.Sort(ours)
	hand, own := hands[len(hands)/2], ours[len(ours)/2]
	bench.ReportMetric(milliseconds(hand), "by-hand-p50-ms")
	bench.ReportMetric(milliseconds(own), "berth-p50-ms")
	bench.ReportMetric(milliseconds(own-hand), "added-p50-ms")
	bench.ReportMetric(0, "ns/op")
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
