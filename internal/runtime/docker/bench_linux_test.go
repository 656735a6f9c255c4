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

// BenchmarkStart starts containers alternately through the API and with Start. It measures the time until the API has answered, and the time until Observe
// reports Running. With -benchtime 30x it reports the medians of 30 starts of each kind.
func BenchmarkStart(b *testing.B) {
	f := newFixture(b)
	var byHand, ours []time.Duration
	for i := 0; b.Loop(); i++ {
		byHand = append(byHand, f.startByHand())
		uid := types.UID(fmt.Sprintf("bench-%d", i))
		begun := time.Now()
		f.Expect(f.Start(f.ctx, f.process(uid, 1, "sleep"))).To(Succeed())
		f.await(uid, facts.Running)
		ours = append(ours, time.Since(begun))
		f.Expect(f.Kill(f.ctx, uid, 1)).To(Succeed())
		f.await(uid, facts.Exited)
		f.Expect(f.Forget(f.ctx, uid)).To(Succeed())
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(byHand), "ms/by-hand")
	b.ReportMetric(median(ours), "ms/start")
	b.ReportMetric(median(ours)-median(byHand), "ms/added")
}

// startByHand creates, starts and removes a container like that of Start. It returns the time until the container has started.
func (f *fixture) startByHand() time.Duration {
	yes := true
	begun := time.Now()
	made, err := f.client.ContainerCreate(f.ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: testImage, Cmd: []string{"sleep"}, OpenStdin: true},
		HostConfig: &container.HostConfig{Init: &yes},
	})
	f.Expect(err).NotTo(HaveOccurred())
	_, err = f.client.ContainerStart(f.ctx, made.ID, client.ContainerStartOptions{})
	f.Expect(err).NotTo(HaveOccurred())
	took := time.Since(begun)
	_, err = f.client.ContainerRemove(f.ctx, made.ID, client.ContainerRemoveOptions{Force: true})
	f.Expect(err).NotTo(HaveOccurred())
	return took
}

func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}
