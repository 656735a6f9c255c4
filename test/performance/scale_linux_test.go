// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// scale returns the final number of DevServers: the value of SCALE, or a default that is small enough for every run of the benchmarks.
func scale(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SCALE")
	if text == "" {
		return 200
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 100 {
		t.Fatalf("SCALE=%q is not a number of at least 100", text)
	}
	return n
}

// TestScale measures the cost of one more DevServer for a manager with an increasing number of DevServers in Pods. The test simulates the nodes.
func TestScale(t *testing.T) {
	g := NewWithT(t)
	c := startManager(t, "", 0, "-pods")
	nodes := playNodes(t)
	last := scale(t)
	long := patience + time.Duration(last)*200*time.Millisecond
	defer emptyWithin(t, nodes.namespace, long) // not a cleanup, because deleting the DevServers needs the simulated nodes

	each := map[int]float64{}
	sizes, there := []int{100}, 0
	for _, size := range []int{1000, 5000} {
		if size < last {
			sizes = append(sizes, size)
		}
	}
	for _, size := range append(sizes, last) {
		if size == there {
			continue
		}
		before, written, began := c.stats(), writes(t), time.Now()
		inParallel(t, size-there, 16, func(i int) error { return k8s.Create(t.Context(), nodes.server(there+i)) })
		g.Eventually(func() int { return readyServers(t, nodes.namespace) }).WithTimeout(long).WithPolling(time.Second).Should(Equal(size))
		took, more := time.Since(began), size-there
		after := c.stats()
		reconciles := after.Reconciles - before.Reconciles
		each[size] = milliseconds(after.Reconciling-before.Reconciling) / float64(reconciles)
		what := fmt.Sprintf("%d DevServers in Pods: ", size)
		note(what+"until the added servers were ready", "%.1f s for %d", took.Seconds(), more)
		atMost(t, what+"until ready, per server", milliseconds(took)/float64(more), 60, 4, " ms")
		atMost(t, what+"writes per server, including events", float64(writes(t)-written)/float64(more), 6.5, 1.5, "")
		atMost(t, what+"reconciles per server", float64(reconciles)/float64(more), 5, 2, "")
		atMost(t, what+"CPU of the manager per server", milliseconds(after.CPU-before.CPU)/float64(more), 10, 3, " ms")
		note(what+"mean time of a reconcile", "%.2f ms", each[size])
		there = size
	}
	atMost(t, fmt.Sprintf("a reconcile among %d DevServers in Pods / 100", last), each[last]/each[100], 1.3, 2.5, "×")

	g.Eventually(func() int {
		before := writes(t)
		pollOnce(6 * time.Second)
		return writes(t) - before
	}).WithTimeout(long).Should(BeZero(), "the manager must stop writing")
	written, share := window(t, c, restWindow)
	what := fmt.Sprintf("%d DevServers in Pods at rest: ", last)
	atMost(t, what+"memory of the manager", c.memory(), 100+0.05*float64(last), 1.5, " MiB")
	note(what+"share of a core", "%.1f %%", share)
	atMost(t, what+"API writes in 10 s", float64(written), 0, 1, "")
}

// emptyWithin deletes all DevServers of a namespace. It waits for at most long, which is more time than empty allows.
func emptyWithin(t *testing.T, namespace string, long time.Duration) {
	g := NewWithT(t)
	began := time.Now()
	// Retry: a request times out after a minute, which is too short to delete thousands of objects.
	g.Eventually(func() error {
		return k8s.DeleteAllOf(backgroundContext, &v1alpha1.DevServer{}, client.InNamespace(namespace))
	}).WithTimeout(long).WithPolling(time.Second).Should(Succeed())
	g.Eventually(func() (int, error) {
		var list v1alpha1.DevServerList
		err := k8s.List(backgroundContext, &list, client.InNamespace(namespace))
		return len(list.Items), err
	}).WithTimeout(long).WithPolling(time.Second).Should(BeZero())
	note("DevServers in Pods: until all were deleted", "%.1f s", time.Since(began).Seconds())
}
