// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// podImage returns a PodRuntime whose image is never pulled, because no kubelet runs in these tests.
func podImage(change ...func(*v1alpha1.PodRuntime)) *v1alpha1.PodRuntime {
	p := &v1alpha1.PodRuntime{Image: "localhost/program:1"}
	for _, do := range change {
		do(p)
	}
	return p
}

func devServerInPod(namespace, name string) *v1alpha1.DevServer {
	dev := newServer(namespace, name)
	dev.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: podImage()}
	return dev
}

var _ = Describe("an object in a Pod", func() {
	var (
		namespace string
		testNode  *node
	)
	BeforeEach(func(ctx context.Context) {
		testNode = newNode()
		namespace = newNamespace(ctx)
	})

	It("reports why it waits, and can be stopped and deleted before it ever ran", func(ctx context.Context) {
		dev := devServerInPod(namespace, "web")
		dev.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "TOKEN", Value: "hidden"}}
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		p := waitForPod(ctx, dev, "1")
		Expect(p.OwnerReferences).To(HaveLen(1))
		Expect(metav1.IsControlledBy(p, dev)).To(BeTrue())
		main := p.Spec.Containers[0]
		Expect(main.Image).To(Equal("localhost/program:1"))
		Expect(main.Command).To(Equal([]string{"serve", "--port", "8080"}))
		Expect(*p.Spec.AutomountServiceAccountToken).To(BeFalse())
		Expect(rt.Known()).NotTo(ContainElement(dev.UID), "it does not run on the host")
		secret := &corev1.Secret{ObjectMeta: p.ObjectMeta}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(p), secret)).To(Succeed())
		Expect(secret.Data).To(Equal(map[string][]byte{"TOKEN": []byte("hidden")}))
		Expect(main.Env).To(ContainElement(corev1.EnvVar{Name: "PORT", Value: "8080"}), "the port is not a secret")

		waitForCondition(ctx, dev, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonStarting)
		updatePodStatus(ctx, p, func() {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/0 nodes"}}
		})
		Eventually(func(g Gomega) {
			get(ctx, g, dev)
			condition := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionReady)
			g.Expect(condition.Reason).To(Equal(v1alpha1.ReasonStarting))
			g.Expect(condition.Message).To(ContainSubstring("the Pod is not scheduled yet: Unschedulable: 0/0 nodes"))
		}).Should(Succeed())

		update(ctx, dev, func() { dev.Spec.State = v1alpha1.StateStopped })
		waitForNoPod(ctx, dev)
		waitForReadyWithoutProcess(ctx, dev, v1alpha1.ReasonStopped)
		Expect(apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(p), secret))).To(BeTrue(), "the Secret with its environment is deleted too")
		update(ctx, dev, func() { dev.Spec.State = v1alpha1.StateRunning })
		waitForPod(ctx, dev, "2")
		Expect(k8s.Delete(ctx, dev)).To(Succeed())
		waitUntilGone(ctx, dev)
		waitForNoPod(ctx, dev)
	})

	// The test changes the annotation of a Pod instead of creating the Pod before its manager does.
	It("is replaced if its Pod was created with an older spec", func(ctx context.Context) {
		dev := onPort(devServerInPod(namespace, "web"), serve(0))
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		p := waitForPod(ctx, dev, "1")
		testNode.run(ctx, p, "127.0.0.1")
		waitForReady(ctx, dev)
		Expect(p.Annotations).To(HaveKeyWithValue("berth.dev/origin", fmt.Sprintf(`{"specHash":%q}`, dev.Status.SpecHash)))
		annotate := func(value any) {
			change, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"berth.dev/origin": value}}})
			Expect(err).NotTo(HaveOccurred())
			Expect(k8s.Patch(ctx, p, client.RawPatch(types.MergePatchType, change))).To(Succeed())
		}
		annotate(nil)
		Consistently(func(g Gomega) {
			get(ctx, g, dev)
			g.Expect(dev.Status.Incarnation).To(BeEquivalentTo(1), "a Pod without the annotation keeps running")
		}).WithTimeout(time.Second).Should(Succeed())
		annotate(`{"specHash":"older"}`)
		testNode.run(ctx, waitForPod(ctx, dev, "2"), "127.0.0.1")
		waitForReady(ctx, dev)
		Expect(dev.Status.Incarnation).To(BeEquivalentTo(2))
		Expect(dev.Status.Failures).To(BeZero())
		Expect(k8s.Delete(ctx, dev)).To(Succeed())
		waitUntilGone(ctx, dev)
	})

	It("keeps the URL of a DevServer across restarts", func(ctx context.Context) {
		port := serve(0)
		dev := onPort(devServerInPod(namespace, "web"), port)
		dev.Spec.URL.Path = "/app"
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		first := waitForPod(ctx, dev, "1")
		service := &corev1.Service{}
		Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(dev), service) }).Should(Succeed())
		Expect(metav1.IsControlledBy(service, dev)).To(BeTrue())
		Expect(service.Spec.Ports).To(HaveLen(1))
		Expect(service.Spec.Ports[0].Port).To(Equal(port))
		for name, value := range service.Spec.Selector {
			Expect(first.Labels).To(HaveKeyWithValue(name, value))
		}

		testNode.run(ctx, first, "127.0.0.1")
		waitForReady(ctx, dev)
		address := fmt.Sprintf("http://web.%s.svc:%d/app", namespace, port)
		Expect(dev.Status.URL).To(Equal(address))
		Expect(dev.Status.Process.PodName).To(Equal(first.Name))
		Expect(dev.Status.Process.Node).To(Equal("moon"))
		waitForConditionAbsent(ctx, dev, v1alpha1.ConditionPortVerified)

		update(ctx, dev, func() { dev.Spec.RestartToken = "again" })
		second := waitForPod(ctx, dev, "2")
		get(ctx, Default, dev)
		Expect(dev.Status.URL).To(Equal(address), "the URL remains during a restart")
		testNode.run(ctx, second, "127.0.0.1")
		waitForReady(ctx, dev)
		Expect(dev.Status.URL).To(Equal(address))

		version, uid := service.ResourceVersion, service.UID
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(dev), service)).To(Succeed())
		Expect(service.ResourceVersion).To(Equal(version), "the Service was not written again")
		Expect(k8s.Delete(ctx, service)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(dev), service)).To(Succeed())
			g.Expect(service.UID).NotTo(Equal(uid), "a deleted Service is created again")
		}).Should(Succeed())
		Expect(k8s.Delete(ctx, dev)).To(Succeed())
		waitUntilGone(ctx, dev)
		waitForNoPod(ctx, dev)
	})

	It("does not take over a Service of another owner", func(ctx context.Context) {
		theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		Expect(k8s.Create(ctx, theirs)).To(Succeed())
		dev := devServerInPod(namespace, "web")
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		Expect(waitForStalled(ctx, dev, v1alpha1.ReasonNameTaken)).To(ContainSubstring("Service web already exists"))
		waitForCondition(ctx, dev, v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonNameTaken)
		waitForNoPod(ctx, dev)
		Expect(k8s.Delete(ctx, theirs)).To(Succeed())
		waitForPod(ctx, dev, "1")
	})

	It("reports what the cluster does not allow, and continues once it is allowed", func(ctx context.Context) {
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}}
		limit := func(resources ...corev1.ResourceName) { // also writes the status, because no quota controller runs in these tests
			none := corev1.ResourceList{}
			for _, name := range resources {
				none[name] = resource.MustParse("0")
			}
			quota.Spec.Hard = none
			Expect(k8s.Update(ctx, quota)).To(Succeed())
			quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
			Expect(k8s.Status().Update(ctx, quota)).To(Succeed())
		}
		Expect(k8s.Create(ctx, quota)).To(Succeed())
		limit(corev1.ResourceServices, corev1.ResourcePods)
		dev := devServerInPod(namespace, "web")
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		Expect(waitForStalled(ctx, dev, v1alpha1.ReasonStartFailed)).To(ContainSubstring("exceeded quota"))
		waitForNoPod(ctx, dev)

		limit(corev1.ResourcePods)
		update(ctx, dev, func() { dev.Spec.RestartToken = "now" })
		Eventually(func(g Gomega) {
			get(ctx, g, dev)
			condition := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionReconciling)
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue))
			g.Expect(condition.Message).To(And(HavePrefix("The start of incarnation 1 failed and is retried:"), ContainSubstring("exceeded quota")))
		}).Should(Succeed())
		Expect(k8s.Delete(ctx, quota)).To(Succeed())
		waitForPod(ctx, dev, "1")
		Eventually(func(g Gomega) {
			get(ctx, g, dev)
			g.Expect(meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionReconciling).Message).NotTo(ContainSubstring("quota"))
		}).Should(Succeed())
		Expect(k8s.Delete(ctx, dev)).To(Succeed())
		waitUntilGone(ctx, dev)
		waitForNoPod(ctx, dev)
	})

	It("is started again when its Pod is deleted or its program exits", func(ctx context.Context) {
		dev := onPort(devServerInPod(namespace, "web"), serve(0))
		dev.Spec.RestartPolicy = v1alpha1.RestartOnFailure
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		first := waitForPod(ctx, dev, "1")
		testNode.run(ctx, first, "127.0.0.1")
		waitForReady(ctx, dev)
		updatePodStatus(ctx, first, func() {
			setTerminated(first, 0)
			first.Status.Conditions = append(first.Status.Conditions, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"})
		})
		second := waitForPod(ctx, dev, "2")
		get(ctx, Default, dev)
		Expect(dev.Status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonLost), HaveField("Message", ContainSubstring("Eviction API: evicting")))))
		Expect(dev.Status.Breaker.FailureTimes).To(BeEmpty(), "an eviction does not count as a failure")

		testNode.run(ctx, second, "127.0.0.1")
		waitForReady(ctx, dev)
		updatePodStatus(ctx, second, func() {
			setTerminated(second, 137)
			second.Status.ContainerStatuses[0].State.Terminated.Reason = "OOMKilled"
		})
		waitForPod(ctx, dev, "3")
		get(ctx, Default, dev)
		Expect(dev.Status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonFailed), HaveField("ExitCode", HaveValue(BeEquivalentTo(137))),
			HaveField("Message", "the container exceeded its memory limit"))))
		Expect(k8s.Delete(ctx, dev)).To(Succeed())
		waitUntilGone(ctx, dev)
	})

	It("keeps the volume of an Instance when the image changes", func(ctx context.Context) {
		agent := newInstance(namespace, "agent", "agent")
		claim := v1alpha1.PodClaim{Name: "home", MountPath: "/home/agent", Spec: apiruntime.RawExtension{
			Raw: []byte(`{"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}`)}}
		agent.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: podImage(func(p *v1alpha1.PodRuntime) {
			p.VolumeClaimTemplates = []v1alpha1.PodClaim{claim}
			p.Volumes = []apiruntime.RawExtension{{Raw: []byte(`{"name": "tmp", "emptyDirr": {}}`)}}
		})}
		Expect(k8s.Create(ctx, agent)).To(Succeed())
		Expect(waitForStalled(ctx, agent, v1alpha1.ReasonStartFailed)).To(Equal(`spec.runtime.pod.volumes[0]: unknown field "emptyDirr". Correct it.`))
		update(ctx, agent, func() { agent.Spec.Runtime.Pod.Volumes = nil })

		first := waitForPod(ctx, agent, "1")
		Expect(first.Spec.Containers[0].TTY).To(BeTrue())
		Expect(first.Spec.Volumes).To(HaveLen(1))
		key := client.ObjectKey{Namespace: namespace, Name: first.Spec.Volumes[0].PersistentVolumeClaim.ClaimName}
		volume := &corev1.PersistentVolumeClaim{}
		Expect(k8s.Get(ctx, key, volume)).To(Succeed())
		Expect(metav1.IsControlledBy(volume, agent)).To(BeTrue())
		testNode.run(ctx, first, "127.0.0.1")
		waitForReady(ctx, agent)
		Expect(agent.Status.AttachCommand).To(Equal("kubectl attach -it -n " + namespace + " pod/" + first.Name + " -c main"))
		version := agent.ResourceVersion
		updatePodStatus(ctx, first, func() { first.Status.Message = "something happened" })
		Consistently(func(g Gomega) {
			get(ctx, g, agent)
			g.Expect(agent.ResourceVersion).To(Equal(version), "an object at rest is not written")
		}).Should(Succeed())

		update(ctx, agent, func() { agent.Spec.Runtime.Pod.Image = "localhost/program:2" })
		second := waitForPod(ctx, agent, "2")
		Expect(second.Spec.Containers[0].Image).To(Equal("localhost/program:2"))
		Expect(second.Spec.Volumes[0].PersistentVolumeClaim.ClaimName).To(Equal(key.Name))
		uid := volume.UID
		Expect(k8s.Get(ctx, key, volume)).To(Succeed())
		Expect(volume.UID).To(Equal(uid))
		Expect(k8s.Delete(ctx, agent)).To(Succeed())
		waitUntilGone(ctx, agent)
	})

	It("resumes the session of an Instance in its next Pod, and falls back if that fails at once", func(ctx context.Context) {
		agent := newAgent(namespace, "agent")
		agent.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: podImage()}
		Expect(k8s.Create(ctx, agent)).To(Succeed())
		id := string(agent.UID)
		first := waitForPod(ctx, agent, "1")
		Expect(first.Spec.Containers[0].Command).To(Equal([]string{"agent", "--session-id", id}))
		Expect(first.Spec.Containers[0].Env).To(ContainElement(corev1.EnvVar{Name: "BERTH_RESUMED", Value: "false"}))
		testNode.run(ctx, first, "127.0.0.1")
		waitForReady(ctx, agent)
		update(ctx, agent, func() { agent.Spec.RestartToken = "again" })
		second := waitForPod(ctx, agent, "2")
		Expect(second.Spec.Containers[0].Command).To(Equal([]string{"agent", "--resume", id, "--start=2"}))
		Expect(second.Spec.Containers[0].Env).To(ContainElement(corev1.EnvVar{Name: "BERTH_RESUMED", Value: "true"}))
		testNode.run(ctx, second, "127.0.0.1")
		waitForReady(ctx, agent)
		testNode.end(ctx, second, 1)
		third := waitForPod(ctx, agent, "3")
		Expect(third.Spec.Containers[0].Command).To(Equal([]string{"agent", "--session-id", id}))
		get(ctx, Default, agent)
		Expect(agent.Status.Resume.Start).To(Equal(v1alpha1.SessionFallback))
		Expect(k8s.Delete(ctx, agent)).To(Succeed())
		waitUntilGone(ctx, agent)
	})

	It("records the exit of its Pod as the outcome of a StrategyRun", func(ctx context.Context) {
		strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lint"}}
		strategy.Spec.Process.Command = []string{"lint", "$(ARG_DIR)"}
		strategy.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: podImage()}
		Expect(k8s.Create(ctx, strategy)).To(Succeed())
		for name, code := range map[string]int32{"good": 0, "bad": 3} {
			run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			run.Spec.StrategyRef.Name = strategy.Name
			run.Spec.Arguments = []v1alpha1.RunArgument{{Name: "dir", Value: "/srv/$(HOME)"}}
			Expect(k8s.Create(ctx, run)).To(Succeed())
			p := waitForPod(ctx, run, "1")
			Expect(p.Spec.Containers[0].Command).To(Equal([]string{"lint", "/srv/$$(HOME)"}), "nothing is expanded twice")
			testNode.run(ctx, p, "127.0.0.1")
			testNode.end(ctx, p, code)
			want := map[int32]v1alpha1.RunOutcome{0: v1alpha1.OutcomeSucceeded, 3: v1alpha1.OutcomeFailed}[code]
			Eventually(func(g Gomega) {
				get(ctx, g, run)
				g.Expect(run.Status.Outcome).To(Equal(want))
			}).Should(Succeed())
			Expect(run.Status.LastExit.ExitCode).To(Equal(ptr.To(code)))
			Expect(run.Status.Pinned.Runtime.Pod.Image).To(Equal("localhost/program:1"))
			Expect(run.Status.Result).To(BeNil())
			Expect(k8s.Delete(ctx, run)).To(Succeed())
			waitUntilGone(ctx, run)
			waitForNoPod(ctx, run)
		}
	})
})
