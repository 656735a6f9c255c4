// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestReconcile_CreatesMissingInstancesOnce(t *testing.T) {
	d := newDiscovery("default", "agents")
	d.Spec.Template = v1alpha1.DiscoveryTemplate{Labels: map[string]v1alpha1.LabelText{"team": "web"}, Session: "pr-1"}
	w := newWorld(t, d)
	w.sessions.OfferSessions("default", foundSession("Foo_Bar"), foundSession("foo-bar"))
	w.sessions.OfferContainers(runtime.Found{ID: strings.Repeat("ab", 32), Name: "foo-bar", Command: "codex run", Created: begin})

	now := w.reconcile(d)
	w.Expect(trueConditions(now)).To(Equal("Ready Discovered"))
	w.Expect(now.Status.Totals).To(Equal(v1alpha1.DiscoveryTotals{Found: 3, Created: 3}))
	w.Expect(now.Status.LastDiscoveryTime.Time).To(BeTemporally("==", begin))
	w.Expect(w.events).To(ConsistOf(ContainSubstring("Normal Discovered Created 3 Instances: foo-bar-")))
	made := map[string]v1alpha1.Instance{}
	for _, object := range w.instances() {
		made[string(object.Spec.Runtime.Type)+" "+object.Spec.DisplayName] = object
	}
	w.Expect(made).To(HaveLen(3), "a session and a container of the same name get one Instance each")
	one := made["Tmux Foo_Bar"]
	w.Expect(one.Labels).To(Equal(map[string]string{"team": "web", v1alpha1.LabelDiscoveredBy: "agents", v1alpha1.LabelSession: "pr-1"}))
	w.Expect(one.OwnerReferences).To(BeEmpty(), "Instances outlive the discovery")
	w.Expect(one.Spec.Adoption).To(Equal(v1alpha1.AdoptionRequired))
	w.Expect(one.Spec.DeletionPolicy).To(Equal(v1alpha1.DeletionOrphan))
	w.Expect(one.Spec.RestartPolicy).To(Equal(v1alpha1.RestartNever))
	w.Expect(one.Spec.Process.Command).To(Equal([]string{"claude"}))
	w.Expect(one.Spec.Runtime.Tmux).To(Equal(&v1alpha1.TmuxRuntime{Session: "Foo_Bar", Socket: "default"}))
	w.Expect(made["Docker foo-bar"].Spec.Runtime.Docker.Container).To(Equal("foo-bar"), "the name, which the policies compare")

	writes := w.writes.Load()
	for range 3 {
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.reconcile(d)
	}
	w.Reconciler = w.newReconciler()
	now = w.reconcile(d)
	w.Expect(w.writes.Load()).To(Equal(writes), "an unchanged result is not written")
	w.Expect(now.Status.Totals.Created).To(BeEquivalentTo(3))
	w.Expect(w.events).To(HaveLen(1))
}

func TestRefreshToken_TriggersScan(t *testing.T) {
	d := newDiscovery("default", "agents")
	w := newWorld(t, d)
	d = w.reconcile(d)
	d.Spec.RefreshToken = "now"
	w.Expect(w.api.Update(w.ctx, d)).To(Succeed())
	w.clock.SetTime(begin.Add(time.Second))
	d = w.reconcile(d)
	w.Expect(d.Status.ObservedRefreshToken).To(Equal("now"))
	w.Expect(d.Status.LastDiscoveryTime.Time).To(BeTemporally("==", begin.Add(time.Second)))
	d.Spec.RefreshToken = "" // removed by the owner of the spec
	w.Expect(w.api.Update(w.ctx, d)).To(Succeed())
	w.Expect(w.reconcile(d).Status.ObservedRefreshToken).To(Equal("now"))
}

// tmuxInstance returns an Instance that names a session of the default tmux server.
func tmuxInstance(namespace, name, sessionName string, change func(*v1alpha1.Instance)) *v1alpha1.Instance {
	object := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(begin)}}
	object.Spec.Adoption = v1alpha1.AdoptionIfExists
	object.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: sessionName, Socket: "default"}}
	if change != nil {
		change(object)
	}
	return object
}

