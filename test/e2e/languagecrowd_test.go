// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/lspclient"
)

var _ = Describe("A language server with many clients", func() {
	It("restarts once for the same request of many callers, without an error for any client", NodeTimeout(2*lifecycleTimeout), func(ctx context.Context) {
		const crowd, restarts = 8, 3
		t := languageProjects["gopls"]
		s, folder := t.languageServer(ctx, "crowd")
		s.create(ctx)
		s.waitUntilReady(ctx)
		var clients []*lspUser
		for i := range crowd {
			clients = append(clients, t.connectUser(ctx, fmt.Sprintf("client %d", i), s, folder, socketConnector(ctx, s)))
		}
		busy := startRequests(ctx, clients)
		for n := range int64(restarts) {
			By(fmt.Sprintf("restarting the server, request %d of %d", n+1, restarts))
			restartFromAll(ctx, s, strconv.FormatInt(n, 10), crowd)
			s.waitForIncarnation(ctx, n+2)
		}
		By("killing the server")
		signalTo(s.status().Process.PID, s.mark, syscall.SIGKILL)
		s.waitForIncarnation(ctx, restarts+2)
		busy()
		forAll(clients, func(p *lspUser) { p.waitForCorrectAnswers(ctx) })
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.status().Incarnation).To(BeEquivalentTo(restarts+2), "one new incarnation for each request, and one for the crash")
		forAll(clients, func(p *lspUser) { p.disconnect(ctx) })
	})

	DescribeTable("delivers the diagnostics of an unsaved text while another client reads", func(ctx context.Context, server string) {
		const edits = 5
		t := languageProjects[server]
		s, folder := t.languageServer(ctx, "reader")
		s.create(ctx).waitUntilReady(ctx)
		editor := t.connectUser(ctx, "the editor", s, folder, socketConnector(ctx, s))
		reader := lspUserWithoutDocument(ctx, t, s, folder)
		editor.waitForCorrectAnswers(ctx)
		wrong := containsComplaint(t.complaint)
		right := func(d lspclient.Diagnostics) bool { return !wrong(d) }
		check := func() {
			editor.edit(t.mistake)
			_, err := editor.WaitForDiagnostics(ctx, editor.uri, wrong)
			Expect(err).NotTo(HaveOccurred())
			editor.edit(t.files[t.main])
			_, err = editor.WaitForDiagnostics(ctx, editor.uri, right)
			Expect(err).NotTo(HaveOccurred())
		}

		By("reading another document all the time")
		stopReading := readSymbols(ctx, reader)
		for range edits {
			check()
		}
		stopReading()

		By("asking once about all documents")
		Expect(reader.Open(reader.helper, t.language, 1, t.files[t.helper])).To(Succeed()) // tsserver answers only while a document is open
		editor.edit(t.mistake)
		Expect(reader.Call(ctx, "workspace/symbol", map[string]any{"query": "greet"}, nil)).To(Succeed())
		_, err := editor.WaitForDiagnostics(ctx, editor.uri, wrong)
		Expect(err).NotTo(HaveOccurred())
		editor.edit(t.files[t.main])
		check()
		forAll([]*lspUser{editor, reader}, func(p *lspUser) { p.disconnect(ctx) })
	},
		Entry("with gopls", NodeTimeout(lifecycleTimeout), "gopls"),
		Entry("with typescript-language-server", NodeTimeout(lifecycleTimeout), "typescript-language-server"),
	)

	// KILLS is the number of kills, one every five seconds: KILLS=24 takes two minutes.
	It("withholds no document after another program has killed the server several times", NodeTimeout(2*lifecycleTimeout), func(ctx context.Context) {
		const crowd, documents = 4, 50
		kills, every := int64(4), time.Duration(0)
		if text := os.Getenv("KILLS"); text != "" {
			many, err := strconv.ParseInt(text, 10, 64)
			Expect(err).NotTo(HaveOccurred())
			kills, every = many, 5*time.Second
		}
		t := languageProjects["gopls"]
		s, folder := t.languageServer(ctx, "killed")
		// By default the breaker opens after five failures in three minutes, and the back-off grows to a minute.
		s.languageServer().Spec.Breaker.FailureThreshold = ptr.To[int32](64)
		s.languageServer().Spec.Backoff.MaxSeconds = ptr.To[int32](1)
		s.create(ctx)
		s.waitUntilReady(ctx)
		var clients []*lspUser
		for i := range crowd {
			clients = append(clients, t.connectUser(ctx, fmt.Sprintf("client %d", i), s, folder, socketConnector(ctx, s)))
		}
		names := map[string]string{} // the name that the unsaved text of each document declares
		for i := range documents {
			uri := lspclient.URI(folder, fmt.Sprintf("unsaved%d.go", i))
			names[uri] = fmt.Sprintf("unsaved%d", i)
			Expect(clients[i%crowd].Open(uri, t.language, 1, "package main\n")).To(Succeed())
			Expect(clients[i%crowd].Change(uri, 2, "package main\n\nfunc "+names[uri]+"() {}\n")).To(Succeed())
		}
		for n := range kills {
			pause := time.After(every)
			signalTo(s.status().Process.PID, s.mark, syscall.SIGKILL)
			s.waitForIncarnation(ctx, n+2)
			<-pause
		}
		recovered := time.Now()
		forAll(clients, func(p *lspUser) { p.waitForCorrectAnswers(ctx) })
		for i := range documents {
			uri := lspclient.URI(folder, fmt.Sprintf("unsaved%d.go", i))
			var symbols json.RawMessage
			Expect(clients[i%crowd].Call(ctx, "textDocument/documentSymbol", map[string]any{"textDocument": map[string]any{"uri": uri}}, &symbols)).To(Succeed())
			Expect(string(symbols)).To(ContainSubstring(names[uri]), "the unsaved text of the client")
		}
		AddReportEntry(fmt.Sprintf("after %d kills all clients have correct answers about %d unsaved documents within %s", kills, documents, time.Since(recovered).Round(time.Millisecond)))
		Expect(s.read(ctx)).To(Succeed())
		Expect(meta.IsStatusConditionFalse(s.languageServer().Status.Conditions, "Healthy")).To(BeFalse(), "nothing is withheld")
		forAll(clients, func(p *lspUser) { p.disconnect(ctx) })
	})

	It("closes the documents of clients that disappear, and keeps those of the others", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		t := languageProjects["gopls"]
		s, folder := t.languageServer(ctx, "lost")
		s.create(ctx)
		s.waitUntilReady(ctx)
		survivor := t.connectUser(ctx, "the survivor", s, folder, socketConnector(ctx, s))
		bridge := startBridge(s)
		killed := t.connectUser(ctx, "the killed one", s, folder, func() *lspclient.Client { return lspclient.New(bridge, lspclient.Options{}) })
		cut := t.connectUser(ctx, "the cut one", s, folder, socketConnector(ctx, s))
		for i, p := range []*lspUser{killed, cut} {
			// These clients change the helper file without saving it, so their text disappears when they disconnect.
			Expect(p.Open(p.helper, t.language, 1, "package main\n\nfunc greeted"+strconv.Itoa(i)+"() {}\n")).To(Succeed())
			_, err := p.Hover(ctx, p.uri, p.position())
			Expect(err).NotTo(HaveOccurred(), p.name)
		}
		Expect(bridge.Process.Kill()).To(Succeed())
		cut.Close()
		Eventually(func(g Gomega) {
			g.Expect(s.read(ctx)).To(Succeed())
			g.Expect(s.languageServer().Status.Clients).To(BeEquivalentTo(1))
			g.Expect(s.languageServer().Status.OpenDocuments).To(BeEquivalentTo(1), "the documents of the lost clients are closed")
		}).WithTimeout(startTimeout).Should(Succeed())
		survivor.waitForCorrectAnswers(ctx)
		survivor.disconnect(ctx)
	})
})

