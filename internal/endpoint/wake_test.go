// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"io"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

// setReady sets the reason of the condition Ready of the instance, with or without a process.
func (f *fixture) setReady(ctx context.Context, g *GomegaWithT, reason string, running bool) {
	shell := &v1alpha1.Instance{}
	g.Expect(f.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "shell"}, shell)).To(Succeed())
	shell.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reason}}
	shell.Status.Process = nil
	if running {
		shell.Status.Process = &v1alpha1.ProcessReference{Incarnation: 2}
	}
	g.Expect(f.api.Update(ctx, shell)).To(Succeed())
	f.instances.Update(shell, shell)
}

// TestType_WaitsWithoutRequests counts the requests to the API server of clients that wait for an idle Instance. With a poll every 50 ms it counted 20 per second
// and client.
func TestType_WaitsWithoutRequests(t *testing.T) {
	f, g, ctx := newFixture(t), NewWithT(t), t.Context()
	caller, shell := f.client(t, good), Object{"default", "instances", "shell"}
	f.setReady(ctx, g, v1alpha1.ReasonIdle, false)
	const clients = 5
	typed := make(chan error, clients)
	for range clients {
		go func() { typed <- caller.Type(ctx, shell, runtime.Keystrokes{Text: "hello"}) }()
	}
	waiting := func() int {
		f.server.waiting.mu.Lock()
		defer f.server.waiting.mu.Unlock()
		return len(f.server.waiting.requests)
	}
	g.Eventually(waiting, timeout).Should(Equal(clients))
	g.Eventually(f.reads.Load, timeout).Should(BeEquivalentTo(clients), "one for each request, to check that the object exists")
	for range 10 {
		f.setReady(ctx, g, v1alpha1.ReasonIdle, false) // changes that do not wake it
	}
	g.Consistently(f.reads.Load, "1s").Should(BeEquivalentTo(clients))
	f.setReady(ctx, g, v1alpha1.ReasonRunning, true)
	for range clients {
		g.Eventually(typed, timeout).Should(Receive(BeNil()))
	}
	g.Expect(f.reads.Load()).To(BeEquivalentTo(clients))
	g.Expect(waiting()).To(BeZero())
}

func TestType_IgnoresOlderObjectInCache(t *testing.T) {
	f, g, ctx := newFixture(t), NewWithT(t), t.Context()
	old := &v1alpha1.Instance{}
	f.setReady(ctx, g, v1alpha1.ReasonRunning, true)
	g.Expect(f.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "shell"}, old)).To(Succeed())
	f.setReady(ctx, g, v1alpha1.ReasonIdle, false)
	asleep := &v1alpha1.Instance{}
	g.Expect(f.api.Get(ctx, client.ObjectKeyFromObject(old), asleep)).To(Succeed())
	f.server.opts.Instances = &instances{fake.NewClientBuilder().WithScheme(f.api.Scheme()).WithObjects(old).Build(), nil}
	woken, refused := f.server.woken(ctx, target{object: asleep}, asleep)
	g.Expect(refused).To(BeNil())
	g.Expect(woken).To(BeFalse(), "the object in the cache is from before the sleep")
}

// typeWhileAsleep starts to type into a sleeping Instance, and returns when the server has received the request. typed receives the result.
func (f *fixture) typeWhileAsleep(t *testing.T) (instance *v1alpha1.Instance, typed chan error) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	caller, shell := f.client(t, good), Object{"default", "instances", "shell"}
	f.setReady(ctx, g, v1alpha1.ReasonIdle, false)
	typed = make(chan error, 1)
	go func() { typed <- caller.Type(ctx, shell, runtime.Keystrokes{Text: "hello"}) }()
	g.Eventually(f.reads.Load, timeout).Should(BeEquivalentTo(1))
	instance = &v1alpha1.Instance{}
	g.Expect(f.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "shell"}, instance)).To(Succeed())
	return instance, typed
}

func TestType_EndsWhenSleepingInstanceIsDeleted(t *testing.T) {
	f, g, ctx := newFixture(t), NewWithT(t), t.Context()
	instance, typed := f.typeWhileAsleep(t)
	g.Expect(f.api.Delete(ctx, instance)).To(Succeed())
	f.instances.Delete(instance)
	g.Eventually(typed, timeout).Should(Receive(MatchError(ContainSubstring("was deleted"))))
}

