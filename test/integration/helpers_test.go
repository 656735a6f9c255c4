// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"sync"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// newInstance returns an Instance that runs the command.
func newInstance(namespace, name string, command ...string) *v1alpha1.Instance {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	instance.Spec.Process.Command = command
	return instance
}

// get reads the current object.
func get(ctx context.Context, g Gomega, object process.Object) {
	g.ExpectWithOffset(1, k8s.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
}

// update updates the object as a user would, and retries if a write of the manager caused a conflict.
func update(ctx context.Context, object process.Object, do func()) {
	EventuallyWithOffset(1, func(g Gomega) {
		get(ctx, g, object)
		do()
		g.Expect(k8s.Update(ctx, object)).To(Succeed())
	}).Should(Succeed())
}

// waitForCondition waits until a condition has this status and reason for the current generation, and returns the condition. object then contains the
// state that was read.
func waitForCondition(ctx context.Context, object process.Object, conditionType string, want metav1.ConditionStatus, reason string) metav1.Condition {
	var found metav1.Condition
	EventuallyWithOffset(1, func(g Gomega) {
		get(ctx, g, object)
		condition := meta.FindStatusCondition(object.GetProcessStatus().Conditions, conditionType)
		g.Expect(condition).NotTo(BeNil(), "%s is not set", conditionType)
		g.Expect(condition.ObservedGeneration).To(Equal(object.GetGeneration()))
		g.Expect(condition.Status).To(Equal(want), "%s: %s %s", conditionType, condition.Reason, condition.Message)
		if reason != "" {
			g.Expect(condition.Reason).To(Equal(reason))
		}
		found = *condition
	}).Should(Succeed())
	return found
}

// waitForReady waits until the object is Ready with the reason Running, and checks that kstatus reports Current.
func waitForReady(ctx context.Context, object process.Object) {
	GinkgoHelper()
	waitForCondition(ctx, object, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonRunning)
	expectKstatus(object, status.CurrentStatus)
}

// waitForReadyWithoutProcess waits until the object is Ready with this reason, and checks that kstatus reports Current and that the object has no process.
func waitForReadyWithoutProcess(ctx context.Context, object process.Object, reason string) {
	GinkgoHelper()
	waitForCondition(ctx, object, v1alpha1.ConditionReady, metav1.ConditionTrue, reason)
	expectKstatus(object, status.CurrentStatus)
	Expect(object.GetProcessStatus().Process).To(BeNil())
}

// waitForConditionAbsent waits until the condition is absent. Berth omits a condition that has its usual status and no message.
func waitForConditionAbsent(ctx context.Context, object process.Object, conditionType string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		get(ctx, g, object)
		g.Expect(object.GetProcessStatus().Conditions).NotTo(ContainElement(HaveField("Type", conditionType)))
	}).Should(Succeed())
}

// waitForStalled waits until the object is Stalled with this reason, checks that kstatus reports Failed, and returns the message.
func waitForStalled(ctx context.Context, object process.Object, reason string) string {
	GinkgoHelper()
	condition := waitForCondition(ctx, object, v1alpha1.ConditionStalled, metav1.ConditionTrue, reason)
	expectKstatus(object, status.FailedStatus)
	return condition.Message
}

// expectKstatus checks that exactly one of Ready, Reconciling and Stalled is True, and that kstatus reports this status.
func expectKstatus(object process.Object, want status.Status) {
	GinkgoHelper()
	var trueConditions []string
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if meta.IsStatusConditionTrue(object.GetProcessStatus().Conditions, conditionType) {
			trueConditions = append(trueConditions, conditionType)
		}
	}
	Expect(trueConditions).To(HaveLen(1), "exactly one is True")
	content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(object)
	Expect(err).NotTo(HaveOccurred())
	result, err := status.Compute(&unstructured.Unstructured{Object: content})
	Expect(err).NotTo(HaveOccurred())
	Expect(result.Status).To(Equal(want), result.Message)
}

// waitUntilGone waits until the object is deleted and the runtime no longer knows its process.
func waitUntilGone(ctx context.Context, object process.Object) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopyObject().(process.Object))
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
		g.Expect(rt.Known()).NotTo(ContainElement(object.GetUID()))
	}).Should(Succeed())
}

