// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// adoptedProcesses is the number of running processes that a new manager finds and adopts.
const adoptedProcesses = 500

// TestAdoption_TimeAndShimMemory kills the manager of 500 processes and measures the time until the next manager has checked all of them. It also measures the
// mean private memory of their shims.
func TestAdoption_TimeAndShimMemory(t *testing.T) {
	g := NewWithT(t)
	state := stateDirectory(t)
	c := startManager(t, state, 0)
	// Create the namespace after the first manager. Cleanups run in reverse order, and the cleanup of the namespace needs a running manager to stop
	// the processes.
	namespace := newNamespace(t)
	inParallel(t, adoptedProcesses, 16, func(i int) error {
		return k8s.Create(t.Context(), newInstance(namespace, fmt.Sprintf("adopted-%03d", i), "sleep", "infinity"))
	})
	var before v1alpha1.InstanceList
	g.Eventually(func(g Gomega) {
		g.Expect(k8s.List(t.Context(), &before, client.InNamespace(namespace))).To(Succeed())
		g.Expect(countReady(&before)).To(Equal(adoptedProcesses))
	}).WithTimeout(patience).WithPolling(250 * time.Millisecond).Should(Succeed())
	addFigure("500 processes: memory of the manager", "%.0f MiB", c.memory())
	expectAtMost(t, "private memory of a shim, mean of 500", shimMemory(t, state), 1.5, 1.5, " MiB")

	var sums, openings, looks []float64
	for range rounds {
		c.kill()
		c = startManager(t, state, adoptedProcesses)
		g.Eventually(func() time.Duration { return c.stats().AllObserved }).WithTimeout(patience).WithPolling(20 * time.Millisecond).
			ShouldNot(BeZero())
		s := c.stats()
		openings, looks = append(openings, s.Opening.Seconds()), append(looks, s.AllObserved.Seconds())
		sums = append(sums, s.Opening.Seconds()+s.AllObserved.Seconds())
	}
	addFigure("500 adopted: opening the runtime", "%.3f s", median(openings))
	addFigure("500 adopted: first check of all, from the cache sync", "%.3f s", median(looks))
	expectAtMost(t, "500 adopted: both", median(sums), 0.5, 3, " s")

	var after v1alpha1.InstanceList
	g.Expect(k8s.List(t.Context(), &after, client.InNamespace(namespace))).To(Succeed())
	g.Expect(countReady(&after)).To(Equal(adoptedProcesses))
	versions := map[string]string{}
	for i := range before.Items {
		versions[before.Items[i].Name] = before.Items[i].ResourceVersion
	}
	for i := range after.Items {
		g.Expect(after.Items[i].Status.Incarnation).To(BeEquivalentTo(1), "a new manager must not start a process that already runs")
		g.Expect(after.Items[i].ResourceVersion).To(Equal(versions[after.Items[i].Name]), "a new manager must not write the status of an unchanged object")
	}
	deleteObjects(t, namespace) // deleting the objects needs the manager that is running now
}

func countReady(list *v1alpha1.InstanceList) (n int) {
	for i := range list.Items {
		if isReady(&list.Items[i]) {
			n++
		}
	}
	return n
}

// shimMemory returns the mean private memory of a shim in MiB.
func shimMemory(t *testing.T, state string) float64 {
	t.Helper()
	g := NewWithT(t)
	identities, err := filepath.Glob(filepath.Join(state, "run", "*", shim.IdentityFile))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(identities).NotTo(BeEmpty())
	sum := 0.0
	for _, path := range identities {
		var identity shim.Identity
		found, err := statedir.ReadJSON(path, &identity)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(BeTrue())
		rollup := filepath.Join("/proc", strconv.Itoa(identity.Shim.PID), "smaps_rollup")
		_, err = os.Stat(rollup)
		g.Expect(err).NotTo(HaveOccurred())
		sum += float64(procField(t, rollup, "Private_Clean", "Private_Dirty", "Private_Hugetlb")) / 1024
	}
	return sum / float64(len(identities))
}