func refTo(namespace, name string) *v1alpha1.NamespacedReference {
	return &v1alpha1.NamespacedReference{Namespace: namespace, Name: name}
}

func TestReconcile_SkipsClaimedAndUnfitSessions(t *testing.T) {
	owned := func(name string, owner types.UID) runtime.Found {
		found := foundSession(name)
		found.Owned, found.Owner = true, owner
		return found
	}
	unfit := foundSession("unfit")
	unfit.Unfit = "no program is running in the session"
	boxed := tmuxInstance("default", "boxed", "", func(i *v1alpha1.Instance) {
		i.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeDocker, Docker: &v1alpha1.DockerRuntime{Container: "box"}}
	})
	for name, test := range map[string]struct {
		there     []client.Object
		session   runtime.Found
		container bool
		want      v1alpha1.DiscoveredInstance
	}{
		"claimed here": {
			[]client.Object{tmuxInstance("default", "mine", "work", nil)}, foundSession("work"), false,
			v1alpha1.DiscoveredInstance{Outcome: v1alpha1.DiscoveryKnown, Reason: v1alpha1.ReasonAlreadyClaimed, InstanceRef: refTo("default", "mine")},
		},
		"claimed in another namespace": {
			[]client.Object{tmuxInstance("other", "mine", "work", nil)}, foundSession("work"), false,
			v1alpha1.DiscoveredInstance{Outcome: v1alpha1.DiscoveryKnown, Reason: v1alpha1.ReasonAlreadyClaimed}, // an Instance of another namespace is not named
		},
		"claimed by two, held by the older one": {
			[]client.Object{
				tmuxInstance("default", "young", "work", func(i *v1alpha1.Instance) { i.CreationTimestamp = metav1.NewTime(begin.Add(time.Minute)) }),
				tmuxInstance("default", "old", "work", nil),
			},
			foundSession("work"), false,
			v1alpha1.DiscoveredInstance{Outcome: v1alpha1.DiscoveryKnown, Reason: v1alpha1.ReasonAlreadyClaimed, InstanceRef: refTo("default", "old")},
		},
		"claimed by a stopped Instance": {
			[]client.Object{tmuxInstance("default", "mine", "work", func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateStopped })}, foundSession("work"), false,
			v1alpha1.DiscoveredInstance{Outcome: v1alpha1.DiscoveryKnown, Reason: v1alpha1.ReasonAlreadyClaimed, InstanceRef: refTo("default", "mine")},
		},
		"a container that is claimed by name": {
			[]client.Object{boxed}, runtime.Found{ID: strings.Repeat("cd", 32), Name: "box", Created: begin}, true,
			v1alpha1.DiscoveredInstance{Outcome: v1alpha1.DiscoveryKnown, Reason: v1alpha1.ReasonAlreadyClaimed, InstanceRef: refTo("default", "boxed")},
		},
		"started by Berth": {
			[]client.Object{tmuxInstance("default", "mine", "x", func(i *v1alpha1.Instance) { i.Spec.Adoption = v1alpha1.AdoptionNever })}, owned("work", "mine"), false,
			v1alpha1.DiscoveredInstance{
				Outcome: v1alpha1.DiscoverySkipped, Reason: v1alpha1.ReasonBerthsOwn, InstanceRef: refTo("default", "mine"), Message: "Started by Berth.",
			},
		},
		"adopted, and renamed since": {
			[]client.Object{tmuxInstance("default", "mine", "before", nil)}, owned("after", "mine"), false,
			v1alpha1.DiscoveredInstance{Outcome: v1alpha1.DiscoveryKnown, Reason: v1alpha1.ReasonAlreadyClaimed, InstanceRef: refTo("default", "mine")},
		},
		"owned by another Berth": {
			nil, owned("work", ""), false,
			v1alpha1.DiscoveredInstance{
				Outcome: v1alpha1.DiscoverySkipped, Reason: v1alpha1.ReasonForeignBerth,
				Message: "Managed by another Berth installation, or by an object that was just deleted.",
			},
		},
		"unfit": {
			nil, unfit, false,
			v1alpha1.DiscoveredInstance{
				Outcome: v1alpha1.DiscoverySkipped, Reason: v1alpha1.ReasonUnfit, Message: "Cannot be adopted: no program is running in the session.",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDiscovery("default", "agents")
			w := newWorld(t, append(test.there, d)...)
			test.want.Source, test.want.Name, test.want.ID = "tmux", test.session.Name, test.session.ID
			if test.container {
				w.sessions.OfferContainers(test.session)
				test.want.Source, test.want.ID = "docker", test.session.ID[:shortID]
			} else {
				w.sessions.OfferSessions("default", test.session)
			}
			versions := map[string]string{}
			for _, object := range w.instances() {
				versions[object.Name] = object.ResourceVersion
			}
			now := w.reconcile(d)
			w.Expect(now.Status.Found).To(Equal([]v1alpha1.DiscoveredInstance{test.want}))
			w.Expect(w.instances()).To(HaveLen(len(test.there)))
			for _, object := range w.instances() {
				w.Expect(object.ResourceVersion).To(Equal(versions[object.Name]), "existing Instances are not changed")
			}
		})
	}
}