// A finalizer of another program can keep an Instance that is being deleted for any time.
func TestType_EndsWhileSleepingInstanceIsBeingDeleted(t *testing.T) {
	f, g, ctx := newFixture(t), NewWithT(t), t.Context()
	instance, typed := f.typeWhileAsleep(t)
	instance.Finalizers = []string{"example.com/held"}
	g.Expect(f.api.Update(ctx, instance)).To(Succeed())
	g.Expect(f.api.Delete(ctx, instance)).To(Succeed())
	g.Expect(f.api.Get(ctx, client.ObjectKeyFromObject(instance), instance)).To(Succeed())
	instance.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDeleting}}
	g.Expect(f.api.Update(ctx, instance)).To(Succeed())
	f.instances.Update(instance, instance)
	g.Eventually(typed, timeout).Should(Receive())
}

func TestType_WakesIdleInstance(t *testing.T) {
	f, g, ctx := newFixture(t), NewWithT(t), t.Context()
	caller, shell := f.client(t, good), Object{"default", "instances", "shell"}
	var woken atomic.Int32
	f.book.OnUse(func(uid types.UID) {
		if uid == "uid-shell" {
			woken.Add(1)
		}
	})
	f.setReady(ctx, g, v1alpha1.ReasonIdle, false)
	typed := make(chan error, 1)
	go func() { typed <- caller.Type(ctx, shell, runtime.Keystrokes{Text: "hello"}) }()
	g.Eventually(woken.Load, timeout).Should(Equal(int32(1)), "the controller is notified of the use")
	g.Consistently(typed, "200ms").ShouldNot(Receive(), "input waits until the process runs")
	g.Expect(f.book.Rest("uid-shell")).To(BeFalse(), "the Instance must not sleep while a client waits")
	f.setReady(ctx, g, v1alpha1.ReasonRunning, true)
	g.Eventually(typed, timeout).Should(Receive(BeNil()))
	g.Eventually(func() bool { return f.book.Rest("uid-shell") }, timeout).Should(BeTrue(), "the Instance may sleep after the client has left")

	// Input also waits for a sleep that has been decided but is not in the status yet.
	go func() { typed <- caller.Type(ctx, shell, runtime.Keystrokes{Text: "again"}) }()
	g.Eventually(woken.Load, timeout).Should(Equal(int32(2)))
	g.Consistently(typed, "200ms").ShouldNot(Receive(), "input waits while the process is about to stop")
	f.book.Rise("uid-shell")
	g.Eventually(typed, timeout).Should(Receive(BeNil()))
}

func TestPods_AreRefused(t *testing.T) {
	f, g, ctx := newFixture(t), NewWithT(t), t.Context()
	shell := &v1alpha1.Instance{}
	g.Expect(f.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "shell"}, shell)).To(Succeed())
	shell.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{Image: "shell"}}
	g.Expect(f.api.Update(ctx, shell)).To(Succeed())
	object := Object{"default", "instances", "shell"}
	g.Expect(f.client(t, good).Type(ctx, object, runtime.Keystrokes{Text: "hello"})).To(MatchError(ContainSubstring("runs in a Pod")))
	_, err := f.client(t, good).Log(ctx, object, LogOptions{Tail: -1, Follow: true})
	g.Expect(err).To(MatchError(ContainSubstring("the output of Pods comes from the API server")))

	dev := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "in-pod"}}
	dev.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod}
	g.Expect(f.api.Create(ctx, dev)).To(Succeed())
	_, err = f.client(t, good).Log(ctx, Object{"default", "devservers", "in-pod"}, LogOptions{Tail: -1, Follow: true})
	g.Expect(err).To(MatchError(ContainSubstring("the output of Pods comes from the API server")))
}

func TestLog_ReturnsScreenWithoutStoredOutput(t *testing.T) {
	f, g := newFixture(t), NewWithT(t)
	f.stub.screen = "Go on? [y/N]"
	for _, follow := range []bool{false, true} {
		stream, err := f.client(t, good).Log(t.Context(), Object{"default", "instances", "shell"}, LogOptions{Tail: -1, Follow: follow})
		g.Expect(err).NotTo(HaveOccurred())
		text, err := io.ReadAll(stream)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(text)).To(Equal("uid-shell: Go on? [y/N]\n"))
		g.Expect(stream.Screen).To(BeTrue())
		g.Expect(stream.Close()).To(Succeed())
	}
	f.stub.logs["uid-shell"] = newLog("kept")
	stream, err := f.client(t, good).Log(t.Context(), Object{"default", "instances", "shell"}, LogOptions{Tail: -1})
	g.Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(stream)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stream.Close()).To(Succeed())
	g.Expect(string(text)).To(Equal("kept"))
	g.Expect(stream.Screen).To(BeFalse())
}
