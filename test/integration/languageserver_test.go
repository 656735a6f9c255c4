// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
)

// The runtime of these tests has no multiplexer, so a server is ready as soon as it runs.
var _ = Describe("a LanguageServer", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	It("runs with the configuration in its spec, records its restarts, and stops", func(ctx context.Context) {
		server := &v1alpha1.LanguageServer{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "go"},
			Spec: v1alpha1.LanguageServerSpec{
				ProcessSpec: v1alpha1.ProcessSpec{Process: v1alpha1.ProcessTemplate{Command: []string{"gopls"}}},
				Language:    "go", Workspace: v1alpha1.Workspace{Folders: []string{"/src", "/lib"}},
				Settings: &apiruntime.RawExtension{Raw: []byte(`{"gopls":{"staticcheck":true}}`)},
			},
		}
		Expect(k8s.Create(ctx, server)).To(Succeed())
		waitForReady(ctx, server)
		waitForConditionAbsent(ctx, server, v1alpha1.ConditionInitialized)
		process, started := rt.Process(server.UID)
		Expect(started).To(BeTrue())
		Expect(process.Dir).To(Equal("/src"))
		var config lsp.Config
		Expect(json.Unmarshal(process.Config, &config)).To(Succeed())
		Expect(config.Folders).To(Equal([]string{"/src", "/lib"}))
		Expect(config.Settings).To(MatchJSON(`{"gopls":{"staticcheck":true}}`))
		expectNoWrites(ctx, server)

		By("restarting it for a request, a changed setting and a crash")
		update(ctx, server, func() { server.Spec.RestartToken = "1" })
		waitForRestart := func(reason string, incarnation int64) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				get(ctx, g, server)
				restarts := server.Status.RecentRestarts
				g.Expect(restarts).NotTo(BeEmpty())
				last := restarts[len(restarts)-1]
				g.Expect(last.Incarnation).To(Equal(incarnation))
				g.Expect(last.Reason).To(Equal(reason))
				g.Expect(last.TookMilliseconds).NotTo(BeNil())
			}).Should(Succeed())
		}
		waitForRestart(v1alpha1.ReasonRequested, 2)
		waitForReady(ctx, server)
		update(ctx, server, func() { server.Spec.Settings.Raw = []byte(`{"gopls":{"staticcheck":false}}`) })
		waitForRestart(v1alpha1.ReasonSpecChanged, 3)
		waitForReady(ctx, server)
		rt.Exit(server.UID, facts.Exit{Known: true, Signal: "SIGKILL"})
		waitForRestart(v1alpha1.ReasonCrashed, 4)
		waitForReady(ctx, server)
		Expect(server.Status.RecentRestarts).To(HaveLen(3))
		Expect(server.Status.RecentRestarts[2].Message).To(Equal("terminated by SIGKILL"))

		By("stopping it")
		update(ctx, server, func() { server.Spec.State = v1alpha1.StateStopped })
		waitForReadyWithoutProcess(ctx, server, v1alpha1.ReasonStopped)
		waitForConditionAbsent(ctx, server, v1alpha1.ConditionInitialized)
		Expect(liveIncarnations(server)()).To(BeEmpty())
		Expect(k8s.Delete(ctx, server)).To(Succeed())
		waitUntilGone(ctx, server)
	})
})
