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
	// runCount is the number of runs in one measurement; creators is the number of clients that create them.
	runCount = 75
	creators = 16
)

// TestRuns_RateOfCountedRuns measures how many runs per second start a real process and are counted. It compares this rate with the rate of clients that only
// make the four necessary writes of a run with their real content (minimumRunRate): the creation, the intent to start, the result, and the removal of the
// count finalizer. For comparison it also reports the rate of four almost empty writes that no client watches (bareRunRate).
func TestRuns_RateOfCountedRuns(t *testing.T) {
	var lean, least, plain, given, ratios, writes []float64
	for range rounds {
		lean = append(lean, bareRunRate(t))
		leastRate := minimumRunRate(t)
		rate, _ := realRunRate(t, createPlainRun)
		givenRate, each := realRunRate(t, createRunWithFinalizers)
		least, plain, given, writes = append(least, leastRate), append(plain, rate), append(given, givenRate), append(writes, each)
		ratios = append(ratios, givenRate/leastRate)
	}
	addFigure("runs: four bare writes, almost empty", "%.0f/s", median(lean))
	addFigure("runs: the four necessary writes, with their content", "%.0f/s", median(least))
	addFigure("runs: create → process → counted", "%.0f/s", median(plain))
	addFigure("runs: created with their finalizers, as berth run does", "%.0f/s", median(given))
	addFigure("runs: writes to a run, including its creation", "%.2f", median(writes))
	// The limit applies to the inverse, because expectAtMost checks upper bounds.
	expectAtMost(t, "runs: necessary writes alone / create → process → counted", 1/median(ratios), 1/0.6, 3, "×")
}

// createPlainRun creates a run as kubectl does; createRunWithFinalizers adds the finalizers that the manager would add.
func createPlainRun(t *testing.T, namespace string, i int) error {
	return k8s.Create(t.Context(), newRun(namespace, i))
}

func createRunWithFinalizers(t *testing.T, namespace string, i int) error {
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
	// Wait for the first reconcile of the strategy. A run that is created earlier needs an additional write, which reports that the run waits for its strategy.
	g.Eventually(func(g Gomega) {
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(s), s)).To(Succeed())
		g.Expect(s.Status.Breaker).NotTo(BeNil())
	}).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Succeed())
}

// bareRunRate returns how many runs per second the API server accepts if each run consists of four sequential writes.
func bareRunRate(t *testing.T) float64 {
	t.Helper()
	namespace := newNamespace(t)
	began := time.Now()
	inParallel(t, runCount, creators, func(i int) error {
		run := newRun(namespace, i)
		run.Finalizers = []string{v1alpha1.FinalizerCount}
		if err := k8s.Create(t.Context(), run); err != nil {
			return err
		}
		for _, write := range []func(){
			func() { run.Status.Incarnation = 1 },
			func() {
				run.Status.Outcome, run.Status.FinishTime = v1alpha1.OutcomeSucceeded, ptr.To(metav1.NowMicro())
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
	rate := runCount / time.Since(began).Seconds()
	deleteRuns(t, namespace)
	return rate
}

// realRunRate returns how many runs per second are executed and counted, and the mean number of writes per run. create may create runs indirectly, for
// example through a plan.
func realRunRate(t *testing.T, create func(t *testing.T, namespace string, i int) error) (rate, writes float64) {
	t.Helper()
	g := NewWithT(t)
	c := startManager(t, stateDirectory(t), 0)
	defer c.stop()
	namespace := newNamespace(t)
	newStrategy(t, namespace)
	recorder := newRunRecorder()
	watchAll(t, namespace, &v1alpha1.StrategyRunList{}, recorder.record)
	began := time.Now()
	inParallel(t, runCount, creators, func(i int) error { return create(t, namespace, i) })
	g.Eventually(recorder.all).WithTimeout(patience).Should(BeClosed(), "every run must be counted")
	took := time.Since(began)
	s := &v1alpha1.Strategy{}
	g.Expect(k8s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "true"}, s)).To(Succeed())
	g.Expect(s.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: runCount}))
	each := float64(recorder.writes()) / runCount
	deleteRuns(t, namespace)
	return runCount / took.Seconds(), each
}

// runRecorder records which runs have been counted, and every resource version of every run.
type runRecorder struct {
	mu       sync.Mutex
	counted  map[types.UID]bool
	versions map[string]bool
	all      chan struct{}
}

func newRunRecorder() *runRecorder {
	return &runRecorder{counted: map[types.UID]bool{}, versions: map[string]bool{}, all: make(chan struct{})}
}

func (c *runRecorder) record(object client.Object) {
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
	if c.counted[run.UID] = true; len(c.counted) == runCount {
		close(c.all)
	}
}

func (c *runRecorder) writes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.versions)
}

// deleteRuns deletes the runs and the strategy of a namespace and waits until they are gone.
func deleteRuns(t *testing.T, namespace string) {
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
