// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/lspclient"
)

// addLanguageServerSpecs adds the specs of language servers that run in Pods and serve editors outside the cluster.
func addLanguageServerSpecs() {
	It("keeps the Pod and the clients of a LanguageServer across restarts", func(ctx context.Context) {
		tenant := languageServer(ctx, "gopls")
		server := tenant.object.(*v1alpha1.LanguageServer)
		Expect(server.Status.Endpoint).To(Equal("https://lsp-gopls." + tenant.namespace + ".svc:7077/lsp"))
		editor := tenant.connect(ctx)
		Expect(editor.hover(ctx)).To(Equal(text))
		before := tenant.pods(ctx)
		Expect(before).To(HaveLen(1))

		tenant.restart(ctx)
		Expect(editor.hover(ctx)).To(Equal(text), "the document is open on the same connection")
		Expect(server.Status.Process.PodName).To(Equal(before[0].Name))
		Expect(tenant.pods(ctx)).To(ConsistOf(HaveField("UID", before[0].UID)))
		Eventually(ctx, func(ctx context.Context) (int32, error) {
			err := k8s.Get(ctx, client.ObjectKeyFromObject(server), server)
			return server.Status.Clients, err
		}).Should(BeEquivalentTo(1))

		Expect(clientset.CoreV1().Pods(tenant.namespace).Delete(ctx, before[0].Name, metav1.DeleteOptions{})).To(Succeed())
		tenant.waitUntilReady(ctx, 3)
		tenant.expectLost(2)
		Expect(editor.hover(ctx)).To(Equal(text), "the client reconnected and opened its document again")
		Expect(editor.stderr()).To(ContainSubstring("connection"))

		tenant.patchSpec(ctx, `{"runtime":{"pod":{"template":{"metadata":{"labels":{"team":"a"}}}}}}`)
		tenant.waitUntilReady(ctx, 4)
		Expect(tenant.pods(ctx)).To(ConsistOf(HaveField("Labels", HaveKeyWithValue("team", "a"))), "a changed template replaces the Pod")
		Expect(editor.hover(ctx)).To(Equal(text))
		Expect(tenant.startCount()).To(Equal(4))
		editor.leave(ctx)
		tenant.deleteAndCheck(ctx)
	}, SpecTimeout(3*timeout))

	It("puts an unused LanguageServer to sleep and wakes it for the next client", func(ctx context.Context) {
		tenant := languageServer(ctx, "sleeper")
		server := tenant.object.(*v1alpha1.LanguageServer)
		tenant.patchSpec(ctx, `{"state":"OnDemand","idleTimeoutSeconds":1}`)
		asleep := func(ctx context.Context) (bool, error) {
			err := k8s.Get(ctx, client.ObjectKeyFromObject(server), server)
			ready := meta.FindStatusCondition(server.Status.Conditions, v1alpha1.ConditionReady)
			return server.Status.Process == nil && ready != nil && ready.Status == metav1.ConditionTrue, err
		}
		Eventually(ctx, asleep).Should(BeTrue())
		pods := tenant.pods(ctx)
		Expect(pods).To(HaveLen(1), "the Pod stays to accept the next client")
		editor := tenant.connect(ctx)
		Expect(editor.hover(ctx)).To(Equal(text))
		Expect(tenant.startCount()).To(Equal(2))
		Expect(tenant.pods(ctx)).To(ConsistOf(HaveField("UID", pods[0].UID)))
		editor.leave(ctx)

		Eventually(ctx, asleep).Should(BeTrue())
		Expect(clientset.CoreV1().Pods(tenant.namespace).Delete(ctx, pods[0].Name, metav1.DeleteOptions{})).To(Succeed())
		Eventually(ctx, tenant.pods).Should(ConsistOf(HaveField("UID", Not(Equal(pods[0].UID)))), "the Pod is replaced, because a client could not connect without one")
		editor = tenant.connect(ctx)
		Expect(editor.hover(ctx)).To(Equal(text))
		editor.leave(ctx)
		tenant.expectNoOverlap()
	}, SpecTimeout(3*timeout))
}

