// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/test/need"
)

// This spec creates the Pods of the sample, because applying the objects is not a sufficient test: the API server validates the fields of spec.runtime.pod
// and enforces the Pod Security Standard of the namespace only when a Pod is created.
var _ = Describe("samples/laptop-to-cluster", func() {
	It("creates Pods that a restricted namespace admits and that share the project", func(ctx context.Context) {
		testNode := newNode()
		namespace := newNamespace(ctx)
		for _, o := range renderKustomization(ctx, "samples/laptop-to-cluster/cluster") {
			if o.GetKind() == "Namespace" {
				there := &corev1.Namespace{}
				Expect(k8s.Get(ctx, client.ObjectKey{Name: namespace}, there)).To(Succeed())
				there.Labels = o.GetLabels()
				Expect(k8s.Update(ctx, there)).To(Succeed())
				continue
			}
			o.SetNamespace(namespace)
			Expect(k8s.Create(ctx, o)).To(Succeed())
		}
		metadata := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
		run := &v1alpha1.StrategyRun{ObjectMeta: metadata("vet-once")}
		run.Spec.StrategyRef.Name = "vet"
		Expect(k8s.Create(ctx, run)).To(Succeed())

		web, gopls := &v1alpha1.DevServer{ObjectMeta: metadata("web")}, &v1alpha1.LanguageServer{ObjectMeta: metadata("gopls")}
		for object, inits := range map[process.Object]int{web: 1, gopls: 2, &v1alpha1.Instance{ObjectMeta: metadata("agent")}: 1, run: 1} {
			get(ctx, Default, object)
			p := waitForPod(ctx, object, "1")
			Expect(p.Spec.InitContainers).To(HaveLen(inits), "init containers clone the project and install the multiplexer")
			Expect(p.Spec.Volumes).To(ContainElement(HaveField("PersistentVolumeClaim.ClaimName", "workspace")))
			Expect(p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchLabels).To(
				HaveEach(p.Labels["workspace"]), "the affinity matches the Pod itself, or the first Pod would wait forever")
		}
		service := &corev1.Service{}
		Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(web), service) }).Should(Succeed())
		Expect(service.Spec.Ports[0].Port).To(Equal(*web.Spec.Port))
		Eventually(func(g Gomega) {
			get(ctx, g, gopls)
			g.Expect(gopls.Status.Endpoint).To(Equal("https://lsp-gopls." + namespace + ".svc:7077/lsp"))
		}).Should(Succeed())

		p := waitForPod(ctx, run, "1")
		testNode.run(ctx, p, "127.0.0.1")
		testNode.end(ctx, p, 0)
		Eventually(func(g Gomega) {
			get(ctx, g, run)
			g.Expect(run.Status.Outcome).To(Equal(v1alpha1.OutcomeSucceeded))
		}).Should(Succeed())
	})
})

// renderKustomization returns the objects of the kustomization in a folder of the repository.
func renderKustomization(ctx context.Context, folder string) (objects []*unstructured.Unstructured) {
	GinkgoHelper()
	root := filepath.Join("..", "..")
	command := exec.CommandContext(ctx, filepath.Join(need.Assets(root), "kubectl"), "kustomize", filepath.Join(root, folder))
	command.Stderr = GinkgoWriter
	text, err := command.Output()
	Expect(err).NotTo(HaveOccurred())
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		Expect(err).NotTo(HaveOccurred())
		objects = append(objects, o)
	}
}
