// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

const successorUID = types.UID("uid-2")

// removeObject removes the object although its reconciler has not released it.
func (b *fixture) removeObject() *v1alpha1.Instance {
	b.t.Helper()
	object := b.object()
	object.Finalizers = nil
	b.Expect(b.api.Update(b.t.Context(), object)).To(Succeed())
	b.Expect(b.api.Delete(b.t.Context(), object)).To(Succeed())
	return object
}

// createSuccessor creates another object with the name and the spec of a deleted one.
func (b *fixture) createSuccessor(of *v1alpha1.Instance) {
	b.t.Helper()
	successor := of.DeepCopy()
	successor.UID, successor.ResourceVersion, successor.Finalizers, successor.Status = successorUID, "", nil, v1alpha1.InstanceStatus{}
	b.Expect(b.api.Create(b.t.Context(), successor)).To(Succeed())
}

// replaceManager replaces the reconciler by that of another manager. It returns the UIDs whose stop the new one requests.
func (b *fixture) replaceManager() *[]types.UID {
	stopped := &[]types.UID{}
	b.r = &Reconciler{
		Client: b.r.Client, Reader: b.r.Reader, Runtimes: b.r.Runtimes, Kind: b.kind, Recorder: b.recorder, Clock: b.clock,
		OnVanished: func(uid types.UID) { *stopped = append(*stopped, uid) },
	}
	return stopped
}

func (b *fixture) expectWait() {
	b.t.Helper()
	b.Expect(b.reconcile().RequeueAfter).NotTo(BeZero())
	b.Expect(b.rt.Live(successorUID)).To(BeEmpty(), "the process of the old object still runs")
	reconciling := b.condition(v1alpha1.ConditionReconciling)
	b.Expect(reconciling.Reason).To(Equal(v1alpha1.ReasonSuperseded))
	b.Expect(reconciling.Message).To(ContainSubstring("UID uid-1"))
	writes := b.writes
	b.reconcile()
	b.Expect(b.writes).To(Equal(writes), "a wait writes nothing")
}

func TestVanished_SuccessorWaitsForExit(t *testing.T) {
	for name, seen := range map[string]bool{"between two objects": true, "without a reconcile in between": false} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, nil)
			stopped := b.replaceManager()
			b.reconcile()
			old := b.removeObject()
			if seen {
				b.reconcile() // finds no object
				b.Expect(*stopped).To(Equal([]types.UID{testUID}), "requests the stop even if there is no other object")
			}
			b.createSuccessor(old)
			b.expectWait()
			b.Expect(*stopped).To(HaveEach(testUID))

			b.rt.Exit(testUID, facts.Exit{Known: true})
			b.reconcile()
			b.Expect(b.rt.Live(successorUID)).To(Equal([]int64{1}))
		})
	}
}

func TestVanished_NextManagerFindsProcess(t *testing.T) {
	b := newFixture(t, nil)
	b.reconcile()
	b.createSuccessor(b.removeObject())
	rt := &namespaceChecker{Runtime: b.rt, namespaces: map[types.UID]string{}}
	b.r.Runtimes = runtime.NewRegistry(rt, logr.Discard())
	stopped := b.replaceManager()
	b.expectWait()
	b.Expect(*stopped).To(HaveEach(testUID), "requests the stop of the process")
	b.Expect(rt.namespaces).To(Equal(map[types.UID]string{successorUID: testKey.Namespace}), "only the namespace of the reconciled object is set")
	b.rt.Exit(testUID, facts.Exit{Known: true})
	b.reconcile()
	b.Expect(b.rt.Live(successorUID)).To(Equal([]int64{1}))
}

// inPods is a runtime whose processes are Pods of a namespace.
type inPods struct {
	runtime.Runtime
	namespace string
}

func (p inPods) place(found []facts.Incarnation, err error) ([]facts.Incarnation, error) {
	for i := range found {
		found[i].Namespace = p.namespace
	}
	return found, err
}

func (p inPods) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	return p.place(p.Runtime.Observe(ctx, uid))
}

func (p inPods) List(ctx context.Context) ([]facts.Incarnation, error) {
	return p.place(p.Runtime.List(ctx))
}

