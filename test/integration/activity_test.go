// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// waitUntilIdle waits until an Instance is asleep: the condition Ready has the reason Idle, and the Instance has no process.
func waitUntilIdle(ctx context.Context, instance *v1alpha1.Instance) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(instance), instance)).To(Succeed())
		ready := meta.FindStatusCondition(instance.Status.Conditions, v1alpha1.ConditionReady)
		g.Expect(ready).NotTo(BeNil())
		g.Expect(ready.Reason).To(Equal(v1alpha1.ReasonIdle))
		g.Expect(instance.Status.Process).To(BeNil())
	}).Should(Succeed())
}

var _ = Describe("an unused Instance", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	It("sleeps, keeps its session, and wakes when it is used", func(ctx context.Context) {
		instance := inSession(newInstance(namespace, "claude", "claude"), namespace)
		instance.Spec.IdleTimeoutSeconds, instance.Spec.TTLSecondsAfterStopped = ptr.To[int32](1), ptr.To[int32](0)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitUntilIdle(ctx, instance)
		Expect(tmux.Live(instance.UID)).To(BeEmpty())
		Expect(instance.Status.LastExit.Reason).To(Equal(v1alpha1.ReasonStopped), "going to sleep is not a failure")
		waitForCondition(ctx, instance, v1alpha1.ConditionIdle, metav1.ConditionTrue, v1alpha1.ReasonNoActivity)
		waitForConditionAbsent(ctx, instance, v1alpha1.ConditionAwaitingInput)
		Expect(instance.Status.SessionID).NotTo(BeEmpty())
		expectNoWrites(ctx, instance)

		rival := inSession(newInstance(namespace, "rival", "claude"), namespace)
		Expect(k8s.Create(ctx, rival)).To(Succeed())
		Expect(waitForStalled(ctx, rival, v1alpha1.ReasonSessionClaimed)).To(ContainSubstring("belongs to Instance "+namespace+"/claude"), "the sleeping Instance keeps its session")

		leave := activityTracker.Use(instance.UID)
		DeferCleanup(leave)
		Eventually(ctx, func() []int64 { return tmux.Live(instance.UID) }).Should(Equal([]int64{2}), "using its terminal wakes it")
		Consistently(ctx, func() []int64 { return tmux.Live(instance.UID) }).Should(Equal([]int64{2}), "it stays awake while its terminal is in use")
		leave()
		waitUntilIdle(ctx, instance)

		wake := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"idleTimeoutSeconds": 0}}`))
		Expect(k8s.Patch(ctx, instance, wake)).To(Succeed())
		waitForReady(ctx, instance)
		Eventually(ctx, func() []int64 { return tmux.Live(instance.UID) }).Should(HaveLen(1), "an edit of the spec wakes it")
		waitForConditionAbsent(ctx, instance, v1alpha1.ConditionIdle)
	})

	It("does not wake after it was stopped in its sleep", func(ctx context.Context) {
		instance := inSession(newInstance(namespace, "claude", "claude"), namespace)
		instance.Spec.IdleTimeoutSeconds = ptr.To[int32](1)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitUntilIdle(ctx, instance)
		Expect(activityTracker.Resting(instance.UID)).To(BeTrue())
		update(ctx, instance, func() { instance.Spec.State = v1alpha1.StateStopped })
		waitForCondition(ctx, instance, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonStopped)
		waitForConditionAbsent(ctx, instance, v1alpha1.ConditionIdle)
		Eventually(ctx, func() bool { return activityTracker.Resting(instance.UID) }).Should(BeFalse(), "clients wait for a start that does not happen")
		leave := activityTracker.Use(instance.UID)
		DeferCleanup(leave)
		expectNoWrites(ctx, instance)
		Expect(tmux.Live(instance.UID)).To(BeEmpty())
	})

	It("reports AwaitingInput when its screen shows a question", func(ctx context.Context) {
		instance := inSession(newInstance(namespace, "claude", "claude"), namespace)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		tmux.Show(instance.UID, "Go on? [y/N] ")
		waitForCondition(ctx, instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput)
		tmux.Show(instance.UID, "Go on? [y/N] y\nremoved 12 files")
		waitForConditionAbsent(ctx, instance, v1alpha1.ConditionAwaitingInput)
	})

	It("rejects patterns that are too large, and is deleted immediately", func(ctx context.Context) {
		instance := inSession(newInstance(namespace, "claude", "claude"), namespace)
		attack := `(?s)(?:` + strings.Repeat(`.?`, 119) + `){1000}\x00`
		instance.Spec.Terminal.AwaitingInput.Patterns = slices.Repeat([]string{attack}, 16)
		instance.Spec.Terminal.Columns = ptr.To[int32](1000)
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		tmux.Show(instance.UID, strings.Repeat(strings.Repeat("x", 1000)+"\n", 20))
		condition := waitForCondition(ctx, instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionUnknown, v1alpha1.ReasonInvalidPattern)
		Expect(condition.Message).To(ContainSubstring("patterns[0]"))
		expectNoWrites(ctx, instance)
		Expect(k8s.Delete(ctx, instance)).To(Succeed())
		Eventually(ctx, func() bool {
			return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(instance), instance))
		}).Should(BeTrue())
	})
})
