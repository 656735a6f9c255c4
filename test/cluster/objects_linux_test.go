// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// namespaceOfSpec makes a namespace that goes with the spec.
func namespaceOfSpec(ctx context.Context) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "berth-test-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	Expect(k8s.Create(ctx, namespace)).To(Succeed())
	DeferCleanup(removeNamespace, namespace.Name, NodeTimeout(timeout))
	return namespace.Name
}

// server is a DevServer that no spec needs to run.
func server(namespace, name string) *v1alpha1.DevServer {
	o := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	o.Spec.Process.Command = []string{"/workload", "sleep"}
	return o
}

// resident makes an object in a namespace of its own and waits until a manager has answered: without a runtime it says what is missing.
func resident(ctx context.Context, name string) *v1alpha1.DevServer {
	GinkgoHelper()
	object := server(namespaceOfSpec(ctx), name)
	// For some seconds after an installation the API server has not read the parameters of its policies, and refuses everything.
	Eventually(ctx, func(ctx context.Context) error { return k8s.Create(ctx, object) }).Should(Succeed())
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		stalled := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionStalled)
		g.Expect(stalled).NotTo(BeNil())
		g.Expect(stalled.Reason).To(Equal(v1alpha1.ReasonRuntimeUnavailable))
		g.Expect(stalled.Message).To(ContainSubstring("--runtimes"))
	}).Should(Succeed())
	return object
}

// found reads an object again.
func found(ctx context.Context, object *v1alpha1.DevServer) *v1alpha1.DevServer {
	GinkgoHelper()
	now := &v1alpha1.DevServer{}
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(object), now)).To(Succeed())
	return now
}

// answered changes an object and waits until a manager has seen that.
func answered(ctx context.Context, object *v1alpha1.DevServer) *v1alpha1.DevServer {
	GinkgoHelper()
	change := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"restartToken":%q}}`, time.Now().Format(time.RFC3339Nano)))
	now := object.DeepCopy()
	Expect(k8s.Patch(ctx, now, change)).To(Succeed())
	generation := now.Generation
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(object), now)).To(Succeed())
		g.Expect(now.Status.ObservedGeneration).To(BeNumerically(">=", generation), "no manager acts")
	}).Should(Succeed())
	return now
}

// gone waits until an object that was deleted is not there any more.
func gone(ctx context.Context, object client.Object) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) bool {
		return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(object), object))
	}).Should(BeTrue(), "%s does not go", object.GetName())
}
