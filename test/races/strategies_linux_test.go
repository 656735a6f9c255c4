// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// newStrategy returns a strategy whose runs take their name and their exit code from their arguments: see newRun.
func newStrategy(name string, threshold int32) *v1alpha1.Strategy {
	s := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: env.namespace, Name: name}}
	s.Spec.Process.Command = workloadCommand("$(ARG_NAME)", "-exit", "$(ARG_EXIT)", "-after", "$(ARG_AFTER)")
	s.Spec.Breaker.FailureThreshold = ptr.To(threshold)
	s.Spec.HistoryLimit = ptr.To[int32](10000)
	return s
}

// newRun returns a run that ends with that exit code. If gate is not empty, the run waits for the file gate before it ends.
func newRun(s *v1alpha1.Strategy, name string, exit int, gate string) *v1alpha1.StrategyRun {
	r := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	r.Spec.StrategyRef.Name = s.Name
	r.Spec.Arguments = []v1alpha1.RunArgument{{Name: "name", Value: name}, {Name: "exit", Value: strconv.Itoa(exit)}, {Name: "after", Value: gate}}
	return r
}

func gateFile(name string) string { return filepath.Join(env.dir, name+".gate") }

// strategyNow and runNow read the current object.
func strategyNow(ctx context.Context, s *v1alpha1.Strategy) (*v1alpha1.Strategy, error) {
	fresh := &v1alpha1.Strategy{}
	err := k8s.Get(ctx, client.ObjectKeyFromObject(s), fresh)
	if err == nil && fresh.Status.Breaker == nil {
		fresh.Status.Breaker = &v1alpha1.StrategyBreakerStatus{}
	}
	return fresh, err
}

func runNow(ctx context.Context, r *v1alpha1.StrategyRun) (*v1alpha1.StrategyRun, error) {
	fresh := &v1alpha1.StrategyRun{}
	return fresh, k8s.Get(ctx, client.ObjectKeyFromObject(r), fresh)
}

// waitForCounted waits until a strategy has counted at least that many runs and status.counted is empty, and returns the strategy as it was at that time.
func waitForCounted(ctx context.Context, s *v1alpha1.Strategy, runs int) *v1alpha1.Strategy {
	GinkgoHelper()
	var last *v1alpha1.Strategy
	Eventually(ctx, func(g Gomega) {
		var err error
		last, err = strategyNow(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(totalRuns(last.Status.Totals)).To(BeNumerically(">=", runs))
		g.Expect(last.Status.Counted).To(BeEmpty())
	}).WithTimeout(time.Minute).Should(Succeed(), func() string { return fmt.Sprintf("%s: want %d runs, got %+v", s.Name, runs, last.Status.Totals) })
	return last
}

func totalRuns(t v1alpha1.StrategyTotals) int {
	return int(t.Succeeded + t.Failed + t.TimedOut + t.Cancelled + t.SkippedCircuitOpen)
}

// waitForOutcome waits for the outcome of a run and returns the outcome. It returns an error instead of failing the spec, so that
// goroutines can call it.
func waitForOutcome(ctx context.Context, r *v1alpha1.StrategyRun) (v1alpha1.RunOutcome, error) {
	var outcome v1alpha1.RunOutcome
	err := pollUntil(ctx, func() (bool, error) {
		fresh, err := runNow(ctx, r)
		outcome = fresh.Status.Outcome
		return err == nil && outcome != "", err
	})
	if err != nil {
		return "", fmt.Errorf("%s has no outcome: %w", r.Name, err)
	}
	return outcome, nil
}

// waitForStarted waits until each of these runs has a process that has started.
func waitForStarted(ctx context.Context, runs []*v1alpha1.StrategyRun) {
	GinkgoHelper()
	Eventually(ctx, func() int {
		begun := map[string]bool{}
		for _, note := range notes("starts", "") {
			begun[note.name] = true
		}
		return len(slices.DeleteFunc(slices.Clone(runs), func(r *v1alpha1.StrategyRun) bool { return begun[r.Name] }))
	}).Should(BeZero(), "runs that have not started")
}

// expectExecutedOnce checks that each of these runs was executed exactly once. The counts come from the processes and not from the status of the objects.
func expectExecutedOnce(runs []*v1alpha1.StrategyRun) {
	GinkgoHelper()
	times := map[string]int{}
	for _, note := range notes("starts", "") {
		times[note.name]++
	}
	for _, r := range runs {
		Expect(times[r.Name]).To(Equal(1), "exactly one execution of %s", r.Name)
	}
}

func resetStrategy(ctx context.Context, s *v1alpha1.Strategy, token string) error {
	return patchObject(ctx, s, fmt.Sprintf(`{"spec":{"resetToken":%q}}`, token))
}

// observedStates collects every state of a strategy that a client sees if it watches from the beginning.
type observedStates struct {
	mu   sync.Mutex
	seen []*v1alpha1.Strategy
}

// watchStrategy records all changes of a newly created strategy, until the row ends.
func watchStrategy(ctx context.Context, s *v1alpha1.Strategy) *observedStates {
	GinkgoHelper()
	all := &observedStates{}
	ctx, cancel := context.WithCancel(ctx)
	watcher, err := k8s.Watch(ctx, &v1alpha1.StrategyList{}, client.InNamespace(s.Namespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: s.ResourceVersion}})
	Expect(err).NotTo(HaveOccurred())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watcher.ResultChan() {
			if now, ok := event.Object.(*v1alpha1.Strategy); ok && now.UID == s.UID && now.Status.Breaker != nil {
				all.mu.Lock()
				all.seen = append(all.seen, now.DeepCopy())
				all.mu.Unlock()
			}
		}
	}()
	DeferCleanup(func() {
		watcher.Stop()
		cancel()
		<-ended
	})
	return all
}