func TestReconcile_SessionOfForbiddenInstanceIsFree(t *testing.T) {
	d := newDiscovery("default", "agents")
	permitted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{v1alpha1.LabelAllowRuntime: "Tmux"}}}
	adoptable := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: process.PolicyConfigMap}, Data: map[string]string{"adoption": "tmux:default/*"}}
	w := newWorld(t, d, permitted, adoptable, tmuxInstance("forbidden", "theirs", "work", nil))
	w.Permission = &process.Permission{Cache: w.api, Live: w.api, Namespace: "berth-system"}
	w.sessions.OfferSessions("default", foundSession("work"))
	w.Expect(w.reconcile(d).Status.Totals.Created).To(BeEquivalentTo(1))
}

func TestReconcile_SkipsTakenName(t *testing.T) {
	name := objectName(&candidate{kind: v1alpha1.RuntimeTmux, socket: "default", Found: foundSession("work")})
	for what, test := range map[string]struct {
		object *v1alpha1.Instance
		reason string
	}{
		"by another Instance": {tmuxInstance("default", name, "something else", nil), v1alpha1.ReasonNameTaken},
		"by a stopped one of this discovery": {
			tmuxInstance("default", name, "work", func(i *v1alpha1.Instance) {
				i.Labels = map[string]string{v1alpha1.LabelDiscoveredBy: "agents"}
				i.Spec.State = v1alpha1.StateStopped
			}), v1alpha1.ReasonEnded,
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := newDiscovery("default", "agents")
			w := newWorld(t, d, test.object)
			w.sessions.OfferSessions("default", foundSession("work"))
			for range 2 {
				now := w.reconcile(d)
				w.Expect(now.Status.Found).To(HaveLen(1))
				w.Expect(now.Status.Found[0].Outcome).To(Equal(v1alpha1.DiscoverySkipped))
				w.Expect(now.Status.Found[0].Reason).To(Equal(test.reason))
				w.Expect(now.Status.Found[0].InstanceRef).To(Equal(refTo("default", name)))
			}
			w.Expect(w.instances()).To(HaveLen(1))
		})
	}
}

func TestReconcile_CreatesOneInstanceForTwoDiscoveries(t *testing.T) {
	a, b := newDiscovery("a", "agents"), newDiscovery("b", "agents")
	w := newWorld(t, a, b)
	// The cache does not contain the new Instances yet.
	blind := interceptor.NewClient(w.api, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil }})
	w.Client = blind
	w.sessions.OfferSessions("default", foundSession("work"))
	w.Expect(w.reconcile(a).Status.Totals.Created).To(BeEquivalentTo(1))
	now := w.reconcile(b)
	w.Expect(now.Status.Found).To(HaveLen(1))
	w.Expect(now.Status.Found[0].Outcome).To(Equal(v1alpha1.DiscoveryKnown))
	w.Expect(now.Status.Found[0].InstanceRef).To(BeNil(), "the Instance is in another namespace")
	w.Expect(w.instances()).To(HaveLen(1))
	w.Expect(w.reconcile(a).Status.Totals.Created).To(BeEquivalentTo(1), "the Instance still counts as created by this discovery")
}
