// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// image returns the repository and tag of the image to test. BERTH_TEST_IMAGE replaces the default image, which `make cluster` provides.
func image() (repository, tag string) {
	name := os.Getenv("BERTH_TEST_IMAGE")
	if name == "" {
		name = "localhost/berth/berth:test"
	}
	at := strings.LastIndex(name, ":")
	Expect(at).To(BeNumerically(">", 0), "BERTH_TEST_IMAGE must have a tag")
	return name[:at], name[at+1:]
}

// helm runs Helm. Helm keeps its cache and configuration files in a temporary directory of the spec.
func helm(ctx context.Context, args ...string) {
	GinkgoHelper()
	own := GinkgoT().TempDir()
	mustRun(ctx, "helm", append([]string{"--namespace=" + managerNamespace, "--repository-cache=" + own, "--repository-config=" + filepath.Join(own, "repositories.yaml"),
		"--registry-config=" + filepath.Join(own, "registry.json")}, args...)...)
}

func chart() string { return filepath.Join(root, "charts", "berth") }

// earlierChart returns the path of a chart that imitates an earlier version. The chart lacks a field of a kind, a policy, and a value together with the object
// that is rendered from this value.
func earlierChart() string {
	GinkgoHelper()
	dir := filepath.Join(GinkgoT().TempDir(), "berth")
	Expect(os.CopyFS(dir, os.DirFS(chart()))).To(Succeed())
	for _, absent := range []string{"templates/disruption_budget.yaml", "files/policy/directories.yaml"} {
		Expect(os.Remove(filepath.Join(dir, absent))).To(Succeed())
	}
	editFile(filepath.Join(dir, "values.yaml"), func(values map[string]any) { delete(values, "podDisruptionBudget") })
	editFile(filepath.Join(dir, "values.schema.json"), func(schema map[string]any) {
		unstructured.RemoveNestedField(schema, "properties", "podDisruptionBudget")
	})
	editFile(filepath.Join(dir, "files", "crds", "berth.dev_devservers.yaml"), func(crd map[string]any) {
		versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
		Expect(err).NotTo(HaveOccurred())
		version, ok := versions[0].(map[string]any)
		Expect(ok).To(BeTrue())
		unstructured.RemoveNestedField(version, exitMessagePath...)
		Expect(unstructured.SetNestedSlice(crd, versions, "spec", "versions")).To(Succeed())
	})
	return dir
}

// exitMessagePath is the path of the schema of status.lastExit.message within an entry of spec.versions of the DevServer CRD. The earlier chart lacks this
// field.
var exitMessagePath = []string{"schema", "openAPIV3Schema", "properties", "status", "properties", "lastExit", "properties", "message"}

// editFile changes a YAML or JSON file.
func editFile(file string, change func(map[string]any)) {
	GinkgoHelper()
	text, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	content := map[string]any{}
	Expect(yaml.Unmarshal(text, &content)).To(Succeed())
	change(content)
	text, err = yaml.Marshal(content)
	Expect(err).NotTo(HaveOccurred())
	if filepath.Ext(file) == ".json" {
		text, err = yaml.YAMLToJSON(text)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(os.WriteFile(file, text, 0o600)).To(Succeed())
}

// partsMissingInEarlierChart lists the parts that the cluster contains and the earlier chart lacks.
func partsMissingInEarlierChart(ctx context.Context) (found []string) {
	GinkgoHelper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(installedKinds[0])
	Expect(k8s.Get(ctx, client.ObjectKey{Name: "devservers.berth.dev"}, crd)).To(Succeed())
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	Expect(err).NotTo(HaveOccurred())
	version, ok := versions[0].(map[string]any)
	Expect(ok).To(BeTrue())
	if _, has, _ := unstructured.NestedMap(version, exitMessagePath...); has {
		found = append(found, "a field")
	}
	for key := range installedObjects(ctx) {
		switch {
		case strings.HasPrefix(key, "PodDisruptionBudget "):
			found = append(found, "a disruption budget")
		case key == "ValidatingAdmissionPolicy /berth-directories":
			found = append(found, "a policy")
		}
	}
	return found
}

// installByHelm installs the chart as documented.
func installByHelm(ctx context.Context) {
	GinkgoHelper()
	makeNamespace(ctx, managerNamespace)
	repository, tag := image()
	helm(ctx, "install", "berth", chart(), "--set=image.repository="+repository+",image.tag="+tag)
}

// writeOverlay writes a kustomization that combines config/default with the image to test, and returns its directory.
func writeOverlay() string {
	GinkgoHelper()
	dir, err := filepath.EvalSymlinks(GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	base, err := filepath.Abs(filepath.Join(root, "config", "default"))
	Expect(err).NotTo(HaveOccurred())
	base, err = filepath.Rel(dir, base)
	Expect(err).NotTo(HaveOccurred())
	repository, tag := image()
	text := fmt.Sprintf("resources: [%s]\nimages: [{name: ghcr.io/berth-dev/berth, newName: %s, newTag: %s}]\n", base, repository, tag)
	Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)).To(Succeed())
	return dir
}

