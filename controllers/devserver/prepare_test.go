// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/owner"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
)

func instance(name string, uid types.UID) *v1alpha1.Instance {
	return &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid}}
}

func withInstance(name string) func(*v1alpha1.DevServer) {
	return func(dev *v1alpha1.DevServer) { dev.Spec.InstanceRef = &v1alpha1.LocalReference{Name: name} }
}

// stored reads the object from the API server.
func (s *fixture) stored(name string) *v1alpha1.DevServer {
	var dev v1alpha1.DevServer
	s.g.Expect(s.store.Get(s.ctx(), client.ObjectKey{Namespace: "default", Name: name}, &dev)).To(Succeed())
	return &dev
}

func ownerOf(uid types.UID, controller bool) metav1.OwnerReference {
	no := false
	reference := metav1.OwnerReference{APIVersion: "berth.dev/v1alpha1", Kind: "Instance", Name: "agent", UID: uid, BlockOwnerDeletion: &no}
	if controller {
		reference.Controller = &controller
	}
	return reference
}

func TestInstanceRef_SetsOwnerOnce(t *testing.T) {
	s := newFixture(t, instance("agent", "i1"), server("web", 0, withInstance("agent")))
	s.g.Expect(s.prepare(s.stored("web")).Blocked).To(BeNil())
	owned := s.stored("web")
	s.g.Expect(owned.OwnerReferences).To(Equal([]metav1.OwnerReference{ownerOf("i1", true)}))
	s.g.Expect(s.prepare(owned).Blocked).To(BeNil())
	s.g.Expect(s.stored("web").ResourceVersion).To(Equal(owned.ResourceVersion), "the owner is written only once")
}

func TestInstanceRef_StaleReadDoesNotSetOwner(t *testing.T) {
	s := newFixture(t, instance("agent", "i1"), server("web", 0, withInstance("agent")))
	old := s.stored("web")
	changed := s.stored("web")
	changed.Labels = map[string]string{"a": "b"}
	s.g.Expect(s.store.Update(s.ctx(), changed)).To(Succeed())
	s.prepare(old)
	s.g.Expect(s.stored("web").OwnerReferences).To(BeEmpty(), "the status write fails on the same conflict, and the reconcile loop retries")
}

func TestInstanceRef_AddsOwnerBesideOtherController(t *testing.T) {
	s := newFixture(t, instance("agent", "i1"), server("web", 0, withInstance("agent"), func(dev *v1alpha1.DevServer) {
		yes := true
		dev.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.org/v1", Kind: "App", Name: "app", UID: "app", Controller: &yes}}
	}))
	s.g.Expect(s.prepare(s.stored("web")).Blocked).To(BeNil())
	s.g.Expect(s.stored("web").OwnerReferences).To(ContainElement(ownerOf("i1", false)))
}

func TestInstanceRef_BlocksWithoutLiveInstance(t *testing.T) {
	doomed := instance("doomed", "i2")
	now := metav1.NewTime(epoch)
	doomed.DeletionTimestamp, doomed.Finalizers = &now, []string{v1alpha1.FinalizerProcess}
	s := newFixture(t, instance("agent", "i1"), doomed)
	for name, want := range map[string]string{
		"none":   "Instance none does not exist in namespace default; create it, or recreate this object without spec.instanceRef.",
		"doomed": "Instance doomed is being deleted, and this object with it.",
	} {
		s.g.Expect(s.prepare(server("web", 0, withInstance(name))).Blocked).To(HaveValue(Equal(
			lifecycle.Blocked{Reason: v1alpha1.ReasonInstanceMissing, Message: want, Retry: owner.Retry})), name)
	}
	orphan := server("web", 0, withInstance("agent"), func(dev *v1alpha1.DevServer) {
		dev.OwnerReferences = []metav1.OwnerReference{ownerOf("i0", true)}
	})
	s.g.Expect(s.prepare(orphan).Blocked).To(HaveValue(HaveField("Message", ContainSubstring("was deleted, and a new one has its name"))))
	s.g.Expect(orphan.Status.Port).To(BeZero())
}

func TestInstanceRef_SetsOwnerOfStoppedServer(t *testing.T) {
	s := newFixture(t, instance("agent", "i1"), server("web", 0, withInstance("agent"), stopped))
	s.ObserveStopped(s.ctx(), s.stored("web"))
	s.g.Expect(s.stored("web").OwnerReferences).To(HaveLen(1))
}

func TestPrepare_KeepsEarlierBlock(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0)
	start := &process.StartSpec{Blocked: &lifecycle.Blocked{Reason: v1alpha1.ReasonInvalidEnvironment}}
	s.g.Expect(s.Prepare(s.ctx(), dev, nil, start)).To(Succeed())
	s.g.Expect(start.Blocked.Reason).To(Equal(v1alpha1.ReasonInvalidEnvironment))
	s.g.Expect(dev.Status.Port).To(BeZero(), "a blocked server needs no port")
}

func TestStart_IsRecordedFirstUnlessStatusHoldsPorts(t *testing.T) {
	waiting := func(dev *v1alpha1.DevServer) {
		ended("Crashed")(dev)
		next := metav1.NewMicroTime(epoch.Add(time.Second))
		dev.Status.NextRestartTime = &next
		process.SetCondition(dev, epoch, v1alpha1.ConditionRestarting, metav1.ConditionTrue, v1alpha1.ReasonCrashed, "")
	}
	restarted := func(dev *v1alpha1.DevServer) { dev.Generation = 2 }
	for name, test := range map[string]struct {
		change      []func(*v1alpha1.DevServer)
		recordFirst bool
	}{
		"the first start":                {nil, true},
		"the first start on a set port":  {[]func(*v1alpha1.DevServer){fixedPort(8080)}, true},
		"a restart after a crash":        {[]func(*v1alpha1.DevServer){running(8080)}, false},
		"a restart after a back-off":     {[]func(*v1alpha1.DevServer){assignedPort(8080), waiting}, false},
		"a restart on another port":      {[]func(*v1alpha1.DevServer){fixedPort(8081), running(8080)}, true},
		"a start after a stop":           {[]func(*v1alpha1.DevServer){assignedPort(8080), ended("Stopped"), restarted}, true},
		"a restart behind a proxy":       {[]func(*v1alpha1.DevServer){running(publicPort(t)), behindProxy, backendPort(20003)}, false},
		"a restart that adds a proxy":    {[]func(*v1alpha1.DevServer){running(publicPort(t)), behindProxy}, true},
		"a restart that removes a proxy": {[]func(*v1alpha1.DevServer){running(8080), backendPort(20003)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			dev := server("web", 0, test.change...)
			before := dev.DeepCopy()
			start := s.prepare(dev)
			s.g.Expect(start.Blocked).To(BeNil())
			changed := dev.Status.Port != before.Status.Port || dev.Status.BackendPort != before.Status.BackendPort
			s.g.Expect(start.RecordFirst || changed).To(Equal(test.recordFirst))
		})
	}
}
