// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = Describe("the result of a StrategyRun in a Pod", func() {
	var (
		namespace string
		testNode  *node
	)
	BeforeEach(func(ctx context.Context) {
		testNode = newNode()
		namespace = newNamespace(ctx)
		DeferCleanup(func(ctx context.Context) { // delete the plans before newNamespace's cleanup deletes the runs: plans create new runs
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.Plan{}, client.InNamespace(namespace))).To(Succeed())
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.Action{}, client.InNamespace(namespace))).To(Succeed())
		})
		for _, name := range []string{"search", "publish"} {
			strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			strategy.Spec.Process.Command = []string{name}
			strategy.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: podImage()}
			Expect(k8s.Create(ctx, strategy)).To(Succeed())
		}
	})
	// runWithResult marks the Pod of a run as running, and sets the result that the program of the run will leave.
	runWithResult := func(ctx context.Context, run *v1alpha1.StrategyRun, text string) *corev1.Pod {
		GinkgoHelper()
		p := waitForPod(ctx, run, "1")
		before := p.DeepCopy()
		p.Annotations[terminationMessage] = text
		Expect(k8s.Patch(ctx, p, client.MergeFrom(before))).To(Succeed())
		testNode.run(ctx, p, "127.0.0.1")
		return p
	}
	sum := func(text string) string {
		hash := sha256.Sum256([]byte(text))
		return hex.EncodeToString(hash[:])
	}

	DescribeTable("is written together with the outcome, without paths that exist only in the Pod", func(ctx context.Context, end func(context.Context, *corev1.Pod), want v1alpha1.RunOutcome) {
		run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-search"}}
		run.Spec.StrategyRef.Name = "search"
		seen := follow(ctx, run, &v1alpha1.StrategyRunList{})
		Expect(k8s.Create(ctx, run)).To(Succeed())
		p := runWithResult(ctx, run, "3 hits.\n")
		Eventually(func(g Gomega) {
			get(ctx, g, run)
			g.Expect(run.Status.Process).NotTo(BeNil())
		}).Should(Succeed())
		end(ctx, p)
		Eventually(func(g Gomega) {
			get(ctx, g, run)
			g.Expect(run.Status.Outcome).To(Equal(want))
		}).Should(Succeed())
		Expect(run.Status.Result).To(Equal(&v1alpha1.RunResult{Summary: "3 hits.", Size: 8, SHA256: sum("3 hits.\n")}))
		seen.stop()
		for _, object := range seen.states {
			state := object.(*v1alpha1.StrategyRun)
			Expect(state.Status.Result != nil).To(Equal(state.Status.Outcome != ""), "result and outcome are one write")
		}
		Expect(k8s.Delete(ctx, run)).To(Succeed())
		waitUntilGone(ctx, run)
		waitForNoPod(ctx, run)
	},
		Entry("when it succeeds", func(ctx context.Context, p *corev1.Pod) { testNode.end(ctx, p, 0) }, v1alpha1.OutcomeSucceeded),
		Entry("when it fails", func(ctx context.Context, p *corev1.Pod) { testNode.end(ctx, p, 3) }, v1alpha1.OutcomeFailed),
		Entry("when the Pod is deleted", func(ctx context.Context, p *corev1.Pod) { Expect(k8s.Delete(ctx, p)).To(Succeed()) }, v1alpha1.OutcomeFailed),
		Entry("when it succeeds while its Pod is deleted", func(ctx context.Context, p *corev1.Pod) {
			updatePodStatus(ctx, p, func() {
				setTerminated(p, 0)
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"})
			})
		}, v1alpha1.OutcomeFailed),
		Entry("when the Pod is deleted by force", func(ctx context.Context, p *corev1.Pod) {
			Expect(k8s.Delete(ctx, p, client.GracePeriodSeconds(0))).To(Succeed())
		}, v1alpha1.OutcomeFailed),
		Entry("when the node evicts the Pod", func(ctx context.Context, p *corev1.Pod) {
			updatePodStatus(ctx, p, func() {
				setTerminated(p, 137)
				p.Status.Reason, p.Status.Message = "Evicted", "low on memory"
			})
		}, v1alpha1.OutcomeFailed),
		Entry("when it is cancelled", func(ctx context.Context, p *corev1.Pod) {
			run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "of-search"}}
			Expect(k8s.Patch(ctx, run, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"state":"Cancelled"}}`)))).To(Succeed())
		}, v1alpha1.OutcomeCancelled),
	)

	It("is passed to the Pods of later phases, and leaves no Secret", func(ctx context.Context) {
		action := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "release"}}
		action.Spec.Strategize = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "search"}}}
		action.Spec.Apply = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "publish"}}}
		Expect(k8s.Create(ctx, action)).To(Succeed())
		plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "first"}}
		plan.Spec.ActionRef.Name, plan.Spec.TargetPhase = "release", v1alpha1.PhaseApply
		Expect(k8s.Create(ctx, plan)).To(Succeed())
		runOfPhase := func(phase string) *v1alpha1.StrategyRun {
			GinkgoHelper()
			run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%.8s-1-%s-0", plan.Name, plan.UID, phase)}}
			Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(run), run) }).Should(Succeed())
			return run
		}
		haveEnv := func(name, value string) OmegaMatcher {
			return WithTransform(func(p *corev1.Pod) []corev1.EnvVar { return p.Spec.Containers[0].Env }, ContainElement(corev1.EnvVar{Name: name, Value: value}))
		}
		results := haveEnv("BERTH_RESULTS_STRATEGIZE", "/berth/inputs/strategize.jsonl")
		p := runWithResult(ctx, runOfPhase("strategize"), "3 hits.")
		Expect(p).To(And(haveEnv("BERTH_RESULT_FILE", "/dev/termination-log"), Not(results)))
		testNode.end(ctx, p, 0)

		p = runWithResult(ctx, runOfPhase("apply"), "published")
		Expect(p).To(results)
		inputs := &corev1.Secret{}
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: p.Name + "-inputs"}, inputs)).To(Succeed())
		Expect(string(inputs.Data["strategize.jsonl"])).To(ContainSubstring(`"result":{"summary":"3 hits.","size":7,"sha256":"` + sum("3 hits.") + `"}`))
		testNode.end(ctx, p, 0)
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			g.Expect(plan.Status.State).To(Equal(v1alpha1.PlanApplied))
		}).Should(Succeed())
		Expect(plan.Status.Results).To(HaveExactElements(
			HaveField("Result", HaveValue(Equal(v1alpha1.RunResult{Summary: "3 hits.", Size: 7, SHA256: sum("3 hits.")}))),
			HaveField("Result", HaveValue(Equal(v1alpha1.RunResult{Summary: "published", Size: 9, SHA256: sum("published")})))))

		// No garbage collector runs in these tests, so delete the runs explicitly. Berth itself must delete the Secrets that it created for the runs.
		Expect(k8s.Delete(ctx, plan)).To(Succeed())
		Expect(k8s.DeleteAllOf(ctx, &v1alpha1.StrategyRun{}, client.InNamespace(namespace))).To(Succeed())
		Eventually(func(g Gomega) {
			left := &corev1.SecretList{}
			g.Expect(k8s.List(ctx, left, client.InNamespace(namespace))).To(Succeed())
			g.Expect(left.Items).To(BeEmpty())
		}).Should(Succeed())
	})
})
