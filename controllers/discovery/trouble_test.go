// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

func TestFailedScan_KeepsTotalsAndReportsOnce(t *testing.T) {
	d := newDiscovery("default", "agents")
	w := newWorld(t, d)
	w.sessions.OfferSessions("default", foundSession("work"))
	w.Expect(w.reconcile(d).Status.Totals.Found).To(BeEquivalentTo(1))

	w.sessions.Away(errors.New("tmux is stuck"))
	result, err := w.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(d)})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(Equal(awayRetry))
	now := w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Reconciling RuntimeUnavailable"))
	message := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady).Message
	w.Expect(message).To(And(ContainSubstring("Source tmux: tmux is stuck"), ContainSubstring("source docker: ")))
	w.Expect(now.Status.Totals.Found).To(BeEquivalentTo(1), "a failed scan does not change the totals")
	w.Expect(now.Status.Found).To(HaveLen(1))
	w.Expect(w.events).To(HaveLen(2), "the failure is reported once: %v", w.events)

	w.sessions.Away(nil)
	w.Expect(trueConditions(w.reconcile(d))).To(Equal("Ready Discovered"))

	w.Runtimes = runtime.NewRegistry(runtime.NoRuntime{Reason: "This manager was started without a runtime."}, logr.Discard())
	now = w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Stalled RuntimeUnavailable"))
	w.Expect(meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionStalled).Message).To(ContainSubstring("started without a runtime"))

	w.Runtimes = runtime.NewRegistry(fake.New(w.ctx, w.clock), logr.Discard())
	w.Expect(meta.FindStatusCondition(w.reconcile(d).Status.Conditions, v1alpha1.ConditionStalled).Message).To(ContainSubstring("does not serve the runtime Tmux"))
}

func TestInvalidPattern_NamesSourceAndScansOthers(t *testing.T) {
	d := newDiscovery("default", "agents",
		v1alpha1.DiscoverySource{Name: "broken", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Pattern: "("}},
		v1alpha1.DiscoverySource{Name: "good", Type: v1alpha1.RuntimeTmux})
	w := newWorld(t, d)
	w.sessions.OfferSessions("default", foundSession("work"))
	now := w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Stalled InvalidPattern"))
	w.Expect(meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionStalled).Message).To(ContainSubstring("Source broken: "))
	w.Expect(now.Status.Totals.Created).To(BeEquivalentTo(1), "the other source is still scanned")
}

func TestLargePatterns_NameSourceAndScanEarlierOnes(t *testing.T) {
	attack := `(?s)(?:` + strings.Repeat(`.?`, 119) + `){1000}\x00`
	d := newDiscovery("default", "agents",
		v1alpha1.DiscoverySource{Name: "good", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Pattern: "^work$"}},
		v1alpha1.DiscoverySource{Name: "attack", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Pattern: attack}},
		v1alpha1.DiscoverySource{Name: "after", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Pattern: "x"}})
	w := newWorld(t, d)
	w.sessions.OfferSessions("default", foundSession("work"))
	now := w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Stalled InvalidPattern"))
	w.Expect(meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionStalled).Message).To(And(
		ContainSubstring("Source attack: "), ContainSubstring("2048"), ContainSubstring("source after: ")))
	w.Expect(now.Status.Totals.Created).To(BeEquivalentTo(1), "the source before it is still scanned")
}

func TestLargePattern_IsInvalidForManySessions(t *testing.T) {
	d := newDiscovery("default", "agents",
		v1alpha1.DiscoverySource{Name: "large", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Pattern: `(?:.?){1000}`}})
	w := newWorld(t, d)
	names := make([]runtime.Found, 30)
	for i := range names {
		names[i] = foundSession(strings.Repeat("x", 100) + strconv.Itoa(i))
	}
	w.sessions.OfferSessions("default", names...)
	now := w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Stalled InvalidPattern"))
	w.Expect(meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionStalled).Message).To(ContainSubstring("the names of 30 sessions"))
}

