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

// findWorld is an API server with one InstanceDiscovery, and sessions and containers to discover.
type findWorld struct {
	*WithT
	ctx      context.Context
	clock    *clocktesting.FakePassiveClock
	sessions *fake.Sessions
	api      client.WithWatch
	faults   faults
	// blind makes the cache of Instances appear empty, as in the initial state.
	blind bool

	mu      sync.Mutex
	writes  int
	struck  bool
	created map[string]int
}

func newFindWorld(t *testing.T) *findWorld {
	t.Helper()
	begin := time.Unix(1_800_000_000, 0)
	w := &findWorld{WithT: NewWithT(t), ctx: t.Context(), clock: clocktesting.NewFakePassiveClock(begin), created: map[string]int{}}
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
func (w *findWorld) manager() *discovery.Reconciler {
	disturbed := interceptor.NewClient(w.api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if w.blind {
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
	return &discovery.Reconciler{Client: disturbed, Reader: w.api, Runtimes: found, Recorder: silent{}, Clock: w.clock}
}

// write performs one write. The fault of this run may crash the manager before or after the write. The mutex serializes parallel creates.
func (w *findWorld) write(do func() error) error {
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

// toRest reconciles until a reconcile writes nothing. After each crash it continues with a new manager.
func (w *findWorld) toRest() string {
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
func (w *findWorld) outcome() string {
	d := &v1alpha1.InstanceDiscovery{}
	w.Expect(w.api.Get(w.ctx, key, d)).To(Succeed())
	var list v1alpha1.InstanceList
	w.Expect(w.api.List(w.ctx, &list)).To(Succeed())
	lines := []string{fmt.Sprintf("%+v", d.Status.Totals)}
	for _, entry := range d.Status.Found {
		lines = append(lines, fmt.Sprintf("%+v", entry))
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

// TestDiscoveryCrashAtEveryWrite crashes the manager at each write: once before the write reaches the API, and once after the write took effect but
// before the manager received the response. It repeats both with a cache that does not show the created objects.
func TestDiscoveryCrashAtEveryWrite(t *testing.T) {
	t.Parallel()
	undisturbed := newFindWorld(t)
	want := undisturbed.toRest()
	undisturbed.Expect(undisturbed.writes).To(Equal(4), "three Instances and a status")
	undisturbed.Expect(want).To(ContainSubstring("Created:3"))
	for n := 1; n <= undisturbed.writes; n++ {
		for _, applied := range []bool{false, true} {
			for _, blind := range []bool{false, true} {
				t.Run(fmt.Sprintf("write %d, applied %t, blind %t", n, applied, blind), func(t *testing.T) {
					w := newFindWorld(t)
					w.blind = blind
					w.faults.write = func(at int, done bool) error {
						if w.struck || at < n || done != applied {
							return nil
						}
						w.struck = true
						return errFault
					}
					if blind { // a new manager learns which Instances exist only from the conflicts of its creates
						_, _ = w.manager().Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
						_, err := w.manager().Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
						w.Expect(err).NotTo(HaveOccurred())
						w.blind = false
					}
					got := w.toRest()
					w.Expect(w.struck).To(BeTrue(), "the fault must have occurred")
					w.Expect(got).To(Equal(want))
				})
			}
		}
	}
}
