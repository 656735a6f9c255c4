// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/manager"
)

// policyNamespace is the namespace of the ConfigMap with the policy parameters in these specs.
const policyNamespace = "default"

var _ = Describe("A manager that checks namespaces", Serial, func() {
	BeforeEach(func() {
		stopManager()
		stopManager = func() {}
		DeferCleanup(func() {
			stopManager()
			stopManager = startManager()
		})
		stopManager = startManagerWith(config, func(o *manager.Options) { o.PolicyNamespace = policyNamespace })
	})

	// setAllowedRuntime sets the label of the namespace that permits a runtime, or removes the label if kind is empty.
	setAllowedRuntime := func(ctx context.Context, namespace, kind string) {
		GinkgoHelper()
		labels := `{"metadata":{"labels":{"` + v1alpha1.LabelAllowRuntime + `":` + map[bool]string{true: "null", false: `"` + kind + `"`}[kind == ""] + `}}}`
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		Expect(k8s.Patch(ctx, object, client.RawPatch("application/merge-patch+json", []byte(labels)))).To(Succeed())
	}

	It("starts objects of every kind only after the namespace was labeled", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "build"}}
		strategy.Spec.Process.Command = []string{"make"}
		Expect(k8s.Create(ctx, strategy)).To(Succeed())
		dev := newServer(namespace, "web")
		server := &v1alpha1.LanguageServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "go"}}
		server.Spec.Language, server.Spec.Process.Command, server.Spec.Workspace.Folders = "go", []string{"gopls"}, []string{"/src"}
		run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "build"}}
		run.Spec.StrategyRef.Name = strategy.Name
		session := newInstance(namespace, "session", "claude")
		session.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux}
		objects := []process.Object{newInstance(namespace, "agent", "claude"), session, dev, server, run}
		for _, object := range objects {
			Expect(k8s.Create(ctx, object)).To(Succeed())
		}
		for _, object := range objects {
			message := waitForStalled(ctx, object, v1alpha1.ReasonRuntimeForbidden)
			Expect(message).To(ContainSubstring(v1alpha1.LabelAllowRuntime), object.GetName())
			Expect(append(rt.Known(), tmux.Known()...)).NotTo(ContainElement(object.GetUID()), object.GetName())
		}
		setAllowedRuntime(ctx, namespace, "Host")
		for _, object := range objects {
			if object != process.Object(session) {
				Eventually(rt.Known).Should(ContainElement(object.GetUID()), object.GetName())
			}
		}
		waitForStalled(ctx, session, v1alpha1.ReasonRuntimeForbidden)
	})

	It("starts nothing new after the label was removed, and does not stop running processes", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		setAllowedRuntime(ctx, namespace, "Host")
		instance := newInstance(namespace, "agent", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)

		setAllowedRuntime(ctx, namespace, "")
		update(ctx, instance, func() { instance.Spec.Process.Command = []string{"evil"} })
		waitForCondition(ctx, instance, v1alpha1.ConditionDriftDetected, metav1.ConditionTrue, v1alpha1.ReasonRuntimeForbidden)
		waitForReady(ctx, instance)
		Expect(rt.Live(instance.UID)).To(Equal([]int64{1}))
		started, _ := rt.Process(instance.UID)
		Expect(started.Command).To(Equal([]string{"claude"}))
	})

	It("leaves the port of an object that may not run to others", func(ctx context.Context) {
		forbidden, permitted := newNamespace(ctx), newNamespace(ctx)
		setAllowedRuntime(ctx, permitted, "Host")
		const port = 18341
		older, web := onPort(newServer(forbidden, "older"), port), onPort(newServer(permitted, "web"), port)
		Expect(k8s.Create(ctx, older)).To(Succeed())
		waitForStalled(ctx, older, v1alpha1.ReasonRuntimeForbidden)
		Expect(k8s.Create(ctx, web)).To(Succeed())
		Eventually(rt.Known).Should(ContainElement(web.UID))

		setAllowedRuntime(ctx, forbidden, "Host")
		Expect(waitForStalled(ctx, older, v1alpha1.ReasonPortClaimed)).To(HavePrefix("Port %d belongs to a DevServer in another namespace,", port))
	})

	It("follows the parameters of the policies", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		instance := newInstance(namespace, "agent", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForStalled(ctx, instance, v1alpha1.ReasonRuntimeForbidden)
		parameters := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: policyNamespace, Name: process.PolicyConfigMap}, Data: map[string]string{"runtimes." + namespace: "Host"},
		}
		Expect(k8s.Create(ctx, parameters)).To(Succeed())
		DeferCleanup(func(ctx context.Context) {
			Expect(k8s.Delete(ctx, parameters)).To(Or(Succeed(), WithTransform(apierrors.IsNotFound, BeTrue())))
		})
		waitForReady(ctx, instance)
	})
})
