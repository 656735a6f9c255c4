// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// newDiscovery returns an InstanceDiscovery for the tmux server whose socket is named after the namespace.
func newDiscovery(namespace, name string) *v1alpha1.InstanceDiscovery {
	d := &v1alpha1.InstanceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.IntervalSeconds = ptr.To[int32](5)
	d.Spec.Sources = []v1alpha1.DiscoverySource{{Name: "mine", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Socket: namespace}}}
	return d
}

// createSessions creates sessions that a discovery can find and Berth can adopt, on the tmux server of the namespace.
func createSessions(namespace string, names ...string) {
	found := make([]runtime.Found, 0, len(names))
	for i, name := range names {
		tmux.Found(name)
		found = append(found, runtime.Found{ID: fmt.Sprintf("$%d", i), Name: name, Created: time.Unix(1_800_000_000, 0), Command: "claude"})
	}
	tmux.OfferSessions(namespace, found...)
}

// waitForTotals waits until the discovery has the given totals and the given kstatus.
func waitForTotals(ctx context.Context, d *v1alpha1.InstanceDiscovery, totals v1alpha1.DiscoveryTotals, rests status.Status) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
		g.Expect(d.Status.Totals).To(Equal(totals), "%+v", d.Status)
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(d)
		g.Expect(err).NotTo(HaveOccurred())
		result, err := status.Compute(&unstructured.Unstructured{Object: content})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.Status).To(Equal(rests), result.Message)
	}).Should(Succeed())
}

