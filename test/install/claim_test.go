// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/config/claim"
)

// claimCase is an object as a user writes it, with the finalizers and labels that the object must have after admission.
type claimCase struct {
	name, kind, metadata, spec string
	finalizers                 []string
	labels                     map[string]string
}

// placeholderHost is the host name in the policy that the tests install. berth up replaces the placeholder with the name of its host.
const placeholderHost = "BERTH_HOST"

var hostLabels = map[string]string{v1alpha1.LabelHost: placeholderHost}

var claimCases = []claimCase{
	{"plain", "Instance", ``, `process: {command: [gohello]}`, []string{v1alpha1.FinalizerProcess}, hostLabels},
	{"with labels and finalizers of the user", "DevServer", `{labels: {a: b}, finalizers: [example.com/mine]}`, `process: {command: [gohello]}`,
		[]string{"example.com/mine", v1alpha1.FinalizerProcess}, map[string]string{"a": "b", v1alpha1.LabelHost: placeholderHost}},
	{"with a session", "Instance", ``, `{session: s1, process: {command: [gohello]}}`, []string{v1alpha1.FinalizerProcess}, map[string]string{v1alpha1.LabelSession: "s1", v1alpha1.LabelHost: placeholderHost}},
	{"with a session and labels, one of them wrong", "LanguageServer", `{labels: {a: b, berth.dev/session: other}}`,
		`{session: s1, language: go, workspace: {folders: [/srv/agents]}, process: {command: [gohello]}}`,
		[]string{v1alpha1.FinalizerProcess}, map[string]string{"a": "b", v1alpha1.LabelSession: "s1", v1alpha1.LabelHost: placeholderHost}},
	{"with empty lists", "DevServer", `{labels: {}, finalizers: []}`, `{session: s1, process: {command: [gohello]}}`,
		[]string{v1alpha1.FinalizerProcess}, map[string]string{v1alpha1.LabelSession: "s1", v1alpha1.LabelHost: placeholderHost}},
	{"claimed already", "Instance", `{finalizers: [berth.dev/process]}`, `process: {command: [gohello]}`, []string{v1alpha1.FinalizerProcess}, hostLabels},
	{"placed on another host", "Instance", `{labels: {berth.dev/host: other}}`, `process: {command: [gohello]}`, []string{v1alpha1.FinalizerProcess},
		map[string]string{v1alpha1.LabelHost: "other"}},
	{"a run, which its controller claims together with another finalizer", "StrategyRun", ``, `strategyRef: {name: lint}`, nil, nil},
}

func TestClaimPolicy_AddsFinalizersAndLabels(t *testing.T) {
	createNamespaces(t)
	setParameters(t, strictParameters, policyCases[0])
	installClaimPolicy(t)
	for _, c := range claimCases {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Eventually(func(g Gomega) {
				o := c.object(g)
				g.Expect(k8s.Create(t.Context(), o, client.DryRunAll)).To(Succeed())
				g.Expect(o.GetFinalizers()).To(Equal(c.finalizers))
				g.Expect(o.GetLabels()).To(Equal(c.labels))
			}, patience, poll).Should(Succeed())
		})
	}
}

// TestClaimPolicy_SecondApplyKeepsClaim checks that applying a manifest again does not remove the finalizers and labels that the policy has added.
func TestClaimPolicy_SecondApplyKeepsClaim(t *testing.T) {
	g := NewWithT(t)
	createNamespaces(t)
	setParameters(t, strictParameters, policyCases[0])
	installClaimPolicy(t)
	c := claimCase{kind: "Instance", spec: `{session: s1, process: {command: [gohello]}}`}
	g.Eventually(func(g Gomega) {
		o := c.object(g)
		g.Expect(apply(t.Context(), o, client.DryRunAll)).To(Succeed())
		g.Expect(o.GetFinalizers()).To(ConsistOf(v1alpha1.FinalizerProcess))
	}, patience, poll).Should(Succeed())
	t.Cleanup(func() {
		o := c.object(g)
		g.Expect(k8s.Patch(context.Background(), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), o))).To(Succeed())
	})
	for _, command := range []string{"first", "second", "third"} {
		o := c.object(g)
		g.Expect(unstructured.SetNestedStringSlice(o.Object, []string{"gohello", command}, "spec", "process", "command")).To(Succeed())
		g.Expect(apply(t.Context(), o)).To(Succeed())
		g.Expect(o.GetFinalizers()).To(ConsistOf(v1alpha1.FinalizerProcess))
		g.Expect(o.GetLabels()).To(HaveKeyWithValue(v1alpha1.LabelSession, "s1"))
	}
}

func (c claimCase) object(g Gomega) *unstructured.Unstructured {
	o := newObject(g, policyCase{namespace: "default", kind: c.kind, spec: c.spec})
	metadata := map[string]any{}
	g.Expect(yaml.Unmarshal([]byte(c.metadata), &metadata)).To(Succeed())
	for name, value := range metadata {
		g.Expect(unstructured.SetNestedField(o.Object, value, "metadata", name)).To(Succeed())
	}
	return o
}

// installClaimPolicy installs the policy that adds finalizers and labels, and removes it when the test ends.
func installClaimPolicy(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	for _, text := range [][]byte{claim.Policy, claim.Binding} {
		o := &unstructured.Unstructured{}
		g.Expect(yaml.UnmarshalStrict(text, &o.Object)).To(Succeed())
		g.Expect(apply(t.Context(), o)).To(Succeed())
		t.Cleanup(func() { g.Expect(k8s.Delete(context.Background(), o)).To(Succeed()) })
	}
}
