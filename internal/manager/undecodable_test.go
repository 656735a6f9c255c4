// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime/fake"
	"github.com/berth-dev/berth/internal/tolerant"
)

// eventCount counts events.
type eventCount int

func (c *eventCount) Eventf(apiruntime.Object, apiruntime.Object, string, string, string, string, ...any) {
	*c++
}

// ignored returns the number of strategies that were ignored.
func ignored(g *WithT) float64 {
	families, err := metrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "berth_undecodable_objects_total" && metric.GetLabel()[0].GetValue() == "strategies" {
				return metric.GetCounter().GetValue()
			}
		}
	}
	g.Expect(families).To(BeNil(), "the metric is missing")
	return 0
}

func TestReporter_CountsAllObjectsAndBoundsEvents(t *testing.T) {
	g := NewWithT(t)
	events := eventCount(0)
	before := ignored(g)
	r := newReporter(logr.Discard())
	r.recorder = &events
	bad := &tolerant.Undecodable{Object: &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Strategy"}}, Err: errors.New("no quantity")}
	for range 10 * reportBurst {
		r.report(bad)
	}
	g.Expect(ignored(g) - before).To(BeEquivalentTo(10 * reportBurst))
	g.Expect(events).To(And(BeNumerically(">=", reportBurst), BeNumerically("<", 2*reportBurst)))
}

func TestSweep_KeepsProcessesOfObjectsThatDoNotDecode(t *testing.T) {
	g := NewWithT(t)
	refusal := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Reason: "Undecodable"}}
	w := newFixture(t, interceptor.Funcs{Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
		if _, whole := object.(*unstructured.Unstructured); whole {
			return refusal
		}
		return api.Get(ctx, key, object, opts...)
	}})
	api := w.reader.(client.Client) //nolint:forcetypeassert // the fixture uses a client
	g.Expect(api.Patch(t.Context(), &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}},
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+v1alpha1.LabelHost+`":"there"}}}`)))).To(Succeed())
	w.hosts = hosts.New(hosts.Options{Name: "here"})
	w.startProcess(g, "owned-instance", fake.Program{})
	w.startProcess(g, "stray", fake.Program{})
	_, err := w.sweep(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.fake.Live("owned-instance")).To(Equal([]int64{4}))
	g.Expect(w.fake.Live("stray")).To(BeEmpty())
}
