// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/lspclient"
)

var _ = Describe("LanguageServer", func() {
	for _, name := range []string{"gopls", "pyright", "bash-language-server", "typescript-language-server"} {
		It("is shared by two clients, which do not notice restarts of "+name, Label(anyUser), NodeTimeout(2*lifecycleTimeout), func(ctx context.Context) {
			testSharedServerLifecycle(ctx, languageProjects[name], name)
		})
	}

	It("gives a client without snippets the completions of the CSS server", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		t := languageProject{
			language: "css", main: "main.css", files: map[string]string{"main.css": "a {\n  colo\n}\n"},
			command: func(ctx context.Context) []string {
				return []string{npmProgram(ctx, "vscode-css-language-server"), "--stdio"}
			},
		}
		s, folder := t.languageServer(ctx, "css")
		s.create(ctx).waitUntilReady(ctx)
		p := t.connectUser(ctx, "a client without snippets", s, folder, socketConnector(ctx, s))
		var list struct {
			Items []struct {
				Label            string
				InsertTextFormat int
				TextEdit         struct{ NewText string }
			}
		}
		Expect(p.Call(ctx, "textDocument/completion", map[string]any{
			"textDocument": map[string]any{"uri": p.uri}, "position": lspclient.Position{Line: 1, Character: 6},
		}, &list)).To(Succeed())
		Expect(list.Items).To(ContainElement(HaveField("Label", "color")), "%d items", len(list.Items))
		for _, item := range list.Items {
			Expect(item.InsertTextFormat).NotTo(Equal(2), item.Label)
			Expect(item.TextEdit.NewText).NotTo(ContainSubstring("$"), item.Label)
		}
		p.disconnect(ctx)
	})

	It("formats with the YAML server for a client that cannot register features later", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		t := languageProject{
			language: "yaml", main: "main.yaml", files: map[string]string{"main.yaml": "a:   1\n"},
			command: func(ctx context.Context) []string {
				return []string{npmProgram(ctx, "yaml-language-server"), "--stdio"}
			},
		}
		s, folder := t.languageServer(ctx, "yaml")
		s.create(ctx).waitUntilReady(ctx)
		p := t.connectUser(ctx, "a client without registration", s, folder, socketConnector(ctx, s))
		Expect(string(p.server.Capabilities["documentFormattingProvider"])).To(Equal("true"))
		var edits []struct{ NewText string }
		Expect(p.Call(ctx, "textDocument/formatting", map[string]any{
			"textDocument": map[string]any{"uri": p.uri}, "options": map[string]any{"tabSize": 2, "insertSpaces": true},
		}, &edits)).To(Succeed())
		Expect(edits).NotTo(BeEmpty())
		p.disconnect(ctx)
	})

	It("shows an error that another program causes by changing a file on disk", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		t := languageProjects["gopls"]
		s, folder := t.languageServer(ctx, "disk")
		s.create(ctx).waitUntilReady(ctx)
		p := t.connectUser(ctx, "the editor", s, folder, socketConnector(ctx, s))
		p.waitForCorrectAnswers(ctx)
		file := filepath.Join(folder, t.helper)
		for range 3 {
			Expect(os.WriteFile(file, []byte("package main\n\nfunc greet() string { return \"\" }\n"), 0o600)).To(Succeed())
			_, err := p.WaitForDiagnostics(ctx, p.uri, containsComplaint("too many arguments"))
			Expect(err).NotTo(HaveOccurred())
			Expect(os.WriteFile(file, []byte(t.files[t.helper]), 0o600)).To(Succeed())
			_, err = p.WaitForDiagnostics(ctx, p.uri, func(d lspclient.Diagnostics) bool { return !containsComplaint("too many arguments")(d) })
			Expect(err).NotTo(HaveOccurred())
		}
		p.disconnect(ctx)
	})

	It("learns of another folder while it runs", Label(anyUser), NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		t := languageProjects["gopls"]
		s, folder := t.languageServer(ctx, "folders")
		s.create(ctx).waitUntilReady(ctx)
		p := t.connectUser(ctx, "the editor", s, folder, socketConnector(ctx, s))
		p.waitForCorrectAnswers(ctx)
		worktree := GinkgoT().TempDir()
		Expect(os.WriteFile(filepath.Join(worktree, "go.mod"), []byte(t.files["go.mod"]), 0o600)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(worktree, "a.go"), []byte("package main\n\nfunc onlyInTheWorktree() {}\n"), 0o600)).To(Succeed())
		found := func() (string, error) {
			var symbols []struct{ Name string }
			err := p.Call(ctx, "workspace/symbol", map[string]any{"query": "onlyInTheWorktree"}, &symbols)
			return fmt.Sprint(symbols), err
		}
		Expect(found()).NotTo(ContainSubstring("onlyInTheWorktree"))
		s.patch(ctx, func() {
			spec := &s.languageServer().Spec
			spec.Workspace.Folders = append(spec.Workspace.Folders, worktree)
		})
		Eventually(found).WithTimeout(startTimeout).Should(ContainSubstring("onlyInTheWorktree"))
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.status().Incarnation).To(BeEquivalentTo(1), "the same server")
		Expect(s.condition(v1alpha1.ConditionDriftDetected).Status).NotTo(BeEquivalentTo("True"))
		s.patch(ctx, func() {
			spec := &s.languageServer().Spec
			spec.Workspace.Folders = spec.Workspace.Folders[:1]
		})
		Eventually(found).WithTimeout(startTimeout).ShouldNot(ContainSubstring("onlyInTheWorktree"))
		p.disconnect(ctx)
	})

	It("sleeps without a client, and starts for the next one", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		t := languageProjects["gopls"]
		s, folder := t.languageServer(ctx, "sleeper")
		s.GetProcessSpec().State = v1alpha1.StateOnDemand
		idle := int32(1)
		s.languageServer().Spec.IdleTimeoutSeconds = &idle
		s.create(ctx)
		Eventually(func(g Gomega) {
			g.Expect(s.read(ctx)).To(Succeed())
			g.Expect(s.status().Incarnation).To(BeNumerically(">=", 1))
			g.Expect(s.condition(v1alpha1.ConditionReady).Reason).To(Equal(v1alpha1.ReasonIdle), "conditions: %+v", s.status().Conditions)
			g.Expect(s.status().Process).To(BeNil())
		}).WithTimeout(startTimeout).Should(Succeed())
		slept := s.status().Incarnation
		p := t.connectUser(ctx, "woken", s, folder, socketConnector(ctx, s))
		p.waitForCorrectAnswers(ctx)
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.status().Incarnation).To(Equal(slept+1), "one more start for the client")
		p.disconnect(ctx)
	})
})

