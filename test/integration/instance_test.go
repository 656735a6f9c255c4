// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

var _ = Describe("an Instance", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	It("runs, reports that it runs, and is not written again", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude", "--resume")
		instance.Spec.Session = "pr-1"
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)

		Expect(instance.Finalizers).To(ContainElement(v1alpha1.FinalizerProcess))
		Expect(instance.Labels).To(HaveKeyWithValue(v1alpha1.LabelSession, "pr-1"))
		Expect(instance.Status.AttachCommand).To(Equal("berth attach instance/claude -n " + namespace))
		Expect(instance.Status.Incarnation).To(BeEquivalentTo(1))
		Expect(instance.Status.Process.PID).NotTo(BeZero())
		Expect(instance.Status.Process.Node).To(Equal(fake.Node))
		Expect(instance.Status.ObservedGeneration).To(Equal(instance.Generation))
		Expect(instance.Status.Conditions).To(ConsistOf(HaveField("Type", v1alpha1.ConditionReady), HaveField("Type", v1alpha1.ConditionReconciling),
			HaveField("Type", v1alpha1.ConditionStalled), HaveField("Type", v1alpha1.ConditionRestarting)), "conditions with their usual status and no message are absent")
		process, started := rt.Process(instance.UID)
		Expect(started).To(BeTrue())
		Expect(process.Command).To(Equal([]string{"claude", "--resume"}))
		Expect(process.Terminal).To(Equal(&runtime.Terminal{Columns: 120, Rows: 40}))

		By("emitting an event")
		Eventually(func(g Gomega) {
			var events eventsv1.EventList
			g.Expect(k8s.List(ctx, &events, client.InNamespace(namespace))).To(Succeed())
			g.Expect(events.Items).To(ContainElement(And(
				HaveField("Regarding.UID", uidOf(instance)), HaveField("Reason", v1alpha1.ReasonRunning))))
		}).Should(Succeed())
		expectNoWrites(ctx, instance)
	})

	It("exists throughout a restart, and starts once for each request", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)

		seen := follow(ctx, instance, &v1alpha1.InstanceList{})
		for n, token := range []string{"first", "second"} {
			update(ctx, instance, func() { instance.Spec.RestartToken = token })
			waitForReady(ctx, instance)
			Expect(instance.Status.Incarnation).To(BeEquivalentTo(n + 2))
			Expect(instance.Status.ObservedRestartToken).To(Equal(token))
		}
		expectNoWrites(ctx, instance)
		Eventually(seen.saw).WithArguments(v1alpha1.ConditionReady, int64(3)).Should(BeTrue())
		seen.stop()
		Expect(seen.wasMissing()).To(BeFalse())
		Expect(seen.saw(v1alpha1.ConditionRestarting, 1)).To(BeTrue(), "Restarting is True before the old process stops")
		Expect(instance.Status.RestartCount).To(BeEquivalentTo(2))
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(3))
		Expect(rt.Count(instance.UID, fake.Stop)).To(Equal(2))
		Expect(instance.Status.LastExit.Reason).To(Equal(v1alpha1.ReasonStopped), "a requested stop is not a crash")
	})

	It("takes a removed token for no request, also after a crash", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		update(ctx, instance, func() { instance.Spec.RestartToken = "again" })
		waitForReady(ctx, instance)
		update(ctx, instance, func() { instance.Spec.RestartToken = "" })
		waitForReady(ctx, instance)
		rt.Exit(instance.UID, facts.Exit{Known: true, Code: 1})
		Eventually(func() int { return rt.Count(instance.UID, fake.Start) }).Should(Equal(3))
		waitForReady(ctx, instance)
		stopManager()
		stopManager = startManager()
		for _, token := range []string{"again", ""} {
			update(ctx, instance, func() { instance.Spec.RestartToken = token })
			waitForReady(ctx, instance)
			expectNoWrites(ctx, instance)
		}
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(3))
	})

	It("restarts once for all requests before the new incarnation", func(ctx context.Context) {
		rt.Program("stubborn", fake.Program{IgnoreStop: true})
		instance := newInstance(namespace, "claude", "stubborn")
		instance.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](3600)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		for _, token := range []string{"a", "b", "c"} {
			update(ctx, instance, func() { instance.Spec.RestartToken = token })
			waitForCondition(ctx, instance, v1alpha1.ConditionRestarting, metav1.ConditionTrue, v1alpha1.ReasonRequested)
		}
		Expect(instance.Status.Stopping.Incarnation).To(BeEquivalentTo(1))
		rt.Exit(instance.UID, facts.Exit{Known: true, Signal: "SIGTERM"})
		waitForReady(ctx, instance)
		expectNoWrites(ctx, instance)
		Expect(instance.Status.ObservedRestartToken).To(Equal("c"))
		Expect(rt.Count(instance.UID, fake.Start)).To(Equal(2))
		Expect(rt.Count(instance.UID, fake.Stop)).To(Equal(1), "it is stopped once")
	})

	It("stops and starts with spec.state", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		update(ctx, instance, func() { instance.Spec.State = v1alpha1.StateStopped })
		waitForReadyWithoutProcess(ctx, instance, v1alpha1.ReasonStopped)
		Expect(rt.Live(instance.UID)).To(BeEmpty())
		Expect(instance.Status.Process).To(BeNil())
		expectNoWrites(ctx, instance)
		update(ctx, instance, func() { instance.Spec.State = v1alpha1.StateRunning })
		waitForReady(ctx, instance)
		Expect(rt.Live(instance.UID)).To(Equal([]int64{2}))
	})

	It("does not start when it is created with state Stopped", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		instance.Spec.State = v1alpha1.StateStopped
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReadyWithoutProcess(ctx, instance, v1alpha1.ReasonStopped)
		expectNoWrites(ctx, instance)
		Expect(rt.Count(instance.UID, fake.Start)).To(BeZero())
	})

	It("is started again after a crash", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		instance.Spec.Backoff.InitialSeconds = ptr.To[int32](2)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		rt.Exit(instance.UID, facts.Exit{Known: true, Code: 37})
		waitForCondition(ctx, instance, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonBackOff)
		expectKstatus(instance, status.InProgressStatus)
		Expect(instance.Status.NextRestartTime).NotTo(BeNil())
		Expect(instance.Status.LastExit.ExitCode).To(HaveValue(BeEquivalentTo(37)))
		waitForReady(ctx, instance)
		Expect(instance.Status.Incarnation).To(BeEquivalentTo(2))
		Expect(instance.Status.Failures).To(BeEquivalentTo(1))
	})

	It("is killed after the grace period if it ignores the stop signal", func(ctx context.Context) {
		rt.Program("stubborn", fake.Program{IgnoreStop: true})
		instance := newInstance(namespace, "claude", "stubborn")
		instance.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](1)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		Expect(k8s.Delete(ctx, instance)).To(Succeed())
		waitUntilGone(ctx, instance)
		Expect(rt.Count(instance.UID, fake.Stop)).To(Equal(1))
		Expect(rt.Count(instance.UID, fake.Kill)).To(Equal(1))
	})

	It("gets a new process when it is deleted and created again with the same name", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		Expect(k8s.Delete(ctx, instance)).To(Succeed())
		again := newInstance(namespace, "claude", "claude")
		Eventually(func() error { return k8s.Create(ctx, again) }).Should(Succeed())
		waitForReady(ctx, again)
		isNew := again.UID != instance.UID
		Expect(isNew).To(BeTrue())
		Expect(rt.Known()).To(And(ContainElement(again.UID), Not(ContainElement(instance.UID))))
		Expect(again.Status.Incarnation).To(BeEquivalentTo(1))
	})

	It("is restarted by a new spec, or reports drift until its next restart", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		update(ctx, instance, func() { instance.Spec.Process.Command = []string{"claude", "--new"} })
		waitForReady(ctx, instance)
		Expect(instance.Status.Incarnation).To(BeEquivalentTo(2))

		update(ctx, instance, func() { instance.Spec.UpdatePolicy = v1alpha1.UpdateOnRestart })
		update(ctx, instance, func() { instance.Spec.Process.Command = []string{"claude", "--newer"} })
		waitForCondition(ctx, instance, v1alpha1.ConditionDriftDetected, metav1.ConditionTrue, v1alpha1.ReasonDrifted)
		Expect(instance.Status.Incarnation).To(BeEquivalentTo(2))
		update(ctx, instance, func() { instance.Spec.RestartToken = "now" })
		waitForConditionAbsent(ctx, instance, v1alpha1.ConditionDriftDetected)
		waitForReady(ctx, instance)
		process, _ := rt.Process(instance.UID)
		Expect(process.Command).To(Equal([]string{"claude", "--newer"}))
	})

	It("is deleted after its time to live when it is at rest, and not if it runs again", func(ctx context.Context) {
		rt.Program("short", fake.Program{Exit: &facts.Exit{Known: true}})
		instance := newInstance(namespace, "done", "short")
		instance.Spec.RestartPolicy = v1alpha1.RestartNever
		instance.Spec.TTLSecondsAfterStopped = ptr.To[int32](2)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReadyWithoutProcess(ctx, instance, v1alpha1.ReasonCompleted)
		waitUntilGone(ctx, instance)

		kept := newInstance(namespace, "kept", "claude")
		kept.Spec.TTLSecondsAfterStopped = ptr.To[int32](0)
		Expect(k8s.Create(ctx, kept)).To(Succeed())
		waitForReady(ctx, kept)
		Consistently(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(kept), kept) }).Should(Succeed())
		Expect(kept.DeletionTimestamp).To(BeNil())
	})

	It("reads its environment from Secrets and ConfigMaps, and waits for missing ones", func(ctx context.Context) {
		instance := newInstance(namespace, "claude", "claude", "--port=$(PORT)")
		instance.Spec.Process.Env = []v1alpha1.EnvVar{
			{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: "keys", Key: "token"}}},
			{Name: "PORT", ValueFrom: &v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeyRef{Name: "settings", Key: "port"}}},
		}
		Expect(k8s.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings"}, Data: map[string]string{"port": "8080"},
		})).To(Succeed())
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		message := waitForStalled(ctx, instance, v1alpha1.ReasonInvalidEnvironment)
		Expect(message).To(And(ContainSubstring("TOKEN"), ContainSubstring("Secret keys does not exist in namespace "+namespace)))
		Expect(rt.Count(instance.UID, fake.Start)).To(BeZero())

		Expect(k8s.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keys"}, StringData: map[string]string{"token": "s3cret"},
		})).To(Succeed())
		waitForReady(ctx, instance)
		process, _ := rt.Process(instance.UID)
		Expect(process.Env).To(ContainElements("TOKEN=s3cret", "PORT=8080"))
		Expect(process.Command).To(Equal([]string{"claude", "--port=8080"}))
	})
})
