// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/test/need"
)

// TestInstall_SecondApplyChangesNothing checks that the API server accepts a second apply of config/default and that the apply changes nothing. An upgrade is
// such an apply.
func TestInstall_SecondApplyChangesNothing(t *testing.T) {
	g := NewWithT(t)
	objects, err := render(t.Context(), filepath.Join("config", "default"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(objects)).To(BeNumerically(">", 25))
	for _, o := range objects {
		before := &unstructured.Unstructured{}
		before.SetGroupVersionKind(o.GroupVersionKind())
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(o), before)).To(Succeed())
		generation := before.GetGeneration()
		g.Expect(apply(t.Context(), o)).To(Succeed(), "%s %s", o.GetKind(), o.GetName())
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(before), before)).To(Succeed())
		g.Expect(before.GetGeneration()).To(Equal(generation), "%s %s", o.GetKind(), o.GetName())
	}
}

// TestManagerNamespace_EnforcesRestrictedPods checks that the namespace of the manager admits a Pod of the Deployment, and refuses a Pod with more privileges,
// because it enforces the restricted Pod Security Standard.
func TestManagerNamespace_EnforcesRestrictedPods(t *testing.T) {
	g := NewWithT(t)
	deployment := &appsv1.Deployment{}
	g.Expect(k8s.Get(t.Context(), client.ObjectKey{Namespace: "berth-system", Name: "berth-manager"}, deployment)).To(Succeed())
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "one"}, Spec: deployment.Spec.Template.Spec}
	create := func(pod *corev1.Pod) error { return k8s.Create(t.Context(), pod, client.DryRunAll) }
	privileged := pod.DeepCopy()
	privileged.Spec.Containers[0].SecurityContext.Capabilities = nil
	g.Eventually(func() error { return create(privileged.DeepCopy()) }, patience, poll).Should(MatchError(ContainSubstring("restricted")))
	g.Eventually(func() error { return create(pod.DeepCopy()) }, patience, poll).Should(Succeed())
	g.Expect(*pod.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem).To(BeTrue())
	g.Expect(*deployment.Spec.Replicas).To(BeEquivalentTo(2))
}

// invalidPolicy is the name of a policy with a type error. TestPolicies_PassTypeChecker uses it to verify that the type checker finds errors.
const invalidPolicy = "test-nonsense"

// TestPolicies_PassTypeChecker checks that the type checker of kube-controller-manager has no warnings about Berth's policies, and warns about a policy
// with an error.
func TestPolicies_PassTypeChecker(t *testing.T) {
	g := NewWithT(t)
	wrong := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	g.Expect(k8s.Get(t.Context(), client.ObjectKey{Name: "berth-commands"}, wrong)).To(Succeed())
	wrong.ObjectMeta = metav1.ObjectMeta{Name: invalidPolicy}
	wrong.Spec.Variables, wrong.Spec.MatchConditions = nil, nil
	wrong.Spec.Validations = []admissionregistrationv1.Validation{{Expression: "object.spec.process.komand.size() > 0"}}
	g.Expect(k8s.Create(t.Context(), wrong)).To(Succeed())
	t.Cleanup(func() { g.Expect(k8s.Delete(context.Background(), wrong)).To(Succeed()) })
	// Wait until the schemas are published: the type checker checks each policy only once, and skips kinds whose schema it does not find.
	g.Eventually(func() (string, error) {
		text, err := discoveryClient.RESTClient().Get().AbsPath("/openapi/v3/apis/berth.dev/v1alpha1").DoRaw(t.Context())
		return string(text), err
	}, patience, poll).Should(And(ContainSubstring(`.Instance"`), ContainSubstring(`.DevServer"`), ContainSubstring(`.LanguageServer"`), ContainSubstring(`.Strategy"`)))
	startTypeChecker(t)

	warnings := func(name string) func(Gomega) []admissionregistrationv1.ExpressionWarning {
		return func(g Gomega) []admissionregistrationv1.ExpressionWarning {
			policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
			g.Expect(k8s.Get(t.Context(), client.ObjectKey{Name: name}, policy)).To(Succeed())
			g.Expect(policy.Status.ObservedGeneration).To(Equal(policy.Generation))
			g.Expect(policy.Status.TypeChecking).NotTo(BeNil())
			return policy.Status.TypeChecking.ExpressionWarnings
		}
	}
	g.Eventually(warnings(invalidPolicy), patience, poll).ShouldNot(BeEmpty())
	for _, name := range []string{"berth-commands", "berth-images", "berth-directories", "berth-runtimes", "berth-environment", "berth-settings", "berth-docker", "berth-volumes",
		"berth-pods", "berth-managers", "berth-adoption"} {
		g.Eventually(warnings(name), patience, poll).Should(BeEmpty(), name)
	}
}

// startTypeChecker runs kube-controller-manager with only the controller that checks the types in policies.
func startTypeChecker(t *testing.T) {
	t.Helper()
	output := &outputBuffer{}
	command := exec.Command(filepath.Join(need.Assets(root), "kube-controller-manager"), "--kubeconfig="+kubeconfig,
		"--controllers=validatingadmissionpolicy-status-controller", "--leader-elect=false", "--secure-port=0")
	command.Stderr = output
	g := NewWithT(t)
	g.Expect(command.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
}
