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

// scaleTarget returns the final number of DevServers: the value of SCALE, or a default that is small enough for every run of the benchmarks.
func scaleTarget(t *testing.T) int {
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

// TestScale_DevServersInPods measures the cost of one more DevServer for a manager with an increasing number of DevServers in Pods. The test simulates the
// nodes.
func TestScale_DevServersInPods(t *testing.T) {
	g := NewWithT(t)
	c := startManager(t, "", 0, "-pods")
	nodes := simulateNodes(t)
	last := scaleTarget(t)
	long := patience + time.Duration(last)*200*time.Millisecond
	defer deleteServersWithin(t, nodes.namespace, long) // not a cleanup, because deleting the DevServers needs the simulated nodes

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
		before, written, began := c.stats(), countWrites(t), time.Now()
		inParallel(t, size-there, 16, func(i int) error { return k8s.Create(t.Context(), nodes.server(there+i)) })
		g.Eventually(func() int { return readyServers(t, nodes.namespace) }).WithTimeout(long).WithPolling(time.Second).Should(Equal(size))
		took, more := time.Since(began), size-there
		after := c.stats()
		reconciles := after.Reconciles - before.Reconciles
		each[size] = milliseconds(after.Reconciling-before.Reconciling) / float64(reconciles)
		what := fmt.Sprintf("%d DevServers in Pods: ", size)
		addFigure(what+"until the added servers were ready", "%.1f s for %d", took.Seconds(), more)
		expectAtMost(t, what+"until ready, per server", milliseconds(took)/float64(more), 60, 4, " ms")
		expectAtMost(t, what+"writes per server, including events", float64(countWrites(t)-written)/float64(more), 6.5, 1.5, "")
		expectAtMost(t, what+"reconciles per server", float64(reconciles)/float64(more), 5, 2, "")
		expectAtMost(t, what+"CPU of the manager per server", milliseconds(after.CPU-before.CPU)/float64(more), 10, 3, " ms")
		addFigure(what+"mean time of a reconcile", "%.2f ms", each[size])
		there = size
	}
	expectAtMost(t, fmt.Sprintf("a reconcile among %d DevServers in Pods / 100", last), each[last]/each[100], 1.3, 2.5, "×")

	g.Eventually(func() int {
		before := countWrites(t)
		pollOnce(6 * time.Second)
		return countWrites(t) - before
	}).WithTimeout(long).Should(BeZero(), "the manager must stop writing")
	written, share := measureWindow(t, c, restWindow)
	what := fmt.Sprintf("%d DevServers in Pods at rest: ", last)
	expectAtMost(t, what+"memory of the manager", c.memory(), 100+0.05*float64(last), 1.5, " MiB")
	addFigure(what+"share of a core", "%.1f %%", share)
	expectAtMost(t, what+"API writes in 10 s", float64(written), 0, 1, "")
}

// deleteServersWithin deletes all DevServers of a namespace and waits until they no longer exist. Unlike deleteObjects, it lets the caller set the timeout,
// with the parameter long.
func deleteServersWithin(t *testing.T, namespace string, long time.Duration) {
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
	addFigure("DevServers in Pods: until all were deleted", "%.1f s", time.Since(began).Seconds())
}
