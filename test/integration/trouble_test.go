// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

var _ = Describe("an Instance with a failure", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	// crashing returns an Instance whose program exits immediately and whose circuit breaker opens after three failures.
	crashing := func(name, command string) *v1alpha1.Instance {
		rt.Program(command, fake.Program{Exit: &facts.Exit{Known: true, Code: 1}})
		instance := newInstance(namespace, name, command)
		instance.Spec.Backoff.InitialSeconds = ptr.To[int32](0)
		instance.Spec.Backoff.MaxSeconds = ptr.To[int32](0)
		instance.Spec.Breaker.FailureThreshold = ptr.To[int32](3)
		instance.Spec.Breaker.CoolDownSeconds = ptr.To[int32](0)
		return instance
	}

	DescribeTable("stalls on a permanent start error, and starts with a corrected spec",
		func(ctx context.Context, reason string) {
			command := "broken-" + reason
			rt.Program(command, fake.Program{StartError: &facts.StartError{Reason: reason, Message: "why it failed."}})
			instance := newInstance(namespace, "claude", command)
			Expect(k8s.Create(ctx, instance)).To(Succeed())
			Expect(waitForStalled(ctx, instance, reason)).To(ContainSubstring("Why it failed."))
			expectNoWrites(ctx, instance)
			Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1), "a crash loop")
			update(ctx, instance, func() { instance.Spec.Process.Command = []string{"claude"} })
			waitForReady(ctx, instance)
		},
		Entry("command not found", v1alpha1.ReasonCommandNotFound),
		Entry("permission denied", v1alpha1.ReasonPermissionDenied),
		Entry("missing directory", v1alpha1.ReasonWorkingDirMissing),
	)

	It("keeps its process while a requested restart would fail, and restarts once it would succeed", func(ctx context.Context) {
		const command = "loses-its-directory"
		instance := newInstance(namespace, "claude", command)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		rt.Program(command, fake.Program{StartError: &facts.StartError{Reason: v1alpha1.ReasonWorkingDirMissing, Message: "why it would fail."}})
		update(ctx, instance, func() { instance.Spec.RestartToken = "again" })
		waits := waitForCondition(ctx, instance, v1alpha1.ConditionDriftDetected, metav1.ConditionTrue, v1alpha1.ReasonWorkingDirMissing)
		Expect(waits.Message).To(HaveSuffix("because the next start would fail: why it would fail."))
		expectNoWrites(ctx, instance)
		Expect(rt.Live(instance.UID)).To(Equal([]int64{1}))
		Expect(instance.Status.ObservedRestartToken).To(BeEmpty())
		rt.Program(command, fake.Program{})
		Eventually(ctx, func() []int64 { return rt.Live(instance.UID) }).Should(Equal([]int64{2}), "the manager checks again without an event")
		waitForConditionAbsent(ctx, instance, v1alpha1.ConditionDriftDetected)
	})

	It("opens its circuit breaker, and a new reset token closes it", func(ctx context.Context) {
		instance := crashing("reset", "crash-reset")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForStalled(ctx, instance, v1alpha1.ReasonCircuitOpen)
		waitForCondition(ctx, instance, v1alpha1.ConditionCircuitOpen, metav1.ConditionTrue, v1alpha1.ReasonCircuitOpen)
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(3))
		expectNoWrites(ctx, instance)
		rt.Program("crash-reset", fake.Program{})
		update(ctx, instance, func() { instance.Spec.ResetToken = "again" })
		waitForReady(ctx, instance)
		waitForConditionAbsent(ctx, instance, v1alpha1.ConditionCircuitOpen)
		Expect(instance.Status.ObservedResetToken).To(Equal("again"))
	})

	It("opens its circuit breaker, and a new spec closes it", func(ctx context.Context) {
		instance := crashing("spec", "crash-spec")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForStalled(ctx, instance, v1alpha1.ReasonCircuitOpen)
		update(ctx, instance, func() { instance.Spec.Process.Command = []string{"claude"} })
		waitForReady(ctx, instance)
		Expect(instance.Status.Breaker.State).To(Equal(v1alpha1.BreakerClosed))
	})

	It("reports an unknown state, and starts no second process", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		rt.Lose(instance.UID, "its shim was killed")
		Expect(waitForStalled(ctx, instance, v1alpha1.ReasonUnknown)).To(ContainSubstring("its shim was killed"))
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1))
		rt.Find(instance.UID)
		waitForReady(ctx, instance)
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1))
	})

	It("reports no exit code if the exit code is unknown", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		instance.Spec.RestartPolicy = v1alpha1.RestartNever
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		rt.Exit(instance.UID, facts.Exit{Known: false})
		waitForStalled(ctx, instance, v1alpha1.ReasonUnknown)
		Expect(instance.Status.LastExit.Reason).To(Equal(v1alpha1.ReasonUnknown))
		Expect(instance.Status.LastExit.ExitCode).To(BeNil())
	})

	It("starts eventually when calls of the runtime fail and responses are lost", func(ctx context.Context) {
		// Each fault affects the next call of its kind, even if this call is for another object.
		rt.Fail(fake.Start, fmt.Errorf("no more processes"))
		rt.LoseAnswer(fake.Start, fmt.Errorf("connection lost"))
		rt.Fail(fake.Observe, fmt.Errorf("connection refused"))
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1))
	})

	It("stops the process of an object that was removed without its finalizer", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		Expect(k8s.Delete(ctx, instance, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		_ = k8s.Patch(ctx, instance, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
		waitUntilGone(ctx, instance)
	})

	It("restores its finalizer", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		update(ctx, instance, func() { instance.Finalizers = nil })
		Eventually(func(g Gomega) {
			get(ctx, g, instance)
			g.Expect(instance.Finalizers).To(ContainElement(v1alpha1.FinalizerProcess))
		}).Should(Succeed())
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1))
	})

	It("keeps its process and its exit code when the manager is replaced", Serial, func(ctx context.Context) {
		running, ending, stopping := newInstance(namespace, "running", "claude"), newInstance(namespace, "ending", "claude"), newInstance(namespace, "stopping", "claude")
		ending.Spec.RestartPolicy = v1alpha1.RestartNever
		for _, instance := range []*v1alpha1.Instance{running, ending, stopping} {
			Expect(k8s.Create(ctx, instance)).To(Succeed())
			waitForReady(ctx, instance)
		}
		seen := follow(ctx, running, &v1alpha1.InstanceList{})
		stopManager()
		update(ctx, stopping, func() { stopping.Spec.State = v1alpha1.StateStopped })
		rt.Exit(ending.UID, facts.Exit{Known: true, Code: 42})
		stopManager = startManager()

		waitForReadyWithoutProcess(ctx, stopping, v1alpha1.ReasonStopped)
		waitForStalled(ctx, ending, v1alpha1.ReasonFailed)
		Expect(ending.Status.LastExit.ExitCode).To(HaveValue(BeEquivalentTo(42)), "the real exit code")
		expectNoWrites(ctx, running)
		seen.stop()
		Expect(seen.alwaysTrue(v1alpha1.ConditionReady)).To(BeTrue(), "a new manager never makes it unready")
		Expect(rt.Count(running.UID, fake.Start)).To(Equal(1))
	})

	It("has the process that its spec requests after many concurrent changes", func(ctx context.Context) {
		const many = 40
		instances := make([]*v1alpha1.Instance, many)
		for i := range instances {
			instances[i] = newInstance(namespace, fmt.Sprintf("many-%d", i), "claude")
			Expect(k8s.Create(ctx, instances[i])).To(Succeed())
		}
		for i, instance := range instances {
			switch i % 4 {
			case 0:
				update(ctx, instance, func() { instance.Spec.State = v1alpha1.StateStopped })
			case 1:
				update(ctx, instance, func() { instance.Spec.RestartToken = "now" })
			case 2:
				Expect(k8s.Delete(ctx, instance)).To(Succeed())
			}
		}
		for i, instance := range instances {
			switch i % 4 {
			case 0:
				waitForReadyWithoutProcess(ctx, instance, v1alpha1.ReasonStopped)
				Eventually(liveIncarnations(instance)).Should(BeEmpty())
			case 2:
				waitUntilGone(ctx, instance)
			default:
				waitForReady(ctx, instance)
				Expect(liveIncarnations(instance)()).To(HaveLen(1))
			}
		}
	})
})