func (s *testObject) languageServer() *v1alpha1.LanguageServer {
	return s.object.(*v1alpha1.LanguageServer)
}

// testSharedServerLifecycle tests the life of a server with two clients: one at the socket, one through berth lsp connect.
func testSharedServerLifecycle(ctx context.Context, t languageProject, name string) {
	s, folder := t.languageServer(ctx, name)
	s.create(ctx)
	s.waitUntilReady(ctx)
	endpoint := s.languageServer().Status.Endpoint
	Expect(endpoint).To(HavePrefix("unix:///"))

	By("answering two clients at once")
	editor := t.connectUser(ctx, "the editor", s, folder, socketConnector(ctx, s))
	agent := t.connectUser(ctx, "the agent", s, folder, commandConnector(s))
	clients := []*lspUser{editor, agent}
	forAll(clients, func(p *lspUser) { p.waitForCorrectAnswers(ctx) })

	By("sending diagnostics for a mistake of one client")
	editor.edit(t.mistake)
	_, err := editor.WaitForDiagnostics(ctx, editor.uri, containsComplaint(t.complaint))
	Expect(err).NotTo(HaveOccurred())
	agent.waitForCorrectAnswers(ctx)
	// Now both clients have the same text again.
	editor.edit(t.files[t.main])
	_, err = editor.WaitForDiagnostics(ctx, editor.uri, func(d lspclient.Diagnostics) bool { return !containsComplaint(t.complaint)(d) })
	Expect(err).NotTo(HaveOccurred())

	By("answering each client on its own unsaved text")
	agent.edit(t.comment + "not saved\n" + t.files[t.main])
	forAll(clients, func(p *lspUser) { p.waitForCorrectAnswers(ctx) })

	By("restarting the server: the clients do not notice")
	first := *s.status().Process
	observer := s.observe(ctx)
	busy := startRequests(ctx, clients)
	suiteBerth.run(ctx, "restart", s.path())
	s.waitForIncarnation(ctx, first.Incarnation+1)
	busy()
	forAll(clients, func(p *lspUser) { p.waitForCorrectAnswers(ctx) })
	missing, _, seen := observer.results()
	Expect(missing).To(BeZero(), "a client did not find the object")
	Expect(seen).To(HaveKey(v1alpha1.ConditionRestarting))

	By("killing the server: the clients do not notice")
	second := *s.status().Process
	Expect(second.PID).NotTo(Equal(first.PID))
	busy = startRequests(ctx, clients)
	signalTo(second.PID, s.mark, syscall.SIGKILL)
	s.waitForIncarnation(ctx, second.Incarnation+1)
	busy()
	forAll(clients, func(p *lspUser) { p.waitForCorrectAnswers(ctx) })
	Expect(s.status().LastExit.Signal).To(Equal("SIGKILL"))
	Expect(s.languageServer().Status.Endpoint).To(Equal(endpoint), "the endpoint changed")

	By("showing its state in kubectl")
	Eventually(func() string { return suiteBerth.kubectl(ctx, "get", "languageservers", s.GetName(), "--no-headers") }).
		Should(MatchRegexp(`^%s\s+True\s+Running\s+%s\s+.*\s2\s+2\s+\S+\s*$`, s.GetName(), t.language))
	Expect(s.read(ctx)).To(Succeed())
	var why []string
	for _, restart := range s.languageServer().Status.RecentRestarts {
		why = append(why, restart.Reason)
		Expect(restart.TookMilliseconds).NotTo(BeNil(), "%+v", restart)
	}
	Expect(why).To(Equal([]string{v1alpha1.ReasonRequested, v1alpha1.ReasonCrashed}))

	By("disconnecting the clients and deleting the object: nothing remains")
	forAll(clients, func(p *lspUser) { p.disconnect(ctx) })
	Eventually(func(g Gomega) {
		g.Expect(s.read(ctx)).To(Succeed())
		g.Expect(s.languageServer().Status.Clients).To(BeZero())
		g.Expect(s.languageServer().Status.OpenDocuments).To(BeZero())
	}).Should(Succeed())
	s.delete(ctx)
	Expect(strings.TrimPrefix(endpoint, "unix://")).NotTo(BeAnExistingFile())
	Expect(processesWithVariable(suiteMark, suiteBerth.mark)).NotTo(ContainElement(ContainSubstring(string(s.GetUID()))), "its multiplexer is still running")
}

