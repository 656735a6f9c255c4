// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// appliesPerRound is how many objects a round creates, one after another.
const appliesPerRound = 25

// TestInstance_TimeFromApplyToReady compares the time from the creation of an object until it is Ready with the minimum time for any controller. The minimum
// consists of one create, which the controller receives through a watch, and two status writes, which the user receives through a watch.
func TestInstance_TimeFromApplyToReady(t *testing.T) {
	state := stateDirectory(t)
	var ratios, floors, times []float64
	for range rounds {
		floor := median(minimumReadyTimes(t))
		c := startManager(t, state, 0)
		took := median(readyTimes(t))
		c.stop()
		ratios, floors, times = append(ratios, took/floor), append(floors, floor), append(times, took)
	}
	addFigure("apply to ready: floor, p50", "%.1f ms", median(floors))
	addFigure("apply to ready: p50", "%.1f ms", median(times))
	expectAtMost(t, "apply to ready / floor, p50", median(ratios), 2, 2.5, "×")
}

// minimumReadyTimes measures the minimum time. It acts as the controller, starts no process, and writes the two statuses that the state machine returns.
func minimumReadyTimes(t *testing.T) (times []float64) {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	namespace := newNamespace(t)
	f := follow(t, namespace)
	for i := range appliesPerRound {
		instance := newInstance(namespace, fmt.Sprintf("floor-%d", i), "sleep", "infinity")
		created, ready := f.expect(instance.Name, func(*v1alpha1.Instance) bool { return true }), f.expect(instance.Name, isReady)
		began := time.Now()
		g.Expect(k8s.Create(ctx, instance)).To(Succeed())
		_, err := created()
		g.Expect(err).NotTo(HaveOccurred())
		running := lifecycle.Observed{Incarnations: []facts.Incarnation{{
			Number: 1, Phase: facts.Running, Containment: "Cgroup", Node: "floor", PID: 1, StartTicks: 1, BootID: "floor", StartedAt: time.Now(),
		}}}
		for _, observed := range []lifecycle.Observed{{}, running} {
			before := instance.DeepCopy()
			desired := lifecycle.Desired{UID: instance.UID, Generation: instance.Generation, State: lifecycle.DesiredRunning, SpecHash: "floor"}
			instance.Status.ProcessStatus = lifecycle.Next(desired, instance.Status.ProcessStatus, observed, time.Now()).Status
			g.Expect(k8s.Status().Patch(ctx, instance, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).To(Succeed())
		}
		at, err := ready()
		g.Expect(err).NotTo(HaveOccurred())
		times = append(times, milliseconds(at.Sub(began)))
	}
	removeFinalizers(t, namespace)
	deleteObjects(t, namespace)
	return times
}

// readyTimes creates objects one after another while a manager runs, and returns the time until each was Ready.
func readyTimes(t *testing.T) (times []float64) {
	t.Helper()
	g := NewWithT(t)
	namespace := newNamespace(t)
	f := follow(t, namespace)
	for i := range appliesPerRound {
		took, err := createAndWait(t, f, namespace, fmt.Sprintf("apply-%d", i))
		g.Expect(err).NotTo(HaveOccurred())
		times = append(times, milliseconds(took))
	}
	deleteObjects(t, namespace)
	return times
}

func createAndWait(t *testing.T, f *follower, namespace, name string) (time.Duration, error) {
	ready := f.expect(name, isReady)
	began := time.Now()
	if err := k8s.Create(t.Context(), newInstance(namespace, name, "sleep", "infinity")); err != nil {
		return 0, err
	}
	at, err := ready()
	return at.Sub(began), err
}

// TestInstance_TimeFromApplyToReadyUnderLoad creates 20 objects per second without waiting for earlier ones.
func TestInstance_TimeFromApplyToReadyUnderLoad(t *testing.T) {
	const total, perSecond = 100, 20
	g := NewWithT(t)
	startManager(t, stateDirectory(t), 0)
	namespace := newNamespace(t)
	f := follow(t, namespace)
	var mu sync.Mutex
	var times []float64
	var failures []error
	var all sync.WaitGroup
	pace := time.NewTicker(time.Second / perSecond)
	defer pace.Stop()
	for i := range total {
		<-pace.C
		all.Go(func() {
			took, err := createAndWait(t, f, namespace, fmt.Sprintf("load-%d", i))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures = append(failures, err)
				return
			}
			times = append(times, milliseconds(took))
		})
	}
	all.Wait()
	g.Expect(failures).To(BeEmpty())
	addFigure("apply to ready at 20 creates/s: p50", "%.1f ms", percentile(times, 50))
	addFigure("apply to ready at 20 creates/s: p99", "%.1f ms", percentile(times, 99))
}
