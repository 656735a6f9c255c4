// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// namespaceOfSpec creates a namespace and deletes it after the spec, together with the volume of the same name.
func namespaceOfSpec(ctx context.Context) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "berth-test-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	Expect(k8s.Create(ctx, namespace)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		removeNamespace(ctx, namespace.Name)
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: namespace.Name}}
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, volume))).To(Succeed())
		waitUntilGone(ctx, volume)
	}, NodeTimeout(2*timeout))
	return namespace.Name
}

// newDevServer returns a DevServer for test cases that do not need its process to run.
func newDevServer(namespace, name string) *v1alpha1.DevServer {
	o := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	o.Spec.Process.Command = []string{"/workload", "sleep"}
	return o
}

// waitUntilGone waits until a deleted object no longer exists.
func waitUntilGone(ctx context.Context, object client.Object) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) bool {
		return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(object), object))
	}).Should(BeTrue(), "%s is not deleted", object.GetName())
}