func installByKustomize(ctx context.Context) {
	GinkgoHelper()
	mustRun(ctx, "kubectl", "apply", "--server-side", "-k", writeOverlay())
}

// reloadPolicyParameters restarts the API server of `make cluster`. After all policies of an installation were deleted, an API server does not read the
// ConfigMaps that are the parameters of the next policies until it is restarted (kubernetes/kubernetes#130887). On another cluster, reloadPolicyParameters does
// nothing, because the suite cannot restart its API server.
func reloadPolicyParameters(ctx context.Context) {
	GinkgoHelper()
	if !isTestCluster() {
		return
	}
	controlProcess(ctx, "kill", "kube-apiserver")
	startAPIServer(ctx)
}

// makeNamespace creates a namespace that enforces the restricted Pod Security Standard, and waits until Pods can be created in the namespace.
func makeNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	Expect(k8s.Create(ctx, namespace)).To(Succeed())
	Eventually(ctx, func(ctx context.Context) error {
		_, err := clientset.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	}).Should(Succeed())
}

// removeNamespace deletes a namespace and waits until it and its contents no longer exist.
func removeNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	Expect(client.IgnoreNotFound(k8s.Delete(ctx, namespace))).To(Succeed())
	Eventually(ctx, func(ctx context.Context) bool {
		return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))
	}).Should(BeTrue(), "namespace %s is not deleted: %+v", name, namespace.Status)
}

// installedKinds lists the kinds of objects that an installation creates.
var installedKinds = []schema.GroupVersionKind{
	{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"},
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
	{Group: "apps", Version: "v1", Kind: "Deployment"},
	{Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "ServiceAccount"},
	{Version: "v1", Kind: "ConfigMap"},
}

// installedObjects returns the installed objects by kind and name, without status, metadata and fields that the cluster assigns.
func installedObjects(ctx context.Context) map[string]any {
	GinkgoHelper()
	found := map[string]any{}
	for _, kind := range installedKinds {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		Expect(k8s.List(ctx, list, client.MatchingLabels{"app.kubernetes.io/name": "berth"})).To(Succeed())
		for _, object := range list.Items {
			key := fmt.Sprintf("%s %s/%s", kind.Kind, object.GetNamespace(), object.GetName())
			for _, fields := range [][]string{{"metadata"}, {"status"}, {"spec", "clusterIP"}, {"spec", "clusterIPs"}} {
				unstructured.RemoveNestedField(object.Object, fields...)
			}
			found[key] = object.Object
		}
	}
	return found
}

var withoutFinalizers = client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))

// removeAll removes all objects of Berth, so that the next run finds a cluster without Berth. It does not depend on a running manager.
func removeAll(ctx context.Context) {
	definitions := &apiextensionsv1.CustomResourceDefinitionList{}
	Expect(k8s.List(ctx, definitions, client.MatchingLabels{"app.kubernetes.io/name": "berth"})).To(Succeed())
	for _, definition := range definitions.Items {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(definition.Spec.Names.ListKind))
		Expect(k8s.List(ctx, list)).To(Succeed())
		for i := range list.Items {
			object := &list.Items[i]
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, object))).To(Succeed())
			Expect(client.IgnoreNotFound(k8s.Patch(ctx, object, withoutFinalizers))).To(Succeed())
		}
	}
	for _, kind := range installedKinds {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		Expect(k8s.List(ctx, list, client.MatchingLabels{"app.kubernetes.io/name": "berth"})).To(Succeed())
		for i := range list.Items {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, &list.Items[i]))).To(Succeed())
		}
	}
	Eventually(ctx, installedObjects).Should(BeEmpty())
	removeNamespace(ctx, managerNamespace)
}