// restartFromAll sets the same restart token from many callers concurrently.
func restartFromAll(ctx context.Context, s *testObject, token string, callers int) {
	GinkgoHelper()
	failures := make(chan error, callers)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			before := &v1alpha1.LanguageServer{}
			before.Namespace, before.Name = s.GetNamespace(), s.GetName()
			after := before.DeepCopy()
			after.Spec.RestartToken = token
			failures <- suiteBerth.client.Patch(ctx, after, client.MergeFrom(before))
		})
	}
	all.Wait()
	close(failures)
	for err := range failures {
		Expect(err).NotTo(HaveOccurred())
	}
}

// lspUserWithoutDocument connects a client that opens no document, as agents do.
func lspUserWithoutDocument(ctx context.Context, t languageProject, s *testObject, folder string) *lspUser {
	GinkgoHelper()
	p := &lspUser{Client: socketConnector(ctx, s)(), project: t, name: "the reader", helper: lspclient.URI(folder, t.helper)}
	DeferCleanup(p.Close)
	_, err := p.Initialize(ctx, folder)
	Expect(err).NotTo(HaveOccurred())
	return p
}

// readSymbols asks for the symbols of the helper file ten times a second until stop is called.
func readSymbols(ctx context.Context, p *lspUser) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		params := map[string]any{"textDocument": map[string]any{"uri": p.helper}}
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := p.Call(context.WithoutCancel(ctx), "textDocument/documentSymbol", params, nil); err != nil {
				done <- err
				return
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		done <- nil
	}()
	return func() {
		GinkgoHelper()
		cancel()
		Eventually(done).WithTimeout(startTimeout).Should(Receive(BeNil()))
	}
}
