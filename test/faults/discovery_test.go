// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/discovery"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// discoveryWorld is an API server with one InstanceDiscovery, and sessions and containers to discover.
type discoveryWorld struct {
	*WithT
	ctx      context.Context
	clock    *clocktesting.FakePassiveClock
	sessions *fake.Sessions
	api      client.WithWatch
	faults   faults
	// emptyCache makes the cache of Instances appear empty, as in the initial state.
	emptyCache bool

	mu            sync.Mutex
	writes        int
	faultOccurred bool
	created       map[string]int
}

func newDiscoveryWorld(t *testing.T) *discoveryWorld {
	t.Helper()
	begin := time.Unix(1_800_000_000, 0)
	w := &discoveryWorld{WithT: NewWithT(t), ctx: t.Context(), clock: clocktesting.NewFakePassiveClock(begin), created: map[string]int{}}
	w.sessions = fake.WithSessions(fake.New(w.ctx, w.clock))
	w.sessions.OfferSessions("default", runtime.Found{ID: "$1", Name: "Foo_Bar", Created: begin}, runtime.Found{ID: "$2", Name: "foo-bar", Created: begin})
	w.sessions.OfferContainers(runtime.Found{ID: strings.Repeat("ab", 32), Name: "foo-bar", Created: begin})
	d := &v1alpha1.InstanceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: uid, Generation: 1}}
	d.Spec.Sources = []v1alpha1.DiscoverySource{{Name: "tmux", Type: v1alpha1.RuntimeTmux}, {Name: "docker", Type: v1alpha1.RuntimeDocker}}
	w.api = fakeclient.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(d).WithObjects(d).
		WithIndex(&v1alpha1.Instance{}, process.IndexUID, func(o client.Object) []string { return []string{string(o.GetUID())} }).
		WithIndex(&v1alpha1.Instance{}, instance.IndexPlace, func(o client.Object) []string { return []string{instance.Place(o.(*v1alpha1.Instance))} }).
		Build()
	return w
}

// manager returns a newly started manager.
func (w *discoveryWorld) manager() *discovery.Reconciler {
	disturbed := interceptor.NewClient(w.api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if w.emptyCache {
				return nil
			}
			return c.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write(func() error {
				err := c.Create(ctx, o, opts...)
				if err == nil {
					w.created[o.GetName()]++
				}
				return err
			})
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.write(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
	found := runtime.NewRegistry(w.sessions, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeTmux, Runtime: w.sessions},
		runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: w.sessions})
	return &discovery.Reconciler{Client: disturbed, Reader: w.api, Runtimes: found, Recorder: noEvents{}, Clock: w.clock}
}

// write performs one write. The fault of this run may crash the manager before or after the write. The mutex serializes parallel creates.
func (w *discoveryWorld) write(do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes++
	if w.faults.write != nil {
		if err := w.faults.write(w.writes, false); err != nil {
			return err
		}
	}
	err := do()
	if err == nil && w.faults.write != nil {
		return w.faults.write(w.writes, true)
	}
	return err
}

// reconcileToRest reconciles until a reconcile writes nothing. After each crash it continues with a new manager.
func (w *discoveryWorld) reconcileToRest() string {
	manager := w.manager()
	for range 20 {
		writes := w.writes
		_, err := manager.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
		if err != nil {
			w.Expect(errors.Is(err, errFault)).To(BeTrue(), err.Error())
			manager = w.manager()
			continue
		}
		if w.writes == writes {
			return w.outcome()
		}
	}
	w.Expect(false).To(BeTrue(), "the discovery did not come to rest")
	return ""
}

// outcome describes the parts of the final state that must be the same with and without faults.
func (w *discoveryWorld) outcome() string {
	d := &v1alpha1.InstanceDiscovery{}
	w.Expect(w.api.Get(w.ctx, key, d)).To(Succeed())
	var list v1alpha1.InstanceList
	w.Expect(w.api.List(w.ctx, &list)).To(Succeed())
	lines := []string{fmt.Sprintf("%+v", d.Status.Totals)}
	for _, entry := range d.Status.Found {
		instanceRef := ptr.Deref(entry.InstanceRef, v1alpha1.NamespacedReference{})
		entry.InstanceRef = nil
		lines = append(lines, fmt.Sprintf("%+v %+v", entry, instanceRef))
	}
	for i := range list.Items {
		object := &list.Items[i]
		lines = append(lines, fmt.Sprintf("%s is %s, made %d times", object.Name, instance.Place(object), w.created[object.Name]))
	}
	for _, c := range d.Status.Conditions {
		lines = append(lines, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestDiscovery_CrashAtEveryWrite crashes the manager at each write: once before the write reaches the API, and once after the write took effect but
// before the manager received the response. It repeats both with a cache that does not show the created objects.
func TestDiscovery_CrashAtEveryWrite(t *testing.T) {
	t.Parallel()
	saved := newDiscoveryWorld(t)
	want := saved.reconcileToRest()
	saved.Expect(saved.writes).To(Equal(4), "three Instances and a status")
	saved.Expect(want).To(ContainSubstring("Created:3"))
	for n := 1; n <= saved.writes; n++ {
		for _, applied := range []bool{false, true} {
			for _, blind := range []bool{false, true} {
				t.Run(fmt.Sprintf("write %d, applied %t, blind %t", n, applied, blind), func(t *testing.T) {
					w := newDiscoveryWorld(t)
					w.emptyCache = blind
					w.faults.write = func(at int, done bool) error {
						if w.faultOccurred || at < n || done != applied {
							return nil
						}
						w.faultOccurred = true
						return errFault
					}
					if blind { // a new manager learns which Instances exist only from the conflicts of its creates
						_, _ = w.manager().Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
						_, err := w.manager().Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
						w.Expect(err).NotTo(HaveOccurred())
						w.emptyCache = false
					}
					got := w.reconcileToRest()
					w.Expect(w.faultOccurred).To(BeTrue(), "the fault must have occurred")
					w.Expect(got).To(Equal(want))
				})
			}
		}
	}
}