// lspUser is a client with the main file open.
type lspUser struct {
	*lspclient.Client
	project languageProject
	name    string
	uri     string
	helper  string
	text    string
	version int
	server  lspclient.Server
}

// socketConnector returns a function that connects to the socket.
func socketConnector(ctx context.Context, s *testObject) func() *lspclient.Client {
	return func() *lspclient.Client {
		GinkgoHelper()
		Expect(s.read(ctx)).To(Succeed())
		client, err := lspclient.Dial(ctx, strings.TrimPrefix(s.languageServer().Status.Endpoint, "unix://"), lspclient.Options{})
		Expect(err).NotTo(HaveOccurred())
		return client
	}
}

// commandConnector returns a function that connects through a command, as editors do.
func commandConnector(s *testObject) func() *lspclient.Client {
	return func() *lspclient.Client { return lspclient.New(startBridge(s), lspclient.Options{}) }
}

// startBridge starts `berth lsp connect`, the command that editors start.
func startBridge(s *testObject) *lspclient.Program {
	GinkgoHelper()
	cmd := exec.Command(suiteBerth.program(), "lsp", "connect", s.GetName())
	cmd.Env = suiteBerth.environment()
	cmd.Stderr = GinkgoWriter
	program, err := lspclient.Start(cmd)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(program.Kill)
	return program
}