// cleanUp deletes the remaining objects of a spec and kills their processes.
func cleanUp(ctx context.Context, namespace string) {
	for _, object := range []client.Object{&v1alpha1.InstanceDiscovery{}, &v1alpha1.DevServer{}, &v1alpha1.Instance{}, &v1alpha1.LanguageServer{}, &v1alpha1.StrategyRun{}, &v1alpha1.Strategy{}} {
		Expect(k8s.DeleteAllOf(ctx, object, client.InNamespace(namespace))).To(Succeed())
	}
	Eventually(func(g Gomega) {
		var instances v1alpha1.InstanceList
		var devServers v1alpha1.DevServerList
		var languageServers v1alpha1.LanguageServerList
		var strategyRuns v1alpha1.StrategyRunList
		g.Expect(k8s.List(ctx, &strategyRuns, client.InNamespace(namespace))).To(Succeed())
		g.Expect(k8s.List(ctx, &instances, client.InNamespace(namespace))).To(Succeed())
		g.Expect(k8s.List(ctx, &devServers, client.InNamespace(namespace))).To(Succeed())
		g.Expect(k8s.List(ctx, &languageServers, client.InNamespace(namespace))).To(Succeed())
		for i := range instances.Items {
			_ = rt.Kill(ctx, instances.Items[i].UID, instances.Items[i].Status.Incarnation)
		}
		for i := range devServers.Items {
			_ = rt.Kill(ctx, devServers.Items[i].UID, devServers.Items[i].Status.Incarnation)
		}
		for i := range languageServers.Items {
			_ = rt.Kill(ctx, languageServers.Items[i].UID, languageServers.Items[i].Status.Incarnation)
		}
		for i := range strategyRuns.Items {
			_ = rt.Kill(ctx, strategyRuns.Items[i].UID, strategyRuns.Items[i].Status.Incarnation)
		}
		g.Expect(instances.Items).To(BeEmpty())
		g.Expect(strategyRuns.Items).To(BeEmpty())
		g.Expect(devServers.Items).To(BeEmpty())
		g.Expect(languageServers.Items).To(BeEmpty())
	}).Should(Succeed())
}

// expectNoWrites makes the manager check the process three times, and verifies that the manager does not write the object.
func expectNoWrites(ctx context.Context, object process.Object) {
	GinkgoHelper()
	get(ctx, Default, object)
	version := object.GetResourceVersion()
	checks := func() int { return rt.Looks(object.GetUID()) + tmux.Looks(object.GetUID()) }
	for range 3 {
		before := checks()
		rt.Announce(object.GetUID())
		Eventually(checks).Should(BeNumerically(">", before))
	}
	Consistently(func(g Gomega) {
		get(ctx, g, object)
		g.Expect(object.GetResourceVersion()).To(Equal(version))
	}).Should(Succeed())
}

// history records the states of an object that a watch delivers, and whether the object was ever missing.
type history struct {
	mu      sync.Mutex
	states  []process.Object
	missing bool
	stop    func()
}

// follow records the history of an object until the spec ends or stop is called. In addition to the watch, it polls the object to detect that a read does
// not find it.
func follow(ctx context.Context, object process.Object, list client.ObjectList) *history {
	GinkgoHelper()
	h := &history{}
	watching, err := k8s.Watch(ctx, list, client.InNamespace(object.GetNamespace()),
		client.MatchingFields{"metadata.name": object.GetName()})
	Expect(err).NotTo(HaveOccurred())
	done, ended := make(chan struct{}), sync.WaitGroup{}
	ended.Go(func() {
		for event := range watching.ResultChan() {
			h.record(event)
		}
	})
	key, empty := client.ObjectKeyFromObject(object), object.DeepCopyObject().(process.Object)
	ended.Go(func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				if err := k8s.Get(ctx, key, empty); apierrors.IsNotFound(err) {
					h.record(watch.Event{Type: watch.Deleted})
				}
			}
		}
	})
	h.stop = sync.OnceFunc(func() {
		close(done)
		watching.Stop()
		ended.Wait()
	})
	DeferCleanup(h.stop)
	return h
}

func (h *history) record(event watch.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if event.Type == watch.Deleted {
		h.missing = true
	}
	if object, ok := event.Object.(process.Object); ok {
		h.states = append(h.states, object)
	}
}

// wasMissing reports whether the object was ever deleted, or not found by a read.
func (h *history) wasMissing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.missing
}

// saw reports whether the condition was True in any recorded state whose status.incarnation is the given one.
func (h *history) saw(conditionType string, incarnation int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, state := range h.states {
		if state.GetProcessStatus().Incarnation == incarnation && meta.IsStatusConditionTrue(state.GetProcessStatus().Conditions, conditionType) {
			return true
		}
	}
	return false
}

// alwaysTrue reports whether the condition was True in every recorded state.
func (h *history) alwaysTrue(conditionType string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, state := range h.states {
		if !meta.IsStatusConditionTrue(state.GetProcessStatus().Conditions, conditionType) {
			return false
		}
	}
	return true
}

// liveIncarnations returns a function that lists the live incarnations of an object.
func liveIncarnations(object client.Object) func() []int64 {
	uid := object.GetUID()
	return func() []int64 { return rt.Live(uid) }
}

func uidOf(object client.Object) types.UID { return object.GetUID() }
