// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// laptop is the folder that docs/laptop-to-cluster.md describes.
var laptop = filepath.Join("samples", "laptop-to-cluster")

// TestLaptopSample_ObjectsAreAccepted checks the claim of docs/laptop-to-cluster.md that the laptop and the cluster share their files. An API server must
// accept the unchanged objects of the laptop and those of the cluster.
func TestLaptopSample_ObjectsAreAccepted(t *testing.T) {
	setInitialParameters(t)
	t.Run("the laptop", func(t *testing.T) {
		g := NewWithT(t)
		base := renderSample(t, "base")
		files, err := filepath.Glob(filepath.Join(root, laptop, "base", "objects", "*"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(base).To(HaveLen(len(files)), "the kustomization must list every file of the folder, because berth up -f applies the whole folder")
		for _, o := range base {
			g.Expect(runtimeOf(o)).To(BeEmpty(), "%s: an object in base must not set a runtime", o.GetName())
			o.SetNamespace("default")
			g.Eventually(func() error { return createStrict(t.Context(), o.DeepCopy(), client.DryRunAll) }, patience, poll).Should(Succeed())
		}
	})
	for folder, others := range map[string][]string{
		"cluster": {"Namespace", "PersistentVolumeClaim"},
		"ingress": {"Namespace", "PersistentVolumeClaim", "Ingress"},
	} {
		t.Run("the "+folder, func(t *testing.T) {
			g := NewWithT(t)
			var processes int
			var kinds []string
			for _, o := range renderSample(t, folder) {
				if o.GetKind() == "Namespace" {
					g.Expect(o.GetLabels()).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
					g.Expect(client.IgnoreAlreadyExists(createStrict(t.Context(), o.DeepCopy()))).To(Succeed())
				} else {
					g.Eventually(func() error { return createStrict(t.Context(), o.DeepCopy(), client.DryRunAll) }, patience, poll).Should(Succeed(), o.GetName())
				}
				if o.GroupVersionKind().GroupVersion() == v1alpha1.GroupVersion {
					processes++
					g.Expect(runtimeOf(o)).To(Equal("Pod"), "%s: a manager in a cluster runs only Pods", o.GetName())
				} else {
					kinds = append(kinds, o.GetKind())
				}
			}
			g.Expect(processes).To(Equal(len(renderSample(t, "base"))))
			g.Expect(kinds).To(ConsistOf(others))
		})
	}
}

// TestLaptopSample_NeedsSeparateAPIServers checks that the laptop and the cluster need separate API servers, as docs/laptop-to-cluster.md says: the cluster's
// objects cannot be applied over the laptop's objects, because their runtime is immutable.
func TestLaptopSample_NeedsSeparateAPIServers(t *testing.T) {
	setInitialParameters(t)
	g := NewWithT(t)
	laptopObjects := map[string]*unstructured.Unstructured{}
	for _, o := range renderSample(t, "base") {
		o.SetNamespace("default")
		g.Eventually(func() error { return client.IgnoreAlreadyExists(createStrict(t.Context(), o)) }, patience, poll).Should(Succeed())
		t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), o))).To(Succeed()) })
		laptopObjects[o.GetKind()] = o
	}
	for _, kind := range []string{"DevServer", "Instance", "LanguageServer"} {
		o := onlyObject(t, renderSample(t, "cluster"), kind)
		o.SetNamespace("default")
		g.Expect(o.GetName()).To(Equal(laptopObjects[kind].GetName()))
		g.Expect(apply(t.Context(), o, client.DryRunAll)).To(MatchError(ContainSubstring("runtime is immutable")))
	}
}

// TestLaptopSample_RoutesReachDevServer checks that the Ingress and the HTTPRoute route to the Service that Berth creates for the DevServer. The HTTPRoute is
// only in docs/laptop-to-cluster.md and not in a file of the sample, because its kind is not part of Kubernetes.
func TestLaptopSample_RoutesReachDevServer(t *testing.T) {
	g := NewWithT(t)
	objects := renderSample(t, "ingress")
	var dev v1alpha1.DevServer
	var ingress networkingv1.Ingress
	convert := runtime.DefaultUnstructuredConverter.FromUnstructured
	g.Expect(convert(onlyObject(t, objects, "DevServer").Object, &dev)).To(Succeed())
	g.Expect(convert(onlyObject(t, objects, "Ingress").Object, &ingress)).To(Succeed())
	g.Expect(ingress.Namespace).To(Equal(dev.Namespace))
	g.Expect(ingress.Spec.Rules).To(HaveLen(1))
	for _, path := range ingress.Spec.Rules[0].HTTP.Paths {
		g.Expect(path.Backend.Service.Name).To(Equal(dev.Name))
		g.Expect(path.Backend.Service.Port.Number).To(Equal(*dev.Spec.Port))
	}

	var routes int
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readLaptopPage(t), -1) {
		manifests, err := parse(block[1])
		g.Expect(err).NotTo(HaveOccurred())
		for _, o := range manifests {
			if o.GetKind() != "HTTPRoute" {
				continue
			}
			routes++
			rules, _, err := unstructured.NestedSlice(o.Object, "spec", "rules")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(o.GetNamespace()).To(Equal(dev.Namespace))
			g.Expect(fmt.Sprint(rules)).To(Equal(fmt.Sprintf("[map[backendRefs:[map[name:%s port:%d]]]]", dev.Name, *dev.Spec.Port)))
		}
	}
	g.Expect(routes).To(Equal(1))
}

// TestLaptopSample_ProjectPassesVet runs go vet in the project of the sample. The project is a separate module that no other build covers.
func TestLaptopSample_ProjectPassesVet(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), "go", "vet", "-C", filepath.Join(root, laptop, "web"), "./...").CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(output))
}

func TestLaptopPage_NamesExistingFiles(t *testing.T) {
	g := NewWithT(t)
	named := regexp.MustCompile(`samples/laptop-to-cluster[-\w./]*`).FindAllString(string(readLaptopPage(t)), -1)
	g.Expect(named).NotTo(BeEmpty())
	for _, name := range named {
		g.Expect(filepath.Join(root, name)).To(BeAnExistingFile())
	}
}

func readLaptopPage(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "laptop-to-cluster.md"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return text
}

func renderSample(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	g := NewWithT(t)
	objects, err := render(t.Context(), filepath.Join(laptop, folder))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects).NotTo(BeEmpty())
	return objects
}

func onlyObject(t *testing.T, objects []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for _, o := range objects {
		if o.GetKind() == kind {
			found = append(found, o)
		}
	}
	NewWithT(t).Expect(found).To(HaveLen(1))
	return found[0]
}

func runtimeOf(o *unstructured.Unstructured) string {
	runtimeType, _, _ := unstructured.NestedString(o.Object, "spec", "runtime", "type") // ignore an error: the API server refuses values that are not strings
	return runtimeType
}

func createStrict(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return k8s.Create(ctx, o, append(options, client.FieldValidation("Strict"))...)
}
