// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// sampleSize is the number of objects that are reconciled for one figure.
const sampleSize = 50

// TestReconcile_TimeIndependentOfObjectCount checks that the time to reconcile an object at rest, or one that restarts, hardly depends on whether there are
// 100, 1,000 or 10,000 objects.
func TestReconcile_TimeIndependentOfObjectCount(t *testing.T) {
	rest, restart := map[int]float64{}, map[int]float64{}
	for _, objects := range []int{100, 1000, 10000} {
		rest[objects], restart[objects] = reconcileTimes(t, objects)
		addFigure(fmt.Sprintf("reconcile among %d objects: at rest, with a restart", objects), "%.3f ms, %.3f ms", rest[objects], restart[objects])
	}
	expectAtMost(t, "reconcile at rest among 1,000 objects / 100", rest[1000]/rest[100], 1.2, 2, "×")
	expectAtMost(t, "reconcile at rest among 10,000 objects / 100", rest[10000]/rest[100], 1.2, 2, "×")
	expectAtMost(t, "reconcile with a restart among 10,000 objects / 100", restart[10000]/restart[100], 1.2, 2, "×")
}

// reconcileTimes returns the median times in milliseconds. Each is the lowest median of three rounds, to exclude the effect of other load on the
// machine.
func reconcileTimes(t *testing.T, objects int) (rest, restart float64) {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rt := fake.New(ctx, clock.RealClock{})
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-rt.Events():
			}
		}
	}()
	template := restingInstance(t, rt)
	all := fakeclient.NewClientBuilder().WithScheme(manager.Scheme()).WithStatusSubresource(&v1alpha1.Instance{})
	for i := range objects {
		all.WithObjects(newRestingInstance(t, rt, template, keyOf(i)))
	}
	api := all.Build()
	reconcile := newReconcileFunc(t, api, rt)
	for i := range objects {
		reconcile(keyOf(i)) // lets the reconciler see every object once
	}
	var written v1alpha1.Instance
	g.Expect(api.Get(ctx, keyOf(objects-1), &written)).To(Succeed())
	g.Expect(written.ResourceVersion).To(Equal("999"), "an object at rest must not be written") // 999 is the fake client's version of initial objects
	for round := range rounds {
		var resting, restarting []float64
		for n := range sampleSize {
			i := n * objects / sampleSize
			began := time.Now()
			reconcile(keyOf(i))
			resting = append(resting, milliseconds(time.Since(began)))
			object := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: keyOf(i).Namespace, Name: keyOf(i).Name}}
			patch := fmt.Sprintf(`{"metadata":{"generation":%d},"spec":{"restartToken":"%d"}}`, round+2, round)
			g.Expect(api.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
			began = time.Now()
			for range 3 { // stop, start, ready
				reconcile(keyOf(i))
			}
			restarting = append(restarting, milliseconds(time.Since(began)))
			g.Expect(api.Get(ctx, keyOf(i), object)).To(Succeed())
			g.Expect(object.Status.Incarnation).To(BeEquivalentTo(round + 2))
			g.Expect(object.Status.ObservedRestartToken).To(Equal(fmt.Sprint(round)))
		}
		if rested := median(resting); round == 0 || rested < rest {
			rest = rested
		}
		if restarted := median(restarting); round == 0 || restarted < restart {
			restart = restarted
		}
	}
	return rest, restart
}

// newReconcileFunc returns the reconcile function of Instances with an in-memory API server and runtime.
func newReconcileFunc(t *testing.T, api client.Client, backend *fake.Runtime) func(types.NamespacedName) {
	g := NewWithT(t)
	runtimes := runtime.NewRegistry(backend, logr.Discard())
	reconciler := &process.Reconciler{
		Client: api, Reader: api, Runtimes: runtimes, Kind: instance.New(api, runtimes, clock.RealClock{}), Recorder: events.NewFakeRecorder(1 << 20), Clock: clock.RealClock{},
	}
	return func(key types.NamespacedName) {
		_, err := reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// restingInstance returns an object at rest.
func restingInstance(t *testing.T, backend *fake.Runtime) *v1alpha1.Instance {
	t.Helper()
	object := newInstance("flat", "template", "serve")
	object.UID, object.Generation = "template", 1
	api := fakeclient.NewClientBuilder().WithScheme(manager.Scheme()).WithStatusSubresource(object).WithObjects(object).Build()
	reconcile := newReconcileFunc(t, api, backend)
	for range 2 {
		reconcile(client.ObjectKeyFromObject(object))
	}
	g := NewWithT(t)
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
	g.Expect(isReady(object)).To(BeTrue())
	return object
}

// newRestingInstance starts an in-memory process and returns its object as the reconciler would leave it.
func newRestingInstance(t *testing.T, backend *fake.Runtime, template *v1alpha1.Instance, key types.NamespacedName) *v1alpha1.Instance {
	t.Helper()
	g := NewWithT(t)
	object := template.DeepCopy()
	object.Name, object.UID, object.ResourceVersion = key.Name, types.UID(key.Name), ""
	g.Expect(backend.Start(t.Context(), runtime.Process{UID: object.UID, Incarnation: 1, Command: object.Spec.Process.Command})).To(Succeed())
	found, err := backend.Observe(t.Context(), object.UID)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(1))
	object.Status.AttachCommand = "berth attach instance/" + key.Name + " -n " + key.Namespace
	object.Status.SessionID, object.Status.Resume.SessionID = string(object.UID), string(object.UID)
	object.Status.Process.PID, object.Status.Process.StartTicks = found[0].PID, found[0].StartTicks
	return object
}

func keyOf(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: "flat", Name: fmt.Sprintf("object-%05d", i)}
}