// A user who can create Pods in another namespace can give them the UID and the name of any object.
func TestVanished_PodOfAnotherNamespaceDelaysNothing(t *testing.T) {
	for name, replaced := range map[string]bool{"found by a search": true, "of an object that was reconciled": false} {
		for namespace, waits := range map[string]bool{testKey.Namespace: true, "intruder": false} {
			t.Run(name+" in "+namespace, func(t *testing.T) {
				b := newFixture(t, nil)
				b.r.Runtimes = runtime.NewRegistry(inPods{b.rt, namespace}, logr.Discard())
				stopped := b.replaceManager()
				b.reconcile()
				b.createSuccessor(b.removeObject())
				if replaced {
					stopped = b.replaceManager()
					b.r.searchVanished(t.Context(), "")
					b.Expect(b.r.stateCache.vanishedAt(testKey)).To(HaveLen(map[bool]int{true: 1}[waits]), "only the processes in the namespace of their object are remembered")
				}
				if waits {
					b.expectWait()
					return
				}
				b.reconcile()
				b.Expect(b.rt.Live(successorUID)).To(Equal([]int64{1}))
				b.Expect(*stopped).To(BeEmpty())
			})
		}
	}
}

// The search of a new manager finds the processes of all objects. Only those of vanished objects need memory.
func TestVanished_SearchRemembersExistingObjectOnce(t *testing.T) {
	b := newFixture(t, nil)
	b.reconcile()
	stopped := b.replaceManager()
	b.r.searchVanished(t.Context(), "")
	b.Expect(b.r.stateCache.vanished).To(BeEmpty())
	b.Expect(b.r.stateCache.objects).To(HaveLen(1))

	b.createSuccessor(b.removeObject()) // the new manager has not reconciled the old object
	b.expectWait()
	b.Expect(*stopped).To(HaveEach(testUID))
}

func TestVanished_ExitedProcessesAreForgotten(t *testing.T) {
	b := newFixture(t, nil)
	b.replaceManager()
	for n := range 20 {
		uid := types.UID(fmt.Sprintf("old-%d", n))
		b.Expect(b.rt.Start(t.Context(), runtime.Process{UID: uid, Incarnation: 1, Command: []string{"serve"}})).To(Succeed())
		key := types.NamespacedName{Namespace: "default", Name: string(uid)}
		b.r.stateCache.meetFirst(key, sighting{uid, b.rt})
		b.r.noticeVanished(t.Context(), key, nil)
		b.Expect(b.r.stateCache.vanishedAt(key)).To(HaveLen(1), "the process is alive")
		b.rt.Exit(uid, facts.Exit{Known: true})
	}
	b.Expect(len(b.r.stateCache.vanished)).To(BeNumerically("<=", 3), "no object with these names will ever remove the entries")
}

func TestVanished_NextManagerStopsProcessOfObjectThatItKnows(t *testing.T) {
	b := newFixture(t, nil)
	b.reconcile()
	b.reconcile()
	stopped := b.replaceManager()
	b.reconcile()
	b.removeObject()
	b.reconcile()
	b.Expect(*stopped).To(Equal([]types.UID{testUID}))
}

// adopting is a runtime that has adopted all of its processes.
type adopting struct{ runtime.Runtime }

func (a adopting) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := a.Runtime.Observe(ctx, uid)
	for i := range found {
		found[i].Adopted = true
	}
	return found, err
}

func TestVanished_AdoptedProcessDelaysNothing(t *testing.T) {
	b := newFixture(t, nil)
	b.r.Runtimes = runtime.NewRegistry(adopting{b.rt}, logr.Discard())
	b.reconcile()
	b.createSuccessor(b.removeObject())
	b.reconcile()
	b.Expect(b.rt.Live(successorUID)).To(Equal([]int64{1}))
}

// observeRuntime counts the observations of each UID, and returns err for UIDs other than working, if err is set.
type observeRuntime struct {
	runtime.Runtime
	count   map[types.UID]int
	working types.UID
	err     error
}

func (r *observeRuntime) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	r.count[uid]++
	if uid != r.working && r.err != nil {
		return nil, r.err
	}
	return r.Runtime.Observe(ctx, uid)
}