// upTo waits until the watch has delivered the resource version of the given object. It returns all states that the watch has delivered so far.
func (s *observedStates) upTo(ctx context.Context, last *v1alpha1.Strategy) []*v1alpha1.Strategy {
	GinkgoHelper()
	Eventually(ctx, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.seen, func(o *v1alpha1.Strategy) bool { return o.ResourceVersion == last.ResourceVersion })
	}).Should(BeTrue(), "the watch reaches the last version")
	return s.soFar()
}

// soFar returns all states that the watch has delivered so far.
func (s *observedStates) soFar() []*v1alpha1.Strategy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// checkBreakerStates checks that the breaker was open in exactly those states that have at least as many failures as the threshold.
func checkBreakerStates(all []*v1alpha1.Strategy, threshold int32) error {
	for _, o := range all {
		b := o.Status.Breaker
		want := v1alpha1.BreakerClosed
		if b.Failures >= threshold {
			want = v1alpha1.BreakerOpen
		}
		if b.State != want {
			return fmt.Errorf("the breaker is open exactly from the threshold on, at every read: %s at %d failures of %d", b.State, b.Failures, threshold)
		}
	}
	return nil
}

// expectSerialCounts counts the failures of the runs one after the other, in the order in which the recorded states list the runs. It expects every recorded
// state to have the same number of failures as this count.
func expectSerialCounts(ctx context.Context, s *v1alpha1.Strategy, all []*v1alpha1.Strategy, threshold int32) {
	GinkgoHelper()
	list := &v1alpha1.StrategyRunList{}
	Expect(k8s.List(ctx, list, client.InNamespace(s.Namespace))).To(Succeed())
	runs := map[types.UID]*v1alpha1.StrategyRun{}
	for i := range list.Items {
		runs[list.Items[i].UID] = &list.Items[i]
	}
	counted, failures, epoch := map[types.UID]bool{}, int32(0), int64(0)
	for _, o := range all {
		if o.Status.Epoch > epoch {
			epoch, failures = o.Status.Epoch, 0
		}
		for _, uid := range o.Status.Counted {
			if counted[uid] {
				continue
			}
			counted[uid] = true
			r := runs[uid]
			Expect(r).NotTo(BeNil(), "a run that was counted exists")
			switch outcome := r.Status.Outcome; {
			case r.Status.Pinned.Epoch != epoch:
			case outcome == v1alpha1.OutcomeFailed:
				failures++
			case outcome == v1alpha1.OutcomeSucceeded && failures < threshold:
				failures = 0
			}
		}
		Expect(o.Status.Breaker.Failures).To(Equal(failures), "the failures must equal a count of one run after the other, at version %s", o.ResourceVersion)
	}
}
