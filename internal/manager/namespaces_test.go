// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// forbidListAll rejects lists of all namespaces, which a manager without ClusterRoles must not use.
var forbidListAll = interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
	if (&client.ListOptions{}).ApplyOptions(opts).Namespace == "" {
		return errors.New("forbidden")
	}
	return api.List(ctx, list, opts...)
}}

func TestNamespacedReader_ListsItsNamespacesOnly(t *testing.T) {
	g := NewWithT(t)
	server := func(namespace, name string) *v1alpha1.DevServer {
		return &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	api := fakeclient.NewClientBuilder().WithScheme(Scheme()).WithInterceptorFuncs(forbidListAll).
		WithObjects(server("a", "one"), server("b", "two"), server("b", "three"), server("c", "four")).Build()
	reader := &namespacedReader{Reader: api, namespaces: []string{"a", "b", "empty"}}
	names := func(opts ...client.ListOption) (found []string) {
		list := &v1alpha1.DevServerList{}
		g.Expect(reader.List(t.Context(), list, opts...)).To(Succeed())
		for i := range list.Items {
			found = append(found, list.Items[i].Name)
		}
		return found
	}
	g.Expect(names()).To(ConsistOf("one", "two", "three"))
	g.Expect(names(client.InNamespace("b"))).To(ConsistOf("two", "three"))

	metadata := &metav1.PartialObjectMetadataList{}
	metadata.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("DevServerList"))
	g.Expect(reader.List(t.Context(), metadata)).To(Succeed())
	g.Expect(metadata.Items).To(HaveLen(3))
}

// A manager that used to serve more namespaces may run processes whose objects it can no longer read. Such processes are not orphans.
func TestSweep_IgnoresOtherNamespaces(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, forbidListAll)
	w.namespaces = []string{"a"}
	w.reader = &namespacedReader{Reader: w.reader, namespaces: w.namespaces}
	for uid, name := range map[string]string{"stray": "instances/a/stray", "owned-devserver": "devservers/b/two", "nameless": ""} {
		g.Expect(w.fake.Start(t.Context(), runtime.Process{UID: types.UID(uid), Name: name, Incarnation: 1, Command: []string{uid}, StopSignal: "SIGTERM"})).To(Succeed())
	}
	_, err := w.sweep(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.fake.Count("stray", fake.Stop)).To(Equal(1))
	g.Expect(w.fake.Count("owned-devserver", fake.Stop)).To(BeZero())
	g.Expect(w.fake.Count("nameless", fake.Stop)).To(BeZero())
}