func (b *fixture) observations() *observeRuntime {
	r := &observeRuntime{Runtime: b.rt, count: map[types.UID]int{}}
	b.r.Runtimes = runtime.NewRegistry(r, logr.Discard())
	return r
}

func TestVanished_ReleasedObjectIsNotObservedAgain(t *testing.T) {
	b := newFixture(t, nil)
	observations := b.observations()
	b.reconcile()
	released := b.object()
	b.Expect(b.api.Delete(t.Context(), b.object())).To(Succeed())
	for len(b.rt.Known()) > 0 {
		b.reconcile()
	}
	before := observations.count[testUID]
	b.Expect(b.reconcile()).To(Equal(ctrl.Result{}), "finds no object")
	b.createSuccessor(released)
	b.reconcile()
	b.Expect(b.rt.Live(successorUID)).To(Equal([]int64{1}))
	b.Expect(observations.count[testUID]).To(Equal(before))
}

func TestVanished_SuccessorStallsIfRuntimeDoesNotTell(t *testing.T) {
	b := newFixture(t, nil)
	observations := b.observations()
	b.reconcile()
	b.createSuccessor(b.removeObject())
	observations.working, observations.err = successorUID, errors.New("permission denied")
	b.reconcile()
	b.Expect(b.rt.Live(successorUID)).To(BeEmpty())
	stalled := b.condition(v1alpha1.ConditionStalled)
	b.Expect(stalled.Reason).To(Equal(v1alpha1.ReasonUnknown))
	b.Expect(stalled.Message).To(ContainSubstring("Permission denied"))

	observations.err = nil
	b.rt.Exit(testUID, facts.Exit{Known: true})
	b.reconcile()
	b.Expect(b.rt.Live(successorUID)).To(Equal([]int64{1}))
}

// A runtime that never started a process is not observed, so it cannot delay the next object.
func TestVanished_ObjectWithoutStartDelaysNothing(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateStopped })
	observations := b.observations()
	b.reconcile()
	b.createSuccessor(b.removeObject())
	observations.working, observations.err = successorUID, errors.New("permission denied")
	b.update(func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateRunning })
	b.reconcile()
	b.Expect(b.rt.Live(successorUID)).To(Equal([]int64{1}))
}

// An object of another host cannot vanish here, because its process does not run here.
func TestVanished_ObjectOfAnotherHostIsForgotten(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) {
		i.Labels = map[string]string{v1alpha1.LabelHost: "there"}
		i.Status.HostName = "there"
	})
	b.r.Hosts = hosts.New(hosts.Options{Name: "here"})
	b.reconcile()
	b.Expect(b.kind.forgotten).To(Equal([]types.UID{testUID}))
	_, known := b.r.stateCache.leave(testKey, "")
	b.Expect(known).To(BeFalse())
}

// unlistable is a runtime whose List fails until it is repaired.
type unlistable struct {
	runtime.Runtime
	lists int
	err   error
}

func (u *unlistable) List(ctx context.Context) ([]facts.Incarnation, error) {
	u.lists++
	if u.err != nil {
		return nil, u.err
	}
	return u.Runtime.List(ctx)
}

// hungRuntime is a runtime whose List hangs until the caller gives up.
type hungRuntime struct {
	runtime.Runtime
	lists atomic.Int32
}

func (h *hungRuntime) List(ctx context.Context) ([]facts.Incarnation, error) {
	h.lists.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestVanished_HungRuntimeDelaysOtherRuntimesOnce(t *testing.T) {
	b := newFixture(t, nil)
	engine := &hungRuntime{Runtime: b.rt}
	b.r.Runtimes = runtime.NewRegistry(b.rt, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: engine})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // longer than any runtime may delay another one
	defer cancel()
	var workers sync.WaitGroup
	for range DefaultConcurrency {
		workers.Go(func() { b.r.searchVanished(ctx, v1alpha1.RuntimeHost) })
	}
	workers.Wait()
	b.r.searchVanished(ctx, v1alpha1.RuntimeHost)
	b.Expect(ctx.Err()).NotTo(HaveOccurred(), "the search does not wait for the engine")
	b.Expect(engine.lists.Load()).To(BeEquivalentTo(1), "all objects wait for the same search")

	own, end := context.WithTimeout(t.Context(), time.Millisecond)
	defer end()
	b.r.searchVanished(own, v1alpha1.RuntimeDocker)
	b.Expect(engine.lists.Load()).To(BeEquivalentTo(2), "an object of this runtime searches again")
}

