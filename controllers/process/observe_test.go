// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// namespaceChecker counts the calls for a UID that arrive before its namespace is set.
type namespaceChecker struct {
	*fake.Runtime
	namespaces map[types.UID]string
	early      int
}

func (n *namespaceChecker) SetNamespace(uid types.UID, namespace string) {
	n.namespaces[uid] = namespace
}

func (n *namespaceChecker) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	if n.namespaces[uid] == "" {
		n.early++
	}
	return n.Runtime.Observe(ctx, uid)
}

// observingKind calls the runtime in Asleep, the first hook of a kind that a reconcile calls.
type observingKind struct {
	*testKind
	runtime *namespaceChecker
}

func (s observingKind) Asleep(ctx context.Context, object Object, _ time.Time) bool {
	_, err := s.runtime.Observe(ctx, object.GetUID())
	return err != nil
}

// A backend ignores objects of other namespaces that look like incarnations of a UID. To do so, it must know the namespace of the UID before the first call.
func TestRuntime_ReceivesNamespaceBeforeFirstCall(t *testing.T) {
	b := newFixture(t, nil)
	rt := &namespaceChecker{Runtime: b.rt, namespaces: map[types.UID]string{}}
	b.r.Runtimes, b.r.Kind = runtime.NewRegistry(rt, logr.Discard()), observingKind{b.kind, rt}
	b.reconcile()
	b.Expect(rt.early).To(BeZero())
	b.Expect(rt.namespaces).To(Equal(map[types.UID]string{testUID: testKey.Namespace}))
}

// silentRuntime is a runtime whose engine does not respond.
type silentRuntime struct{ runtime.Runtime }

func (silentRuntime) Observe(context.Context, types.UID) ([]facts.Incarnation, error) {
	return nil, fmt.Errorf("list containers: %w", &runtime.UnavailableError{Message: "the engine does not respond; start it", Err: errors.New("connection refused")})
}

func TestObserve_ShowsUnavailableRuntimeInStatusOfNewObject(t *testing.T) {
	b := newFixture(t, nil)
	b.r.Runtimes = runtime.NewRegistry(silentRuntime{b.rt}, logr.Discard())
	b.r.Hosts = hosts.New(hosts.Options{Name: "here"})
	b.reconcile() // labels the object with the host
	b.Expect(b.reconcile().RequeueAfter).To(Equal(unavailableRetry))
	stalled := b.condition(v1alpha1.ConditionStalled)
	b.Expect(stalled.Reason).To(Equal(v1alpha1.ReasonRuntimeUnavailable))
	b.Expect(stalled.Message).To(Equal("The engine does not respond; start it. Berth checks this again."))
	writes := b.writes
	b.reconcile()
	b.Expect(b.writes).To(Equal(writes))

	b.Expect(b.object().Status.HostName).To(BeEmpty(), "another host may take the object")

	b.r.Runtimes = runtime.NewRegistry(b.rt, logr.Discard())
	b.reconcile()
	b.reconcile() // records the start
	b.Expect(b.object().Status.Incarnation).To(Equal(int64(1)))
	b.r.Runtimes = runtime.NewRegistry(silentRuntime{b.rt}, logr.Discard())
	before := b.object().Status
	_, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
	b.Expect(err).To(MatchError(ContainSubstring("connection refused")))
	b.Expect(b.object().Status).To(Equal(before), "the status of a process that may run is kept")
}

func TestObserve_DeletionWaitsForUnavailableRuntime(t *testing.T) {
	b := newFixture(t, nil)
	b.r.Runtimes = runtime.NewRegistry(silentRuntime{b.rt}, logr.Discard())
	b.reconcile()
	b.Expect(b.api.Delete(t.Context(), b.object())).To(Succeed())
	_, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
	b.Expect(err).To(MatchError(ContainSubstring("connection refused")))
	b.Expect(b.object().Finalizers).To(ContainElement(v1alpha1.FinalizerProcess), "an incarnation may run that the status does not record")
}
