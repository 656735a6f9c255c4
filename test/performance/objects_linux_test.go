// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// backgroundContext is for work that continues after a test ends.
var backgroundContext = context.Background()

// newNamespace creates a namespace whose objects are deleted when the test ends. Start the manager first, because deleting the objects needs a
// running manager and cleanups run in reverse order.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}
	NewWithT(t).Expect(k8s.Create(t.Context(), namespace)).To(Succeed())
	t.Cleanup(func() { deleteObjects(t, namespace.Name) })
	return namespace.Name
}

// deleteObjects deletes all Instances, DevServers and LanguageServers in a namespace and waits until they are gone.
func deleteObjects(t *testing.T, namespace string) {
	t.Helper()
	g := NewWithT(t)
	ctx := backgroundContext
	for _, object := range []client.Object{&v1alpha1.Instance{}, &v1alpha1.DevServer{}, &v1alpha1.LanguageServer{}} {
		g.Expect(k8s.DeleteAllOf(ctx, object, client.InNamespace(namespace))).To(Succeed())
	}
	g.Eventually(func(g Gomega) {
		for _, kind := range []string{"InstanceList", "DevServerList", "LanguageServerList"} {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
			g.Expect(k8s.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
			g.Expect(list.Items).To(BeEmpty())
		}
	}).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(Succeed())
}

// removeFinalizers removes the finalizers that the API server has added to Instances that no manager has reconciled.
func removeFinalizers(t *testing.T, namespace string) {
	t.Helper()
	g := NewWithT(t)
	var list v1alpha1.InstanceList
	g.Expect(k8s.List(t.Context(), &list, client.InNamespace(namespace))).To(Succeed())
	inParallel(t, len(list.Items), 16, func(i int) error {
		return k8s.Patch(t.Context(), &list.Items[i], client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	})
}

// newInstance returns an Instance that restarts without back-off and with a breaker that practically never opens.
func newInstance(namespace, name string, command ...string) *v1alpha1.Instance {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	instance.Spec.Process.Command = command
	instance.Spec.Backoff.InitialSeconds = ptr.To[int32](0)
	instance.Spec.Breaker = v1alpha1.BreakerPolicy{FailureThreshold: ptr.To[int32](64), WindowSeconds: ptr.To[int32](1)}
	return instance
}

// newDevServer returns a DevServer that restarts like the Instance of newInstance.
func newDevServer(namespace, name string, command ...string) *v1alpha1.DevServer {
	server := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	server.Spec.ProcessSpec = newInstance(namespace, name, command...).Spec.ProcessSpec
	return server
}

// inParallel calls the function do for each number from 0 to n-1, and fails the test if a call returns an error. The parameter width is the number of
// goroutines.
func inParallel(t *testing.T, n, width int, do func(i int) error) {
	t.Helper()
	jobs, failures := make(chan int), make(chan error, n)
	var workers sync.WaitGroup
	for range width {
		workers.Go(func() {
			for i := range jobs {
				if err := do(i); err != nil {
					failures <- err
				}
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	workers.Wait()
	close(failures)
	for err := range failures {
		t.Fatal(err)
	}
}

// isReady reports whether the object is Ready for its current generation.
func isReady(instance *v1alpha1.Instance) bool {
	ready := meta.FindStatusCondition(instance.Status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == instance.Generation
}

// follower watches the Instances of a namespace and notifies each waiter when its Instance reaches the expected state.
type follower struct {
	t       *testing.T
	mu      sync.Mutex
	waiting map[string][]*waiter
}

type waiter struct {
	condition func(*v1alpha1.Instance) bool
	met       chan time.Time
}

// follow watches the Instances of a namespace until the test ends.
func follow(t *testing.T, namespace string) *follower {
	t.Helper()
	f := &follower{t: t, waiting: map[string][]*waiter{}}
	watchAll(t, namespace, &v1alpha1.InstanceList{}, func(object client.Object) {
		if instance, ok := object.(*v1alpha1.Instance); ok {
			f.notify(instance, time.Now())
		}
	})
	return f
}

// watchAll calls onState for every observed state of the objects in a namespace until the test ends. If the API server closes the watch, watchAll opens
// a new watch, which first delivers the current state of all objects.
func watchAll(t *testing.T, namespace string, list client.ObjectList, onState func(client.Object)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	first, err := k8s.Watch(ctx, list, client.InNamespace(namespace))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for watching := first; ; {
			for event := range watching.ResultChan() {
				if object, ok := event.Object.(client.Object); ok {
					onState(object)
				}
			}
			watching.Stop()
			if watching, err = k8s.Watch(ctx, list, client.InNamespace(namespace)); err != nil {
				if ctx.Err() == nil {
					t.Errorf("reopen the watch: %v", err)
				}
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (f *follower) notify(instance *v1alpha1.Instance, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var still []*waiter
	for _, w := range f.waiting[instance.Name] {
		if w.condition(instance) {
			w.met <- at
		} else {
			still = append(still, w)
		}
	}
	f.waiting[instance.Name] = still
}

// expect registers a waiter for the Instance with the given name. The returned function blocks until the watch delivers a state that satisfies the
// condition, and returns the time of delivery.
func (f *follower) expect(name string, condition func(*v1alpha1.Instance) bool) func() (time.Time, error) {
	w := &waiter{condition: condition, met: make(chan time.Time, 1)}
	f.mu.Lock()
	f.waiting[name] = append(f.waiting[name], w)
	f.mu.Unlock()
	return func() (time.Time, error) {
		select {
		case at := <-w.met:
			return at, nil
		case <-time.After(patience):
			return time.Time{}, fmt.Errorf("timed out waiting for %s", name)
		}
	}
}