// Most machines have no Docker Engine, so its absence is no error in the log. Any other failure is.
func TestVanished_AbsentRuntimeIsNoErrorInTheLog(t *testing.T) {
	for name, row := range map[string]struct {
		err    error
		logged int
	}{
		"absent": {fmt.Errorf("list containers: %w", &runtime.UnavailableError{Message: "the Docker Engine does not respond", Err: errors.New("no socket")}), 0},
		"fails":  {errors.New("disk full"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, nil)
			engine := &unlistable{Runtime: b.rt, err: row.err}
			b.r.Runtimes = runtime.NewRegistry(b.rt, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: engine})
			var lines []string
			log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
			b.r.searchVanished(ctrl.LoggerInto(t.Context(), log), v1alpha1.RuntimeHost)
			b.Expect(engine.lists).To(Equal(1))
			b.Expect(lines).To(HaveLen(row.logged))
		})
	}
}

func TestVanished_SearchIsRepeatedOnlyForOwnRuntime(t *testing.T) {
	b := newFixture(t, nil)
	host, pods := &unlistable{Runtime: b.rt}, &unlistable{Runtime: b.rt, err: errors.New("not synced")}
	b.r.Runtimes = runtime.NewRegistry(host, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimePod, Runtime: pods})
	for range 2 {
		b.r.searchVanished(t.Context(), "")
	}
	b.Expect([]int{host.lists, pods.lists}).To(Equal([]int{1, 1}))
	for range 2 {
		b.r.searchVanished(t.Context(), v1alpha1.RuntimePod)
	}
	b.Expect(pods.lists).To(Equal(3), "a failed search is repeated")
	pods.err = nil
	for range 2 {
		b.r.searchVanished(t.Context(), v1alpha1.RuntimePod)
	}
	b.Expect([]int{host.lists, pods.lists}).To(Equal([]int{1, 4}))
}

// Once the process has ended, the message must not claim that the object waits for it.
func TestDelete_ReportsThatAnotherFinalizerKeepsTheObject(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) { i.Finalizers = []string{"example.com/other"} })
	b.rt.Program("serve", fake.Program{IgnoreStop: true})
	b.reconcile()
	b.reconcile()
	b.Expect(b.api.Delete(t.Context(), b.object())).To(Succeed())
	b.reconcile()
	b.Expect(b.condition(v1alpha1.ConditionReconciling).Message).To(ContainSubstring("stopping its process first"))
	b.rt.Exit(testUID, facts.Exit{Known: true})
	for range 3 {
		b.reconcile()
	}
	b.Expect(hasFinalizer(b.object())).To(BeFalse())
	b.Expect(b.condition(v1alpha1.ConditionReconciling).Message).To(Equal(
		"The object is being deleted and has no process. If it remains, another controller must remove its finalizer (metadata.finalizers)."))
}

// A finalizer of another controller keeps the object after the process finalizer was removed by force. The object has vanished once that finalizer is removed too.
func TestVanished_ObjectKeptByOtherFinalizer(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) { i.Finalizers = []string{"example.com/other"} })
	stopped := b.replaceManager()
	b.reconcile()
	b.Expect(b.api.Delete(t.Context(), b.object())).To(Succeed())
	object := b.object()
	object.Finalizers = []string{"example.com/other"}
	b.Expect(b.api.Update(t.Context(), object)).To(Succeed())
	b.reconcile()
	b.Expect(*stopped).To(BeEmpty(), "the object exists")
	b.Expect(hasFinalizer(b.object())).To(BeFalse(), "the API server accepts no finalizer of an object that is being deleted")
	object = b.object()
	object.Finalizers = nil
	b.Expect(b.api.Update(t.Context(), object)).To(Succeed())
	b.reconcile()
	b.Expect(*stopped).To(Equal([]types.UID{testUID}))
	b.Expect(b.kind.forgotten).To(Equal([]types.UID{testUID}))
}