// addLanguageServerSpeedSpecs adds a spec that compares the restart of a language server within its Pod with a restart that replaces the Pod.
func addLanguageServerSpeedSpecs() {
	It("restarts a language server within its Pod much faster than by replacing the Pod", func(ctx context.Context) {
		const times, factor = 5, 5.0
		tenant := languageServer(ctx, "restarts")
		editor := tenant.connect(ctx)
		var inside, whole []float64
		for i := range times {
			begun := time.Now()
			tenant.restart(ctx)
			Expect(editor.hover(ctx)).To(Equal(text))
			inside = append(inside, time.Since(begun).Seconds())

			before := tenant.object.GetProcessStatus().Incarnation
			begun = time.Now()
			tenant.patchSpec(ctx, fmt.Sprintf(`{"runtime":{"pod":{"template":{"metadata":{"labels":{"pod":"%d"}}}}}}`, i)) // deleting the Pod instead would add a back-off
			tenant.waitUntilReady(ctx, before+1)
			Expect(editor.hover(ctx)).To(Equal(text))
			whole = append(whole, time.Since(begun).Seconds())
		}
		slices.Sort(inside)
		slices.Sort(whole)
		reportFigure("restart until an editor is answered: in the Pod %.2f s, with the Pod %.2f s, %.1f× (target: at least %.0f×)",
			inside[times/2], whole[times/2], whole[times/2]/inside[times/2], factor)
		Expect(whole[times/2] / inside[times/2]).To(BeNumerically(">", factor))
		editor.leave(ctx)
	}, SpecTimeout(3*timeout))
}

// languageServer creates a LanguageServer that answers requests about documents.
func languageServer(ctx context.Context, name string) *tenant {
	GinkgoHelper()
	o := &v1alpha1.LanguageServer{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.Language, o.Spec.Workspace.Folders = "fake", []string{"/claim"}
	return newTenant(ctx, o)
}

const (
	document = "file:///claim/main.fake"
	text     = "word"
)

// editor is an LSP client outside the cluster with one open document.
type editor struct {
	*lspclient.Client
	program *lspclient.Program
	errors  *os.File
}

// connect starts `berth lsp connect` as an editor does, and opens the document.
func (t *tenant) connect(ctx context.Context) *editor {
	GinkgoHelper()
	e := &editor{}
	var err error
	e.errors, err = os.CreateTemp(GinkgoT().TempDir(), "editor-")
	Expect(err).NotTo(HaveOccurred())
	command := clusterCommand(context.WithoutCancel(ctx), "berth", "lsp", "connect", "-n", t.namespace, t.object.GetName()) // the command exits at the end of its input
	command.Stderr = e.errors
	e.program, err = lspclient.Start(command)
	Expect(err).NotTo(HaveOccurred())
	e.Client = lspclient.New(e.program, lspclient.Options{})
	DeferCleanup(func() {
		e.Close()
		Expect(e.errors.Close()).To(Succeed())
	})
	_, err = e.Initialize(ctx, "/claim")
	Expect(err).NotTo(HaveOccurred(), e.stderr())
	Expect(e.Open(document, "fake", 1, text)).To(Succeed())
	return e
}

// stderr returns what the command wrote to stderr. Editors show that text in their log.
func (e *editor) stderr() string {
	said, err := os.ReadFile(e.errors.Name())
	Expect(err).NotTo(HaveOccurred())
	return string(said)
}

// hover requests the hover text of the start of the document and returns its first word. It retries while the server answers with an error.
func (e *editor) hover(ctx context.Context) string {
	GinkgoHelper()
	var word string
	Eventually(ctx, func(ctx context.Context) error {
		var answer struct {
			Contents struct{ Value string }
		}
		err := e.Call(ctx, "textDocument/hover", lspclient.PositionParams(document, lspclient.Position{}), &answer)
		word, _, _ = strings.Cut(answer.Contents.Value, " ")
		return err
	}).WithPolling(10*time.Millisecond).Should(Succeed(), e.stderr())
	return word
}

func (e *editor) leave(ctx context.Context) {
	GinkgoHelper()
	Expect(e.Shutdown(ctx)).To(Succeed())
	Expect(e.program.Close()).To(Succeed(), e.stderr())
}
