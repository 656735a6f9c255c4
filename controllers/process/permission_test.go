// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// newGuardedFixture returns a fixture whose reconciler checks the permission of the namespace, which has no label yet.
func newGuardedFixture(t *testing.T) *fixture {
	b := newFixture(t, nil)
	b.r.Permission = &Permission{Cache: b.api, Live: b.api, Namespace: "berth-system"}
	b.Expect(b.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testKey.Namespace}})).To(Succeed())
	return b
}

// permit sets the label of the namespace; an empty value removes it.
func (b *fixture) permit(kind string) {
	b.t.Helper()
	namespace := &corev1.Namespace{}
	b.Expect(b.api.Get(b.t.Context(), client.ObjectKey{Name: testKey.Namespace}, namespace)).To(Succeed())
	namespace.Labels = map[string]string{}
	if kind != "" {
		namespace.Labels[v1alpha1.LabelAllowRuntime] = kind
	}
	b.Expect(b.api.Update(b.t.Context(), namespace)).To(Succeed())
}

func (b *fixture) expectForbidden() {
	b.t.Helper()
	stalled := b.condition(v1alpha1.ConditionStalled)
	b.Expect(stalled.Status).To(Equal(metav1.ConditionTrue))
	b.Expect(stalled.Reason).To(Equal(v1alpha1.ReasonRuntimeForbidden))
	b.Expect(stalled.Message).To(And(ContainSubstring("namespace default"), ContainSubstring("berth.dev/allow-runtime=Host")))
	b.Expect(b.rt.Live(testUID)).To(BeEmpty())
}

func TestPermission_NothingStartsWithoutTheLabel(t *testing.T) {
	b := newGuardedFixture(t)
	b.reconcile()
	b.expectForbidden()
	b.Expect(b.object().Status.Incarnation).To(BeZero(), "the start is not recorded either")
	writes := b.writes
	b.Expect(b.reconcile().RequeueAfter).To(BeZero(), "a change of the namespace triggers the next reconcile")
	b.Expect(b.writes).To(Equal(writes), "a reconcile at rest writes nothing")

	b.permit("Docker")
	b.reconcile()
	b.expectForbidden()

	b.permit("Host")
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}))
}

func TestPermission_WithdrawalKeepsRunningProcess(t *testing.T) {
	b := newGuardedFixture(t)
	b.permit("Host")
	b.reconcile()
	b.reconcile()
	b.permit("")
	b.update(func(i *v1alpha1.Instance) { i.Spec.Process.Command = []string{"evil"}; i.Spec.RestartToken = "again" })
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}), "the running process is not stopped")
	b.Expect(b.condition(v1alpha1.ConditionReady).Status).To(Equal(metav1.ConditionTrue))
	b.Expect(b.condition(v1alpha1.ConditionDriftDetected).Reason).To(Equal(v1alpha1.ReasonRuntimeForbidden))

	b.rt.Exit(testUID, facts.Exit{Known: true, Code: 1})
	b.clock.SetTime(b.clock.Now().Add(time.Hour))
	b.reconcile()
	b.reconcile()
	b.expectForbidden()
}

// The cache still contains a label that has been removed. The reconciler decides from the cache, but reads the label without the cache before the start.
func TestPermission_IsReadWithoutCacheBeforeStart(t *testing.T) {
	b := newGuardedFixture(t)
	stale := true
	b.r.Permission.Cache = interceptor.NewClient(b.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := c.Get(ctx, key, o, opts...); err != nil || !stale {
				return err
			}
			o.SetLabels(map[string]string{v1alpha1.LabelAllowRuntime: "Host"})
			return nil
		},
	})
	b.Expect(b.reconcile().RequeueAfter).To(Equal(staleRequeue))
	b.Expect(b.rt.Live(testUID)).To(BeEmpty())
	stale = false
	b.reconcile()
	b.expectForbidden()
	b.permit("Host")
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}), "the recorded start is carried out once it is permitted")
}

// A pre-start is not preceded by a write, but the permission is checked nevertheless.
func TestPermission_IsCheckedBeforePreStart(t *testing.T) {
	b := newGuardedFixture(t)
	v := &scope{object: b.object(), step: lifecycle.Step{Action: lifecycle.StartProcess, Incarnation: 1, PreStart: true}, runtime: b.rt, now: b.clock.Now()}
	v.base = copyOf(v.object)
	b.Expect(b.r.preStart(t.Context(), v)).To(MatchError(consistency.ErrStale))
	b.Expect(b.rt.Live(testUID)).To(BeEmpty())
}

func TestPermission_FollowsPolicyParameters(t *testing.T) {
	for _, c := range []struct {
		name      string
		data      map[string]string
		permitted bool
	}{
		{"all", map[string]string{"runtimes": "*"}, true},
		{"named", map[string]string{"runtimes": "# on machines\nPod\n Host \n"}, true},
		{"another", map[string]string{"runtimes": "Pod"}, false},
		{"the namespace", map[string]string{"runtimes": "Pod", "runtimes.default": "Host"}, true},
		{"not the namespace", map[string]string{"runtimes": "*", "runtimes.default": ""}, false},
		{"nothing", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newGuardedFixture(t)
			b.Expect(b.api.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: PolicyConfigMap}, Data: c.data})).To(Succeed())
			b.reconcile()
			if !c.permitted {
				b.expectForbidden()
				return
			}
			b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}))
		})
	}
}

// A namespace that cannot be read permits nothing; the error is retried.
func TestPermission_IsDeniedForUnreadableNamespace(t *testing.T) {
	b := newGuardedFixture(t)
	b.permit("Host")
	refuses := interceptor.NewClient(b.api, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, testKey.Namespace, nil)
		},
	})
	b.r.Permission.Live = refuses
	_, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
	b.Expect(err).To(MatchError(ContainSubstring("check whether namespace default permits the runtime Host")))
	b.Expect(b.rt.Live(testUID)).To(BeEmpty())
}
