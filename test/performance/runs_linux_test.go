// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// runs is the number of runs in one measurement; creators is the number of clients that create them.
	runs     = 75
	creators = 16
)

// TestRuns measures how many runs per second start a real process and are counted. It compares this rate with the rate of clients that only make the
// four necessary writes of a run (create, intent, result, counted) with their real content (floorRuns). For comparison it also reports the rate of
// four almost empty writes that no client watches (bareRuns).
func TestRuns(t *testing.T) {
	var lean, least, plain, given, ratios, writes []float64
	for range rounds {
		lean = append(lean, bareRuns(t))
		leastRate := floorRuns(t)
		rate, _ := realRuns(t, createsPlain)
		givenRate, each := realRuns(t, createsClaimed)
		least, plain, given, writes = append(least, leastRate), append(plain, rate), append(given, givenRate), append(writes, each)
		ratios = append(ratios, givenRate/leastRate)
	}
	note("runs: four bare writes, almost empty", "%.0f/s", median(lean))
	note("runs: the four necessary writes, with their content", "%.0f/s", median(least))
	note("runs: create → process → counted", "%.0f/s", median(plain))
	note("runs: created with their finalizers, as berth run does", "%.0f/s", median(given))
	note("runs: writes to a run, including its creation", "%.2f", median(writes))
	// The limit applies to the inverse, because atMost checks upper bounds.
	atMost(t, "runs: necessary writes alone / create → process → counted", 1/median(ratios), 1/0.6, 3, "×")
}

// createsPlain creates a run as kubectl does; createsClaimed adds the finalizers that the manager would add.
func createsPlain(t *testing.T, namespace string, i int) error {
	return k8s.Create(t.Context(), newRun(namespace, i))
}

func createsClaimed(t *testing.T, namespace string, i int) error {
	run := newRun(namespace, i)
	run.Finalizers = []string{v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount}
	return k8s.Create(t.Context(), run)
}

func newRun(namespace string, i int) *v1alpha1.StrategyRun {
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("run-%04d", i)}}
	run.Spec.StrategyRef.Name = "true"
	return run
}

func newStrategy(t *testing.T, namespace string) {
	t.Helper()
	s := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "true"}}
	s.Spec.Process.Command = []string{"/bin/true"}
	s.Spec.HistoryLimit = ptr.To[int32](10000)
	g := NewWithT(t)
	g.Expect(k8s.Create(t.Context(), s)).To(Succeed())
	g.Eventually(func(g Gomega) { // wait for the first reconcile of the strategy: a run that waits for it reports the wait with an additional write
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(s), s)).To(Succeed())
		g.Expect(s.Status.Breaker).NotTo(BeNil())
	}).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Succeed())
}

// bareRuns returns how many runs per second the API server accepts if each is four sequential writes.
func bareRuns(t *testing.T) float64 {
	t.Helper()
	namespace := newNamespace(t)
	began := time.Now()
	inParallel(t, runs, creators, func(i int) error {
		run := newRun(namespace, i)
		run.Finalizers = []string{v1alpha1.FinalizerCount}
		if err := k8s.Create(t.Context(), run); err != nil {
			return err
		}
		for _, write := range []func(){
			func() { run.Status.Incarnation = 1 },
			func() {
				run.Status.Outcome, run.Status.FinishedAt = v1alpha1.RunSucceeded, ptr.To(metav1.NowMicro())
			},
		} {
			before := run.DeepCopy()
			write()
			if err := k8s.Status().Patch(t.Context(), run, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
				return err
			}
		}
		before := run.DeepCopy()
		controllerutil.RemoveFinalizer(run, v1alpha1.FinalizerCount)
		return k8s.Patch(t.Context(), run, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	rate := runs / time.Since(began).Seconds()
	emptyRuns(t, namespace)
	return rate
}

// realRuns returns how many runs per second are executed and counted, and the mean number of writes per run. create may create runs indirectly, for
// example through a plan.
func realRuns(t *testing.T, create func(t *testing.T, namespace string, i int) error) (rate, writes float64) {
	t.Helper()
	g := NewWithT(t)
	c := startManager(t, stateDirectory(t), 0)
	defer c.stop()
	namespace := newNamespace(t)
	newStrategy(t, namespace)
	census := newRunCensus()
	watchAll(t, namespace, &v1alpha1.StrategyRunList{}, census.see)
	began := time.Now()
	inParallel(t, runs, creators, func(i int) error { return create(t, namespace, i) })
	g.Eventually(census.all).WithTimeout(patience).Should(BeClosed(), "every run must be counted")
	took := time.Since(began)
	s := &v1alpha1.Strategy{}
	g.Expect(k8s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "true"}, s)).To(Succeed())
	g.Expect(s.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: runs}))
	each := float64(census.writes()) / runs
	emptyRuns(t, namespace)
	return runs / took.Seconds(), each
}

// runCensus records which runs have been counted, and every resource version of every run.
type runCensus struct {
	mu       sync.Mutex
	counted  map[types.UID]bool
	versions map[string]bool
	all      chan struct{}
}

func newRunCensus() *runCensus {
	return &runCensus{counted: map[types.UID]bool{}, versions: map[string]bool{}, all: make(chan struct{})}
}

func (c *runCensus) see(object client.Object) {
	run, ok := object.(*v1alpha1.StrategyRun)
	if !ok || !run.DeletionTimestamp.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.versions[run.ResourceVersion] = true
	if run.Status.Outcome == "" || controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerCount) || c.counted[run.UID] {
		return
	}
	if c.counted[run.UID] = true; len(c.counted) == runs {
		close(c.all)
	}
}

func (c *runCensus) writes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.versions)
}

// emptyRuns deletes the runs and the strategy of a namespace and waits until they are gone.
func emptyRuns(t *testing.T, namespace string) {
	t.Helper()
	g := NewWithT(t)
	for _, object := range []client.Object{&v1alpha1.StrategyRun{}, &v1alpha1.Strategy{}} {
		g.Expect(k8s.DeleteAllOf(t.Context(), object, client.InNamespace(namespace))).To(Succeed())
	}
	g.Eventually(func(g Gomega) {
		list := &v1alpha1.StrategyRunList{}
		g.Expect(k8s.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
		g.Expect(list.Items).To(BeEmpty())
	}).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(Succeed())
}
