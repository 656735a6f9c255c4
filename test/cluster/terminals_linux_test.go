// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// addTerminalSpecs adds the specs that check how a manager observes terminals in Pods.
func addTerminalSpecs() {
	It("detects a question of an Instance in a Pod, and interrupts the Instance", func(ctx context.Context) {
		s := newSession(ctx, "asks", nil, "ask")
		s.waitForCondition(ctx, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput)
		before := s.object.Status.LastActivityTime
		Expect(before).NotTo(BeNil())

		s.patchSpec(ctx, `{"interruptToken":"1"}`)
		Eventually(ctx, s.logs).Should(ContainSubstring("interrupted"))
		s.waitForCondition(ctx, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput)
		Expect(s.object.Status.ObservedInterruptToken).To(Equal("1"))
		Expect(s.object.Status.Incarnation).To(BeEquivalentTo(1), "the program keeps running")

		mustRun(ctx, "berth", "send", "-n", s.object.Namespace, "instance/asks", "y")
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(s.get(ctx)).To(Succeed())
			g.Expect(s.object.Status.Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.ConditionAwaitingInput)))
		}).Should(Succeed())
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(s.get(ctx)).To(Succeed())
			g.Expect(s.object.Status.LastActivityTime.Time).To(BeTemporally(">", before.Time))
		}).Should(Succeed())
		s.delete(ctx)
	}, SpecTimeout(2*timeout))

	addLeaderKillSpecs()

	It("puts an unused Instance in a Pod to sleep, and berth send wakes it", func(ctx context.Context) {
		s := newSession(ctx, "sleeps", ptr.To[int32](15), "terminal")
		s.waitForCondition(ctx, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIdle)
		s.waitForCondition(ctx, v1alpha1.ConditionIdle, metav1.ConditionTrue, v1alpha1.ReasonNoActivity)
		Eventually(ctx, func(ctx context.Context) (int, error) {
			pods, err := clientset.CoreV1().Pods(s.object.Namespace).List(ctx, metav1.ListOptions{LabelSelector: pod.LabelUID + "=" + string(s.object.UID)})
			return len(pods.Items), err
		}).Should(BeZero(), "Pods of an Instance that is asleep")
		mustRun(ctx, "berth", "send", "-n", s.object.Namespace, "instance/sleeps", "good morning")
		Eventually(ctx, s.logs).Should(ContainSubstring("got <good morning>"))
		Expect(s.get(ctx)).To(Succeed())
		Expect(s.object.Status.Incarnation).To(BeEquivalentTo(2))
		s.delete(ctx)
	}, SpecTimeout(2*timeout))
}

// addLeaderKillSpecs adds a spec that kills a process of the cluster of `make cluster`. The spec is skipped on another cluster.
func addLeaderKillSpecs() {
	if !isTestCluster() {
		GinkgoWriter.Println("skip the spec that kills the leader while a terminal waits for input: BERTH_CLUSTER does not name a cluster of `make cluster`")
		return
	}
	It("keeps AwaitingInput when its leader is killed", func(ctx context.Context) {
		s := newSession(ctx, "stays", nil, "ask")
		s.waitForCondition(ctx, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput)
		was := meta.FindStatusCondition(s.object.Status.Conditions, v1alpha1.ConditionAwaitingInput).LastTransitionTime
		before := leaseHolder(ctx)
		killContainer(waitForLeader(ctx), "manager")
		Eventually(ctx, leaseHolder).ShouldNot(Equal(before))
		// The next leader first checks every object, and knows the screen of this Instance only from its log.
		Consistently(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(s.get(ctx)).To(Succeed())
			now := meta.FindStatusCondition(s.object.Status.Conditions, v1alpha1.ConditionAwaitingInput)
			g.Expect(now.Status).To(Equal(metav1.ConditionTrue))
			g.Expect(now.LastTransitionTime.Equal(&was)).To(BeTrue(), "the condition did not change in between")
		}).WithTimeout(10 * time.Second).Should(Succeed())
		waitForRollout(ctx)
		s.patchSpec(ctx, `{"interruptToken":"1"}`)
		Eventually(ctx, s.logs).Should(ContainSubstring("interrupted"))
		s.waitForCondition(ctx, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput)
		s.delete(ctx)
	}, SpecTimeout(3*timeout))
}

// session is an Instance in a Pod in a separate namespace.
type session struct{ object *v1alpha1.Instance }

// newSession creates an Instance that runs a mode of the workload.
func newSession(ctx context.Context, name string, idle *int32, mode string) session {
	GinkgoHelper()
	o := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOfSpec(ctx), Name: name}}
	o.Spec.Process.Command = []string{"/workload", mode}
	o.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](2)
	o.Spec.IdleTimeoutSeconds = idle
	o.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{Image: "localhost/berth/workload:test", ImagePullPolicy: v1alpha1.PullNever}}
	Expect(k8s.Create(ctx, o)).To(Succeed())
	return session{o}
}

func (s session) get(ctx context.Context) error {
	return k8s.Get(ctx, client.ObjectKeyFromObject(s.object), s.object)
}

// logs returns the log of the Pod.
func (s session) logs(ctx context.Context) (string, error) {
	return run(ctx, "berth", "logs", "-n", s.object.Namespace, "instance/"+s.object.Name)
}

// waitForCondition waits until a condition has the status and the reason for the current generation.
func (s session) waitForCondition(ctx context.Context, condition string, status metav1.ConditionStatus, reason string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(s.get(ctx)).To(Succeed())
		g.Expect(s.object.Status.ObservedGeneration).To(Equal(s.object.Generation))
		found := meta.FindStatusCondition(s.object.Status.Conditions, condition)
		g.Expect(found).To(HaveValue(And(HaveField("Status", status), HaveField("Reason", reason))), "%+v", s.object.Status.Conditions)
	}).Should(Succeed())
}

// patchSpec patches the spec.
func (s session) patchSpec(ctx context.Context, spec string) {
	GinkgoHelper()
	Expect(k8s.Patch(ctx, s.object, client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`)))).To(Succeed())
}

// delete deletes the Instance.
func (s session) delete(ctx context.Context) {
	GinkgoHelper()
	Expect(k8s.Delete(ctx, s.object)).To(Succeed())
	waitUntilGone(ctx, s.object)
}
