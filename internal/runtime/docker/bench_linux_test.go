// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
)

// BenchmarkStart alternates between a container created and started directly through the API and one that Start creates, measured until
// Observe reports Running. With -benchtime 30x it reports the medians of 30 starts of each kind.
func BenchmarkStart(b *testing.B) {
	bench := newBench(b)
	var byHand, ours []time.Duration
	for i := 0; b.Loop(); i++ {
		byHand = append(byHand, bench.startByHand())
		uid := types.UID(fmt.Sprintf("bench-%d", i))
		begun := time.Now()
		bench.Expect(bench.Start(bench.ctx, bench.process(uid, 1, "sleep"))).To(Succeed())
		bench.await(uid, facts.Running)
		ours = append(ours, time.Since(begun))
		bench.Expect(bench.Kill(bench.ctx, uid, 1)).To(Succeed())
		bench.await(uid, facts.Exited)
		bench.Expect(bench.Forget(bench.ctx, uid)).To(Succeed())
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(byHand), "ms/by-hand")
	b.ReportMetric(median(ours), "ms/start")
	b.ReportMetric(median(ours)-median(byHand), "ms/added")
}

// startByHand creates a container as Start would, starts and removes it, and returns the time until it has started.
func (b *bench) startByHand() time.Duration {
	yes := true
	begun := time.Now()
	made, err := b.client.ContainerCreate(b.ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: testImage, Cmd: []string{"sleep"}, OpenStdin: true},
		HostConfig: &container.HostConfig{Init: &yes},
	})
	b.Expect(err).NotTo(HaveOccurred())
	_, err = b.client.ContainerStart(b.ctx, made.ID, client.ContainerStartOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	took := time.Since(begun)
	_, err = b.client.ContainerRemove(b.ctx, made.ID, client.ContainerRemoveOptions{Force: true})
	b.Expect(err).NotTo(HaveOccurred())
	return took
}

func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}