func (l languageProject) connectUser(ctx context.Context, name string, s *testObject, folder string, connect func() *lspclient.Client) *lspUser {
	GinkgoHelper()
	p := &lspUser{
		Client: connect(), project: l, name: name, text: l.files[l.main], version: 1,
		uri: lspclient.URI(folder, l.main), helper: lspclient.URI(folder, l.helper),
	}
	DeferCleanup(p.Close)
	var err error
	p.server, err = p.Initialize(ctx, folder)
	Expect(err).NotTo(HaveOccurred(), "%s of %s", name, s.path())
	Expect(p.server.Capabilities).To(HaveKey("hoverProvider"))
	Expect(p.Open(p.uri, l.language, p.version, p.text)).To(Succeed())
	return p
}

func (p *lspUser) edit(text string) {
	GinkgoHelper()
	p.version++
	p.text = text
	Expect(p.Change(p.uri, p.version, text)).To(Succeed())
}

// position returns a position in the last occurrence of greet in main.
func (p *lspUser) position() lspclient.Position {
	at := lspclient.Find(p.text, "greet", strings.Count(p.text, "greet"))
	at.Character++ // inside the word
	return at
}

// waitForCorrectAnswers waits until all responses are correct, because a server may need time to load its workspace. An error response fails the spec
// immediately.
func (p *lspUser) waitForCorrectAnswers(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		hover, err := p.Hover(ctx, p.uri, p.position())
		p.expectNoError(err)
		g.Expect(hover).To(ContainSubstring(p.project.hover), p.name)
		definitions, err := p.Definition(ctx, p.uri, p.position())
		p.expectNoError(err)
		g.Expect(definitions).To(ContainElement(HaveField("URI", p.helper)), p.name)
		references, err := p.References(ctx, p.uri, p.position())
		p.expectNoError(err)
		g.Expect(references).To(HaveLen(p.project.references), "%s: %+v", p.name, references)
		g.Expect(references).To(ContainElement(lspclient.Location{URI: p.uri, Range: p.lastRange()}), "%s: reference in its own text", p.name)
	}).WithTimeout(startTimeout).Should(Succeed())
	Expect(p.UnexpectedResponses()).To(BeEmpty(), "%s received unexpected responses", p.name)
}

// lastRange returns the range of the last occurrence of greet in main.
func (p *lspUser) lastRange() lspclient.Range {
	start := p.position()
	start.Character--
	return lspclient.Range{Start: start, End: lspclient.Position{Line: start.Line, Character: start.Character + len("greet")}}
}

// expectNoError fails the spec immediately on an error.
func (p *lspUser) expectNoError(err error) {
	GinkgoHelper()
	if err != nil {
		StopTrying(fmt.Sprintf("%s: %v", p.name, err)).Now()
	}
}

func (p *lspUser) disconnect(ctx context.Context) {
	GinkgoHelper()
	Expect(p.Shutdown(ctx)).To(Succeed(), p.name)
}

func containsComplaint(words string) func(lspclient.Diagnostics) bool {
	return func(d lspclient.Diagnostics) bool {
		for _, one := range d.All {
			if strings.Contains(one.Message, words) {
				return true
			}
		}
		return false
	}
}

// forAll calls the function do for all clients concurrently.
func forAll(clients []*lspUser, do func(*lspUser)) {
	GinkgoHelper()
	var all sync.WaitGroup
	for _, p := range clients {
		all.Go(func() {
			defer GinkgoRecover()
			do(p)
		})
	}
	all.Wait()
	Expect(CurrentSpecReport().Failed()).To(BeFalse(), "a client failed")
}

// startRequests sends requests from all clients until finish is called. finish fails the spec if any response was an error.
func startRequests(ctx context.Context, clients []*lspUser) (finish func()) {
	GinkgoHelper()
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	failures := make(chan error, len(clients))
	answers := make(chan struct{}, len(clients))
	for _, p := range clients {
		all.Go(func() {
			for once := sync.OnceFunc(func() { answers <- struct{}{} }); ctx.Err() == nil; {
				if _, err := p.Hover(context.WithoutCancel(ctx), p.uri, p.position()); err != nil {
					failures <- fmt.Errorf("%s: %w", p.name, err)
					once()
					return
				}
				once()
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	for range clients {
		Eventually(ctx, answers).WithTimeout(startTimeout).Should(Receive())
	}
	return func() {
		GinkgoHelper()
		stop()
		all.Wait()
		close(failures)
		for err := range failures {
			Expect(err).NotTo(HaveOccurred())
		}
	}
}
