// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/lspclient"
)

var _ = Describe("A language server with many clients", func() {
	It("restarts once for the same request of many callers, without an error for any client", NodeTimeout(2*storyTimeout), func(ctx context.Context) {
		const crowd, restarts = 8, 3
		t := languageProjects["gopls"]
		s, folder := t.languageServer(ctx, "crowd")
		s.create(ctx)
		s.ready(ctx)
		var people []*lspUser
		for i := range crowd {
			people = append(people, t.join(ctx, fmt.Sprintf("client %d", i), s, folder, dialed(ctx, s)))
		}
		busy := asking(ctx, people)
		for n := range int64(restarts) {
			By(fmt.Sprintf("restarting the server, request %d of %d", n+1, restarts))
			askedByAll(ctx, s, strconv.FormatInt(n, 10), crowd)
			s.incarnation(ctx, n+2)
		}
		By("killing the server")
		signalTo(s.status().Process.PID, s.mark, syscall.SIGKILL)
		s.incarnation(ctx, restarts+2)
		busy()
		together(people, func(p *lspUser) { p.understands(ctx) })
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.status().Incarnation).To(BeEquivalentTo(restarts+2), "one new incarnation for each request, and one for the crash")
		together(people, func(p *lspUser) { p.leaves(ctx) })
	})

	It("closes the documents of clients that disappear, and keeps those of the others", NodeTimeout(storyTimeout), func(ctx context.Context) {
		t := languageProjects["gopls"]
		s, folder := t.languageServer(ctx, "lost")
		s.create(ctx)
		s.ready(ctx)
		survivor := t.join(ctx, "the survivor", s, folder, dialed(ctx, s))
		bridge := bridged(s)
		killed := t.join(ctx, "the killed one", s, folder, func() *lspclient.Client { return lspclient.New(bridge, lspclient.Options{}) })
		cut := t.join(ctx, "the cut one", s, folder, dialed(ctx, s))
		for i, p := range []*lspUser{killed, cut} {
			// These clients change the helper file without saving it, so their text disappears when they disconnect.
			Expect(p.Open(p.helper, t.language, 1, "package main\n\nfunc greeted"+strconv.Itoa(i)+"() {}\n")).To(Succeed())
			_, err := p.Hover(ctx, p.uri, p.at())
			Expect(err).NotTo(HaveOccurred(), p.name)
		}
		Expect(bridge.Process.Kill()).To(Succeed())
		cut.Close()
		Eventually(func(g Gomega) {
			g.Expect(s.read(ctx)).To(Succeed())
			g.Expect(s.languageServer().Status.Clients).To(BeEquivalentTo(1))
			g.Expect(s.languageServer().Status.OpenDocuments).To(BeEquivalentTo(1), "the documents of the lost clients are closed")
		}).WithTimeout(startTimeout).Should(Succeed())
		survivor.understands(ctx)
		survivor.leaves(ctx)
	})
})

// askedByAll sets the same restart token from many callers concurrently.
func askedByAll(ctx context.Context, s *subject, token string, callers int) {
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
