// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// inSession sets the runtime of an Instance to a tmux session.
func inSession(instance *v1alpha1.Instance, session string) *v1alpha1.Instance {
	instance.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: session}}
	return instance
}

var _ = Describe("an Instance in tmux", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	It("runs only in tmux", func(ctx context.Context) {
		instance := inSession(newInstance(namespace, "claude", "claude"), namespace)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		Expect(tmux.Count(instance.UID, fake.Start)).To(Equal(1))
		Expect(rt.Count(instance.UID, fake.Start)).To(BeZero())
		Expect(instance.Status.AttachCommand).To(Equal("tmux -L berth attach-session -t '=" + namespace + "'"))
		waitForConditionAbsent(ctx, instance, v1alpha1.ConditionAdopted)
		process, _ := tmux.Process(instance.UID)
		Expect(process.Config).To(MatchJSON(`{"socket": "berth", "session": "` + namespace + `", "adopt": "Never"}`))
		Expect(process.Env).To(ContainElement("SESSION_ID=" + instance.Status.SessionID))
		expectNoWrites(ctx, instance)
		Expect(k8s.Delete(ctx, instance)).To(Succeed())
		waitUntilGone(ctx, instance)
		Expect(tmux.Live(instance.UID)).To(BeEmpty())
	})

	It("does not share its session with another Instance", func(ctx context.Context) {
		first, second := inSession(newInstance(namespace, "first", "claude"), namespace), inSession(newInstance(namespace, "second", "claude"), namespace)
		Expect(k8s.Create(ctx, first)).To(Succeed())
		waitForReady(ctx, first)
		Expect(k8s.Create(ctx, second)).To(Succeed())
		Expect(waitForStalled(ctx, second, v1alpha1.ReasonSessionClaimed)).To(ContainSubstring("belongs to Instance " + namespace + "/first"))
		waitForCondition(ctx, second, v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonSessionClaimed)
		Expect(tmux.Count(second.UID, fake.Start)).To(BeZero())

		Expect(k8s.Delete(ctx, first)).To(Succeed())
		waitForReady(ctx, second)
		Expect(tmux.Count(second.UID, fake.Start)).To(Equal(1))
	})

	It("leaves an adopted session running when it is deleted", func(ctx context.Context) {
		tmux.Found(namespace)
		instance := inSession(newInstance(namespace, "claude", "claude"), namespace)
		instance.Spec.Adoption = v1alpha1.AdoptionIfExists
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		waitForCondition(ctx, instance, v1alpha1.ConditionAdopted, metav1.ConditionTrue, v1alpha1.ReasonAdopted)
		expectNoWrites(ctx, instance)

		Expect(k8s.Delete(ctx, instance, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		waitUntilGone(ctx, instance)
		Expect(tmux.There(namespace)).To(BeTrue())
		Expect(tmux.Count(instance.UID, fake.Stop)).To(BeZero())
		Expect(tmux.Count(instance.UID, fake.Kill)).To(BeZero())
	})

	It("ends an adopted session if its deletion policy requests it", func(ctx context.Context) {
		tmux.Found(namespace)
		instance := inSession(newInstance(namespace, "claude", "claude"), namespace)
		instance.Spec.Adoption, instance.Spec.DeletionPolicy = v1alpha1.AdoptionIfExists, v1alpha1.DeletionTerminate
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		Expect(k8s.Delete(ctx, instance)).To(Succeed())
		waitUntilGone(ctx, instance)
		Expect(tmux.Count(instance.UID, fake.Stop)).To(Equal(1))
		Expect(tmux.There(namespace)).To(BeFalse())
	})

	It("is interrupted once for each request", func(ctx context.Context) {
		instance := inSession(newInstance(namespace, "claude", "claude"), namespace)
		instance.Spec.InterruptToken = "before it runs"
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		Expect(tmux.Typed(instance.UID)).To(BeEmpty(), "no process was running when the interrupt was requested")

		update(ctx, instance, func() { instance.Spec.InterruptToken = "1" })
		Eventually(tmux.Typed).WithArguments(instance.UID).Should(Equal("\x03"))
		expectNoWrites(ctx, instance)
		stopManager()
		stopManager = startManager()
		update(ctx, instance, func() { instance.Spec.InterruptToken = "2" })
		Eventually(tmux.Typed).WithArguments(instance.UID).Should(Equal("\x03\x03"))
		expectNoWrites(ctx, instance)
		Expect(tmux.Typed(instance.UID)).To(Equal("\x03\x03"))
		for _, token := range []string{"", "2"} { // removed by the owner of the spec, and set once more
			update(ctx, instance, func() { instance.Spec.InterruptToken = token })
			waitForReady(ctx, instance)
			expectNoWrites(ctx, instance)
			Expect(tmux.Typed(instance.UID)).To(Equal("\x03\x03"))
		}
		Expect(instance.Status.Incarnation).To(BeEquivalentTo(1))
	})
})
