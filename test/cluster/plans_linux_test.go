// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// addPlanSpecs adds the specs of plans whose runs take place in Pods.
func addPlanSpecs() {
	It("runs a Plan in Pods and passes the results of earlier phases to later ones", func(ctx context.Context) {
		namespace := namespaceOfSpec(ctx)
		for name, message := range map[string]string{"look": "3 files", "search": "2 findings", "publish": "published"} {
			createStrategyInPod(ctx, namespace, name, "relay", message)
		}
		action := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "release"}}
		action.Spec.Strategize = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "look"}}}
		action.Spec.Execute = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "search"}}}
		action.Spec.Apply = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "publish"}}}
		Expect(k8s.Create(ctx, action)).To(Succeed())
		plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "first"}}
		plan.Spec.ActionRef.Name, plan.Spec.TargetPhase = action.Name, v1alpha1.PhaseApply
		Expect(k8s.Create(ctx, plan)).To(Succeed())
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			g.Expect(plan.Status.State).To(Equal(v1alpha1.PlanApplied), "%s: %s", plan.Status.CurrentPhase, plan.Status.Waiting)
		}).Should(Succeed())

		want := []string{"3 files", "2 findings [3 files]", "published [3 files] [2 findings [3 files]]"}
		Expect(plan.Status.Results).To(HaveLen(len(want)))
		for i, text := range want {
			result := plan.Status.Results[i]
			Expect(result.Outcome).To(Equal(v1alpha1.OutcomeSucceeded))
			Expect(result.Result).To(HaveValue(Equal(resultInPod(text))), result.Strategy)
			run := &v1alpha1.StrategyRun{}
			Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: result.Run}, run)).To(Succeed())
			Expect(run.Status.Result).To(HaveValue(Equal(resultInPod(text))))
		}

		Expect(k8s.Delete(ctx, plan)).To(Succeed())
		waitUntilGone(ctx, plan)
		for _, list := range []client.ObjectList{&v1alpha1.StrategyRunList{}, &corev1.PodList{}, &corev1.SecretList{}} {
			Eventually(ctx, func(ctx context.Context) (int, error) {
				err := k8s.List(ctx, list, client.InNamespace(namespace))
				return meta.LenList(list), err
			}).Should(BeZero(), "%T", list)
		}
	}, SpecTimeout(2*timeout))

	It("keeps the result of a run whose Pod is deleted", func(ctx context.Context) {
		namespace := namespaceOfSpec(ctx)
		createStrategyInPod(ctx, namespace, "long", "say", "so far")
		run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "long"}}
		run.Spec.StrategyRef.Name = "long"
		Expect(k8s.Create(ctx, run)).To(Succeed())
		Eventually(ctx, func(ctx context.Context) (string, error) {
			pods, err := clientset.CoreV1().Pods(namespace).List(ctx, listAll)
			if err != nil || len(pods.Items) != 1 {
				return "", err
			}
			message, err := clientset.CoreV1().Pods(namespace).GetLogs(pods.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(ctx)
			return string(message), err
		}).Should(Equal("ready\n"))
		Expect(clientset.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, listAll)).To(Succeed())
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(run), run)).To(Succeed())
			g.Expect(run.Status.Outcome).To(Equal(v1alpha1.OutcomeFailed))
		}).Should(Succeed())
		Expect(run.Status.Result).To(HaveValue(Equal(resultInPod("so far"))))
		Expect(k8s.Delete(ctx, run)).To(Succeed())
		waitUntilGone(ctx, run)
	}, SpecTimeout(2*timeout))

	It("runs the entrypoint of the image if a Strategy has no command", func(ctx context.Context) {
		namespace := namespaceOfSpec(ctx)
		createStrategyInPod(ctx, namespace, "entrypoint")
		run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "entrypoint"}}
		run.Spec.StrategyRef.Name = "entrypoint"
		Expect(k8s.Create(ctx, run)).To(Succeed())
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(run), run)).To(Succeed())
			g.Expect(run.Status.Outcome).To(Equal(v1alpha1.OutcomeFailed))
		}).Should(Succeed())
		Expect(run.Status.LastExit.ExitCode).To(HaveValue(BeEquivalentTo(99)), "the workload refuses to run without a mode")
		Expect(k8s.Delete(ctx, run)).To(Succeed())
		waitUntilGone(ctx, run)
	}, SpecTimeout(timeout))
}

// createStrategyInPod creates a strategy that runs the workload in a Pod. Without a mode, the strategy has no command.
func createStrategyInPod(ctx context.Context, namespace, name string, mode ...string) {
	GinkgoHelper()
	strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if len(mode) > 0 {
		strategy.Spec.Process.Command = append([]string{"/workload"}, mode...)
	}
	strategy.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{Image: "localhost/berth/workload:test", ImagePullPolicy: v1alpha1.PullNever}}
	// For some seconds after an installation the API server has not read the parameters of the policies and refuses all objects.
	Eventually(ctx, func(ctx context.Context) error { return k8s.Create(ctx, strategy.DeepCopy()) }).Should(Succeed())
}

// resultInPod returns the expected status of a result that a program in a Pod wrote.
func resultInPod(text string) v1alpha1.RunResult {
	sum := sha256.Sum256([]byte(text))
	return v1alpha1.RunResult{Summary: text, Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}
}
