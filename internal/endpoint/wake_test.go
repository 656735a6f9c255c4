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

	"github.com/berth-dev/berth/api/v1alpha1"
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
	go func() { typed <- caller.Type(ctx, shell, "hello") }()
	g.Eventually(woken.Load, timeout).Should(Equal(int32(1)), "the controller is notified of the use")
	g.Consistently(typed, "200ms").ShouldNot(Receive(), "input waits until the process runs")
	g.Expect(f.book.Rest("uid-shell")).To(BeFalse(), "the Instance must not sleep while a client waits")
	f.setReady(ctx, g, v1alpha1.ReasonRunning, true)
	g.Eventually(typed, timeout).Should(Receive(BeNil()))
	g.Eventually(func() bool { return f.book.Rest("uid-shell") }, timeout).Should(BeTrue(), "the Instance may sleep after the client has left")

	// Input also waits for a sleep that has been decided but is not in the status yet.
	go func() { typed <- caller.Type(ctx, shell, "again") }()
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
	g.Expect(f.client(t, good).Type(ctx, object, "hello")).To(MatchError(ContainSubstring("runs in a Pod")))
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
