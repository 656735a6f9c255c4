// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/conditions/conditionstest"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

var begin = time.Unix(1_800_000_000, 0)

// world is an API server with a discovery, and the sessions and containers that it can find.
type world struct {
	*WithT
	ctx      context.Context
	api      client.WithWatch
	clock    *clocktesting.FakePassiveClock
	sessions *fake.Sessions
	writes   atomic.Int64
	events   []string
	*Reconciler
}

func (w *world) Eventf(_, _ apiruntime.Object, eventType, reason, _, note string, args ...any) {
	w.events = append(w.events, eventType+" "+reason+" "+fmt.Sprintf(note, args...))
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{WithT: NewWithT(t), ctx: t.Context(), clock: clocktesting.NewFakePassiveClock(begin)}
	w.sessions = fake.WithSessions(fake.New(t.Context(), w.clock))
	scheme := apiruntime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	counted := func(err error) error {
		w.writes.Add(1)
		return err
	}
	w.api = fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.InstanceDiscovery{}, &v1alpha1.Instance{}).
		WithIndex(&v1alpha1.Instance{}, process.IndexUID, func(o client.Object) []string { return []string{string(o.GetUID())} }).
		WithIndex(&v1alpha1.Instance{}, instance.IndexPlace, func(o client.Object) []string { return []string{instance.Place(o.(*v1alpha1.Instance))} }).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				return counted(c.Create(ctx, o, opts...))
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				return counted(c.SubResource(sub).Patch(ctx, o, p, opts...))
			},
		}).Build()
	w.Reconciler = w.newReconciler()
	return w
}

// newReconciler returns a new reconciler without any state.
func (w *world) newReconciler() *Reconciler {
	found := runtime.NewRegistry(w.sessions, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeTmux, Runtime: w.sessions},
		runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: w.sessions})
	return &Reconciler{Client: w.api, Reader: w.api, Runtimes: found, Recorder: w, Clock: w.clock}
}

func newDiscovery(namespace, name string, sources ...v1alpha1.DiscoverySource) *v1alpha1.InstanceDiscovery {
	if len(sources) == 0 {
		sources = []v1alpha1.DiscoverySource{{Name: "tmux", Type: v1alpha1.RuntimeTmux}, {Name: "docker", Type: v1alpha1.RuntimeDocker}}
	}
	return &v1alpha1.InstanceDiscovery{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Generation: 1},
		Spec:       v1alpha1.InstanceDiscoverySpec{Sources: sources},
	}
}

func foundSession(name string) runtime.Found {
	return runtime.Found{ID: "$1", Name: name, Created: begin, Command: "claude"}
}

// reconcile reconciles the discovery and returns its new state.
func (w *world) reconcile(d *v1alpha1.InstanceDiscovery) *v1alpha1.InstanceDiscovery {
	key := client.ObjectKeyFromObject(d)
	result, err := w.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
	w.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	w.ExpectWithOffset(1, result.RequeueAfter).NotTo(Equal(consistency.RetryAfter))
	now := &v1alpha1.InstanceDiscovery{}
	w.ExpectWithOffset(1, w.api.Get(w.ctx, key, now)).To(Succeed())
	w.ExpectWithOffset(1, conditionstest.Faulty(now.Status.Conditions)).To(BeEmpty(), "%v", now.Status.Conditions)
	return now
}

func (w *world) instances() []v1alpha1.Instance {
	var list v1alpha1.InstanceList
	w.ExpectWithOffset(1, w.api.List(w.ctx, &list)).To(Succeed())
	return list.Items
}

// trueConditions returns the type and the reason of each condition that is True.
func trueConditions(d *v1alpha1.InstanceDiscovery) string {
	var types []string
	for _, c := range d.Status.Conditions {
		if c.Status == metav1.ConditionTrue {
			types = append(types, c.Type+" "+c.Reason)
		}
	}
	return strings.Join(types, ", ")
}
