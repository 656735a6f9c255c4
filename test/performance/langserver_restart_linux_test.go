// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/lspclient"
)

// serverKills is the number of servers that are killed in a round.
const serverKills = 3

// TestMultiplexer_ResponseTimeAfterServerKill kills gopls with SIGKILL, immediately sends a request, and measures the time until the response. It compares this
// time with the time to start gopls by hand and open the same documents.
func TestMultiplexer_ResponseTimeAfterServerKill(t *testing.T) {
	folder, files := goWorkspace(t)
	startManager(t, stateDirectory(t), 0, "-lsp", multiplexerPath(t))
	namespace := newNamespace(t)
	var ratios, hands, ours []float64
	for round := range rounds {
		var byHand, held []float64
		for i := range serverKills {
			byHand = append(byHand, startTimeByHand(t, folder, files))
			held = append(held, killAndRequest(t, namespace, fmt.Sprintf("killed-%d-%d", round, i), folder, files))
		}
		hands, ours = append(hands, median(byHand)), append(ours, median(held))
		ratios = append(ratios, median(held)/median(byHand))
	}
	addFigure("language server, gopls started by hand, until it answers, p50", "%.0f ms", median(hands))
	addFigure("language server, gopls killed, until a held request is answered, p50", "%.0f ms", median(ours))
	expectAtMost(t, "language server, killed until answered / by hand", median(ratios), 1.2, 2.5, "×")
}

// openFiles opens the documents and returns a position for hover requests.
func openFiles(t *testing.T, client *lspclient.Client, files []string) (uri string, at lspclient.Position) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = client.Open(lspclient.URI(file), "go", 1, string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
		if uri == "" {
			uri, at = lspclient.URI(file), lspclient.Find(string(text), "Use0", 2)
		}
	}
	return uri, at
}

func startTimeByHand(t *testing.T, folder string, files []string) float64 {
	t.Helper()
	g := NewWithT(t)
	began := time.Now()
	program, err := lspclient.Start(exec.Command(gopls(t)))
	g.Expect(err).NotTo(HaveOccurred())
	gopls := lspclient.New(program, lspclient.Options{})
	_, err = gopls.Initialize(t.Context(), folder)
	g.Expect(err).NotTo(HaveOccurred())
	uri, at := openFiles(t, gopls, files)
	g.Expect(gopls.Hover(t.Context(), uri, at)).To(ContainSubstring("func Use0"))
	took := milliseconds(time.Since(began))
	g.Expect(program.Kill()).To(Succeed())
	gopls.Close()
	return took
}

func killAndRequest(t *testing.T, namespace, name, folder string, files []string) float64 {
	t.Helper()
	g := NewWithT(t)
	server := &v1alpha1.LanguageServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	server.Spec.Language = "go"
	server.Spec.Workspace.Folders = []string{folder}
	server.Spec.Process.Command = []string{gopls(t)}
	server.Spec.Backoff.InitialSeconds = ptr.To[int32](0)
	g.Expect(k8s.Create(t.Context(), server)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(server), server)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(server.Status.Conditions, v1alpha1.ConditionReady)).To(BeTrue(), "%+v", server.Status.Conditions)
	}).WithTimeout(patience).WithPolling(50 * time.Millisecond).Should(Succeed())
	editor, err := lspclient.Dial(t.Context(), strings.TrimPrefix(server.Status.Endpoint, "unix://"), lspclient.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	defer editor.Close()
	_, err = editor.Initialize(t.Context(), folder)
	g.Expect(err).NotTo(HaveOccurred())
	uri, at := openFiles(t, editor, files)
	g.Eventually(func() (string, error) { return editor.Hover(t.Context(), uri, at) }).WithTimeout(patience).Should(ContainSubstring("func Use0"))

	began := time.Now()
	g.Expect(syscall.Kill(int(server.Status.Process.PID), syscall.SIGKILL)).To(Succeed())
	g.Expect(editor.Hover(t.Context(), uri, at)).To(ContainSubstring("func Use0"))
	took := milliseconds(time.Since(began))
	g.Expect(k8s.Delete(t.Context(), server)).To(Succeed())
	return took
}