// A namespace without permission must not see the sessions and containers of a machine.
func TestDiscovery_ListsNothingForANamespaceWithoutPermission(t *testing.T) {
	d := newDiscovery("default", "agents")
	w := newWorld(t, d, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	w.sessions.OfferSessions("default", foundSession("work"))
	w.Expect(w.reconcile(d).Status.Found).To(HaveLen(1))
	w.Permission = &process.Permission{Cache: w.api, Live: w.api, Namespace: "berth-system"}
	now := w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Stalled RuntimeForbidden"))
	w.Expect(now.Status.Found).To(BeEmpty())
	message := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionStalled).Message
	w.Expect(message).To(And(ContainSubstring("Source tmux: "), ContainSubstring("; source docker: "), ContainSubstring("berth.dev/allow-runtime=Tmux")))

	w.Expect(w.api.Update(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{v1alpha1.LabelAllowRuntime: "Tmux"}}})).To(Succeed())
	now = w.reconcile(d)
	w.Expect(now.Status.Found).To(BeEmpty(), "nothing may be adopted")
	w.Expect(meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady).Reason).To(Equal(v1alpha1.ReasonRuntimeForbidden), "of the other source")

	w.sessions.OfferSessions("default", foundSession("work"), foundSession("private"))
	parameters := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: process.PolicyConfigMap}, Data: map[string]string{"adoption": "tmux:default/work"}}
	w.Expect(w.api.Create(w.ctx, parameters)).To(Succeed())
	w.Expect(w.reconcile(d).Status.Found).To(ConsistOf(HaveField("Name", "work")), "a session that may not be adopted is not listed")
}

// A namespace that may adopt nothing learns which key permits it.
func TestDiscovery_NamesMissingPermissionToAdopt(t *testing.T) {
	d := newDiscovery("default", "agents", v1alpha1.DiscoverySource{Name: "mine", Type: v1alpha1.RuntimeTmux})
	w := newWorld(t, d, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{v1alpha1.LabelAllowRuntime: "Tmux"}}})
	w.sessions.OfferSessions("default", foundSession("work"))
	w.Permission = &process.Permission{Cache: w.api, Live: w.api, Namespace: "berth-system"}
	now := w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Stalled AdoptionForbidden"))
	w.Expect(now.Status.Found).To(BeEmpty())
	w.Expect(meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionStalled).Message).To(
		And(ContainSubstring("Source mine: The adoption of tmux sessions is not permitted in namespace default"), ContainSubstring("adoption.default in ConfigMap")))
}

func TestStoppedDiscovery_ScansNothing(t *testing.T) {
	d := newDiscovery("default", "agents")
	w := newWorld(t, d)
	w.sessions.OfferSessions("default", foundSession("work"))
	d = w.reconcile(d)
	d.Spec.State = v1alpha1.DiscoveryStopped
	w.Expect(w.api.Update(w.ctx, d)).To(Succeed())
	w.sessions.OfferSessions("default", foundSession("work"), foundSession("more"))
	result, err := w.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(d)})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeZero())
	now := w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Ready Stopped"))
	w.Expect(now.Status.Totals.Found).To(BeEquivalentTo(1), "the last result stays")
	w.Expect(w.instances()).To(HaveLen(1))
}

func TestRefusedCreate_IsReportedInStatus(t *testing.T) {
	d := newDiscovery("default", "agents")
	w := newWorld(t, d)
	refused := errors.New("exceeded quota")
	w.Client = interceptor.NewClient(w.api, interceptor.Funcs{Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
		return forbiddenError(o.GetName(), refused)
	}})
	w.sessions.OfferSessions("default", foundSession("work"))
	now := w.reconcile(d)
	w.Expect(now.Status.Totals).To(Equal(v1alpha1.DiscoveryTotals{Found: 1, Skipped: 1}))
	w.Expect(now.Status.Found[0].Reason).To(Equal(v1alpha1.ReasonRefused))
	w.Expect(now.Status.Found[0].Message).To(ContainSubstring("exceeded quota"))
}

func TestStatus_BoundsListButNotTotals(t *testing.T) {
	d := newDiscovery("default", "agents")
	w := newWorld(t, d)
	var many []runtime.Found
	for i := range mostListed + 4 {
		many = append(many, foundSession(fmt.Sprintf("claude-%03d", i)))
	}
	w.sessions.OfferSessions("default", many...)
	now := w.reconcile(d)
	w.Expect(now.Status.Totals.Created).To(BeEquivalentTo(mostListed + 4))
	w.Expect(now.Status.Found).To(HaveLen(mostListed))
	w.Expect(w.instances()).To(HaveLen(mostListed + 4))
}

func TestDeletedDiscovery_CreatesNothing(t *testing.T) {
	d := newDiscovery("default", "agents")
	w := newWorld(t, d)
	w.sessions.OfferSessions("default", foundSession("work"))
	old := d.DeepCopy()
	w.Client = interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			old.DeepCopyInto(o.(*v1alpha1.InstanceDiscovery))
			return nil
		},
	})
	w.Expect(w.api.Delete(w.ctx, d)).To(Succeed())
	result, err := w.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(d)})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(Equal(consistency.RetryAfter))
	w.Expect(w.instances()).To(BeEmpty())
}

func forbiddenError(name string, why error) error {
	return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("instances").GroupResource(), name, why)
}