func instancesOf(ctx context.Context, namespace string) []v1alpha1.Instance {
	GinkgoHelper()
	var list v1alpha1.InstanceList
	Expect(k8s.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	return list.Items
}

var _ = Describe("an InstanceDiscovery", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) {
		namespace = newNamespace(ctx)
		DeferCleanup(func() { tmux.OfferSessions(namespace) })
	})

	It("adopts the sessions that it finds, and writes nothing while nothing changes", func(ctx context.Context) {
		createSessions(namespace, namespace+"_A", namespace+"-a")
		d := newDiscovery(namespace, "agents")
		Expect(k8s.Create(ctx, d)).To(Succeed())
		waitForTotals(ctx, d, v1alpha1.DiscoveryTotals{Found: 2, Created: 2, Adopted: 2}, status.CurrentStatus)
		made := instancesOf(ctx, namespace)
		Expect(made).To(HaveLen(2))
		for i := range made {
			waitForCondition(ctx, &made[i], v1alpha1.ConditionAdopted, metav1.ConditionTrue, v1alpha1.ReasonAdopted)
			waitForReady(ctx, &made[i])
		}

		By("repeating the discovery")
		version, searches := d.ResourceVersion, tmux.Searches()
		Eventually(tmux.Searches).Should(BeNumerically(">=", searches+3))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
		Expect(d.ResourceVersion).To(Equal(version))
		for i := range made {
			version := made[i].ResourceVersion
			get(ctx, Default, &made[i])
			Expect(made[i].ResourceVersion).To(Equal(version), "existing Instances are not written again")
		}

		By("deleting it, which stops nothing")
		Expect(k8s.Delete(ctx, d)).To(Succeed())
		Consistently(func() int { return len(instancesOf(ctx, namespace)) }).Should(Equal(2))
		for i := range made {
			Expect(tmux.Count(made[i].UID, fake.Stop)).To(BeZero())
			Expect(tmux.Live(made[i].UID)).NotTo(BeEmpty())
		}
	})

	It("creates a deleted Instance again, and does not change Instances of users", func(ctx context.Context) {
		mine := inSession(newInstance(namespace, "mine", "claude"), namespace+"-mine")
		mine.Spec.Runtime.Tmux.Socket, mine.Spec.Adoption = namespace, v1alpha1.AdoptionIfExists
		createSessions(namespace, namespace+"-a", namespace+"-mine")
		Expect(k8s.Create(ctx, mine)).To(Succeed())
		waitForReady(ctx, mine)
		d := newDiscovery(namespace, "agents")
		Expect(k8s.Create(ctx, d)).To(Succeed())
		waitForTotals(ctx, d, v1alpha1.DiscoveryTotals{Found: 2, Created: 1, Known: 1, Adopted: 2}, status.CurrentStatus)
		Expect(d.Status.Found[1]).To(Equal(v1alpha1.DiscoveredInstance{
			Source: "mine", Name: namespace + "-mine", ID: "$1", Outcome: v1alpha1.DiscoveryKnown, Reason: v1alpha1.ReasonAlreadyClaimed,
			InstanceRef: &v1alpha1.NamespacedReference{Namespace: namespace, Name: "mine"},
		}))
		version := mine.ResourceVersion
		var made *v1alpha1.Instance
		for _, object := range instancesOf(ctx, namespace) {
			if object.Name != "mine" {
				made = &object
			}
		}
		Expect(k8s.Delete(ctx, made)).To(Succeed())
		Eventually(func(g Gomega) {
			again := &v1alpha1.Instance{}
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(made), again)).To(Succeed())
			g.Expect(again.UID).NotTo(Equal(made.UID))
		}).Should(Succeed())
		waitForTotals(ctx, d, v1alpha1.DiscoveryTotals{Found: 2, Created: 1, Known: 1, Adopted: 2}, status.CurrentStatus)
		get(ctx, Default, mine)
		Expect(mine.ResourceVersion).To(Equal(version))
	})

	It("reports sources that it cannot search, and continues with the others", func(ctx context.Context) {
		createSessions(namespace, namespace+"-a")
		d := newDiscovery(namespace, "agents")
		d.Spec.Sources = append(d.Spec.Sources, v1alpha1.DiscoverySource{Name: "boxes", Type: v1alpha1.RuntimeDocker})
		Expect(k8s.Create(ctx, d)).To(Succeed())
		waitForTotals(ctx, d, v1alpha1.DiscoveryTotals{Found: 1, Created: 1, Adopted: 1}, status.FailedStatus)
		Expect(meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionStalled).Message).To(ContainSubstring("Source boxes: This manager does not serve the runtime Docker."))

		By("recovering after a failure of the runtime")
		tmux.Away(errors.New("tmux is stuck"))
		DeferCleanup(func() { tmux.Away(nil) })
		Expect(k8s.Patch(ctx, d, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"refreshToken":"now","sources":[
			{"name":"mine","type":"Tmux","tmux":{"socket":"`+namespace+`"}}]}}`)))).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
			reconciling := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionReconciling)
			g.Expect(reconciling.Reason).To(Equal(v1alpha1.ReasonRuntimeUnavailable))
			g.Expect(reconciling.Status).To(Equal(metav1.ConditionTrue))
			g.Expect(reconciling.Message).To(ContainSubstring("Source mine: tmux is stuck"))
		}).Should(Succeed())
		Expect(d.Status.Totals.Found).To(BeEquivalentTo(1))
		tmux.Away(nil)
		waitForTotals(ctx, d, v1alpha1.DiscoveryTotals{Found: 1, Created: 1, Adopted: 1}, status.CurrentStatus)
		Expect(d.Status.ObservedRefreshToken).To(Equal("now"))
	})

	It("creates one Instance for each session when several discoveries run at once", func(ctx context.Context) {
		other := newNamespace(ctx)
		createSessions(namespace, namespace+"-a", namespace+"-b", namespace+"-c")
		var all []*v1alpha1.InstanceDiscovery
		for _, where := range []string{namespace, other} {
			for _, name := range []string{"one", "two"} {
				d := newDiscovery(where, name)
				d.Spec.Sources[0].Tmux.Socket = namespace
				all = append(all, d)
			}
		}
		for _, d := range all {
			Expect(k8s.Create(ctx, d)).To(Succeed())
		}
		var created, known int32
		for _, d := range all {
			Eventually(func(g Gomega) {
				g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
				g.Expect(d.Status.Totals.Adopted).To(BeEquivalentTo(3), "%+v", d.Status)
			}).Should(Succeed())
			created, known = created+d.Status.Totals.Created, known+d.Status.Totals.Known
		}
		Expect(created).To(BeEquivalentTo(3), "each Instance was created by one discovery")
		Expect(known).To(BeEquivalentTo(9))
		Expect(append(instancesOf(ctx, namespace), instancesOf(ctx, other)...)).To(HaveLen(3))
	})
})
