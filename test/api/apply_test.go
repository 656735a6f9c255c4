// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	applyv1alpha1 "github.com/berth-dev/berth/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// TestApplyConfiguration_OwnsOnlyItsFields checks that the generated apply configurations work: two programs apply parts of one object, and each keeps the
// fields of the other.
func TestApplyConfiguration_OwnsOnlyItsFields(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	typed, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	web := applyv1alpha1.DevServer("applied", "default").
		WithSpec(applyv1alpha1.DevServerSpec().WithProcess(applyv1alpha1.ProcessTemplate().WithCommand("serve")).WithProxy(v1alpha1.ProxyEnabled))
	g.Expect(typed.Apply(t.Context(), web, client.FieldOwner("deployer"))).To(Succeed())
	restart := applyv1alpha1.DevServer("applied", "default").WithSpec(applyv1alpha1.DevServerSpec().WithRestartToken("1"))
	g.Expect(typed.Apply(t.Context(), restart, client.FieldOwner("restarter"))).To(Succeed())

	var stored v1alpha1.DevServer
	g.Expect(typed.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "applied"}, &stored)).To(Succeed())
	g.Expect(stored.Spec.Process.Command).To(Equal([]string{"serve"}))
	g.Expect(stored.Spec.Proxy).To(Equal(v1alpha1.ProxyEnabled))
	g.Expect(stored.Spec.RestartToken).To(Equal("1"))

	without := applyv1alpha1.DevServer("applied", "default").WithSpec(applyv1alpha1.DevServerSpec())
	g.Expect(typed.Apply(t.Context(), without, client.FieldOwner("restarter"))).To(Succeed())
	g.Expect(typed.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "applied"}, &stored)).To(Succeed())
	g.Expect(stored.Spec.RestartToken).To(BeEmpty(), "a field that its only owner no longer applies is removed")
	g.Expect(stored.Spec.Process.Command).To(Equal([]string{"serve"}))
	g.Expect(typed.Delete(t.Context(), &stored)).To(Succeed())
}
