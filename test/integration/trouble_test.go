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

var _ = Describe("trouble", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	// crashing is an Instance that ends at once, and opens its breaker after three failures.
	crashing := func(name, command string) *v1alpha1.Instance {
		rt.Program(command, fake.Program{Exit: &facts.Exit{Known: true, Code: 1}})
		instance := newInstance(namespace, name, command)
		instance.Spec.Backoff.InitialSeconds = ptr.To[int32](0)
		instance.Spec.Backoff.MaxSeconds = ptr.To[int32](0)
		instance.Spec.Breaker.FailureThreshold = ptr.To[int32](3)
		instance.Spec.Breaker.CoolDownSeconds = ptr.To[int32](0)
		return instance
	}

	DescribeTable("that would be there again at the next try stalls, and a new spec heals it",
		func(ctx context.Context, reason string) {
			command := "broken-" + reason
			rt.Program(command, fake.Program{StartError: &facts.StartError{Reason: reason, Message: "why it failed."}})
			instance := newInstance(namespace, "claude", command)
			Expect(k8s.Create(ctx, instance)).To(Succeed())
			Expect(stalls(ctx, instance, reason)).To(ContainSubstring("Why it failed."))
			staysUnwritten(ctx, instance)
			Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1), "no crash loop")
			change(ctx, instance, func() { instance.Spec.Process.Command = []string{"claude"} })
			becomesReady(ctx, instance)
		},
		Entry("command not found", v1alpha1.ReasonCommandNotFound),
		Entry("permission denied", v1alpha1.ReasonPermissionDenied),
		Entry("missing directory", v1alpha1.ReasonWorkingDirMissing),
	)

	It("opens the breaker, and a reset token brings it back", func(ctx context.Context) {
		instance := crashing("reset", "crash-reset")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		stalls(ctx, instance, v1alpha1.ReasonCircuitOpen)
		reads(ctx, instance, v1alpha1.ConditionCircuitOpen, metav1.ConditionTrue, v1alpha1.ReasonCircuitOpen)
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(3))
		staysUnwritten(ctx, instance)
		rt.Program("crash-reset", fake.Program{})
		change(ctx, instance, func() { instance.Spec.ResetToken = "again" })
		becomesReady(ctx, instance)
		reads(ctx, instance, v1alpha1.ConditionCircuitOpen, metav1.ConditionFalse, v1alpha1.ReasonCircuitClosed)
		Expect(instance.Status.ObservedResetToken).To(Equal("again"))
	})

	It("opens the breaker, and a new spec brings it back", func(ctx context.Context) {
		instance := crashing("spec", "crash-spec")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		stalls(ctx, instance, v1alpha1.ReasonCircuitOpen)
		change(ctx, instance, func() { instance.Spec.Process.Command = []string{"claude"} })
		becomesReady(ctx, instance)
		Expect(instance.Status.Breaker.State).To(Equal(v1alpha1.BreakerClosed))
	})

	It("says that it does not know, and starts nothing beside it", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		becomesReady(ctx, instance)
		rt.Lose(instance.UID, "its shim was killed")
		Expect(stalls(ctx, instance, v1alpha1.ReasonUnknown)).To(ContainSubstring("its shim was killed"))
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1))
		rt.Find(instance.UID)
		becomesReady(ctx, instance)
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1))
	})

	It("invents no exit code", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		instance.Spec.RestartPolicy = v1alpha1.RestartNever
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		becomesReady(ctx, instance)
		rt.Exit(instance.UID, facts.Exit{Known: false})
		stalls(ctx, instance, v1alpha1.ReasonUnknown)
		Expect(instance.Status.LastExit.Reason).To(Equal(v1alpha1.ReasonUnknown))
		Expect(instance.Status.LastExit.ExitCode).To(BeNil())
	})

	It("starts in the end when the runtime fails and answers get lost", func(ctx context.Context) {
		// Which object's call meets a fault does not matter here.
		rt.Fail(fake.Start, fmt.Errorf("no more processes"))
		rt.LoseAnswer(fake.Start, fmt.Errorf("connection lost"))
		rt.Fail(fake.Observe, fmt.Errorf("connection refused"))
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		becomesReady(ctx, instance)
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1))
	})

	It("ends a process whose object was torn away", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		becomesReady(ctx, instance)
		Expect(k8s.Delete(ctx, instance, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		_ = k8s.Patch(ctx, instance, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
		isGone(ctx, instance)
	})

	It("puts its finalizer back", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		becomesReady(ctx, instance)
		change(ctx, instance, func() { instance.Finalizers = nil })
		Eventually(func(g Gomega) {
			get(ctx, g, instance)
			g.Expect(instance.Finalizers).To(ContainElement(v1alpha1.FinalizerProcess))
		}).Should(Succeed())
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(1))
	})

	It("loses nothing to a new manager", Serial, func(ctx context.Context) {
		running, ending, stopping := newInstance(namespace, "running", "claude"), newInstance(namespace, "ending", "claude"), newInstance(namespace, "stopping", "claude")
		ending.Spec.RestartPolicy = v1alpha1.RestartNever
		for _, instance := range []*v1alpha1.Instance{running, ending, stopping} {
			Expect(k8s.Create(ctx, instance)).To(Succeed())
			becomesReady(ctx, instance)
		}
		seen := follow(ctx, running, &v1alpha1.InstanceList{})
		stopManager()
		change(ctx, stopping, func() { stopping.Spec.State = v1alpha1.StateStopped })
		rt.Exit(ending.UID, facts.Exit{Known: true, Code: 42})
		stopManager = startManager()

		stalls(ctx, stopping, v1alpha1.ReasonStopped)
		stalls(ctx, ending, v1alpha1.ReasonFailed)
		Expect(ending.Status.LastExit.ExitCode).To(HaveValue(BeEquivalentTo(42)), "the true exit code")
		staysUnwritten(ctx, running)
		seen.stop()
		Expect(seen.always(v1alpha1.ConditionReady)).To(BeTrue(), "a new manager takes nothing away")
		Expect(rt.Count(running.UID, fake.Start)).To(Equal(1))
	})

	It("of many at once ends with as many processes as the specs want", func(ctx context.Context) {
		const many = 40
		instances := make([]*v1alpha1.Instance, many)
		for i := range instances {
			instances[i] = newInstance(namespace, fmt.Sprintf("many-%d", i), "claude")
			Expect(k8s.Create(ctx, instances[i])).To(Succeed())
		}
		for i, instance := range instances {
			switch i % 4 {
			case 0:
				change(ctx, instance, func() { instance.Spec.State = v1alpha1.StateStopped })
			case 1:
				change(ctx, instance, func() { instance.Spec.RestartToken = "now" })
			case 2:
				Expect(k8s.Delete(ctx, instance)).To(Succeed())
			}
		}
		for i, instance := range instances {
			switch i % 4 {
			case 0:
				stalls(ctx, instance, v1alpha1.ReasonStopped)
				Eventually(live(instance)).Should(BeEmpty())
			case 2:
				isGone(ctx, instance)
			default:
				becomesReady(ctx, instance)
				Expect(live(instance)()).To(HaveLen(1))
			}
		}
	})
})
