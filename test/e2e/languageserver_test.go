// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os/exec"
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
		It("is shared by two clients, which do not notice restarts of "+name, NodeTimeout(2*storyTimeout), func(ctx context.Context) {
			sharedStory(ctx, languageProjects[name], name)
		})
	}

	It("sleeps without a client, and starts for the next one", NodeTimeout(storyTimeout), func(ctx context.Context) {
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
		p := t.join(ctx, "woken", s, folder, dialed(ctx, s))
		p.understands(ctx)
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.status().Incarnation).To(Equal(slept+1), "one more start for the client")
		p.leaves(ctx)
	})
})

func (s *subject) languageServer() *v1alpha1.LanguageServer {
	return s.object.(*v1alpha1.LanguageServer)
}

// sharedStory tests the life of a server with two clients: one at the socket, one through berth lsp connect.
func sharedStory(ctx context.Context, t languageProject, name string) {
	s, folder := t.languageServer(ctx, name)
	s.create(ctx)
	s.ready(ctx)
	endpoint := s.languageServer().Status.Endpoint
	Expect(endpoint).To(HavePrefix("unix:///"))

	By("answering two clients at once")
	editor := t.join(ctx, "the editor", s, folder, dialed(ctx, s))
	agent := t.join(ctx, "the agent", s, folder, connected(s))
	people := []*lspUser{editor, agent}
	together(people, func(p *lspUser) { p.understands(ctx) })

	By("sending diagnostics for a mistake of one client")
	editor.edits(t.mistake)
	_, err := editor.Diagnosed(ctx, editor.uri, complaint(t.complaint))
	Expect(err).NotTo(HaveOccurred())
	agent.understands(ctx)
	// Now both clients have the same text again.
	editor.edits(t.files[t.main])
	_, err = editor.Diagnosed(ctx, editor.uri, func(d lspclient.Diagnostics) bool { return !complaint(t.complaint)(d) })
	Expect(err).NotTo(HaveOccurred())

	By("answering each client on its own unsaved text")
	agent.edits(t.comment + "not saved\n" + t.files[t.main])
	together(people, func(p *lspUser) { p.understands(ctx) })

	By("restarting the server: the clients do not notice")
	first := *s.status().Process
	witness := s.watch(ctx)
	busy := asking(ctx, people)
	suiteBerth.run(ctx, "restart", s.path())
	s.incarnation(ctx, first.Incarnation+1)
	busy()
	together(people, func(p *lspUser) { p.understands(ctx) })
	missing, _, seen := witness.testify()
	Expect(missing).To(BeZero(), "a client did not find the object")
	Expect(seen).To(HaveKey(v1alpha1.ConditionRestarting))

	By("killing the server: the clients do not notice")
	second := *s.status().Process
	Expect(second.PID).NotTo(Equal(first.PID))
	busy = asking(ctx, people)
	signalTo(second.PID, s.mark, syscall.SIGKILL)
	s.incarnation(ctx, second.Incarnation+1)
	busy()
	together(people, func(p *lspUser) { p.understands(ctx) })
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
	together(people, func(p *lspUser) { p.leaves(ctx) })
	Eventually(func(g Gomega) {
		g.Expect(s.read(ctx)).To(Succeed())
		g.Expect(s.languageServer().Status.Clients).To(BeZero())
		g.Expect(s.languageServer().Status.OpenDocuments).To(BeZero())
	}).Should(Succeed())
	s.delete(ctx)
	Expect(strings.TrimPrefix(endpoint, "unix://")).NotTo(BeAnExistingFile())
	Expect(marked(suiteMark, suiteBerth.mark)).NotTo(ContainElement(ContainSubstring(string(s.GetUID()))), "its multiplexer is still running")
}

// lspUser is a client with the main file open.
type lspUser struct {
	*lspclient.Client
	t       languageProject
	name    string
	uri     string
	helper  string
	text    string
	version int
}

// dialed returns a function that connects to the socket.
func dialed(ctx context.Context, s *subject) func() *lspclient.Client {
	return func() *lspclient.Client {
		GinkgoHelper()
		Expect(s.read(ctx)).To(Succeed())
		client, err := lspclient.Dial(ctx, strings.TrimPrefix(s.languageServer().Status.Endpoint, "unix://"), lspclient.Options{})
		Expect(err).NotTo(HaveOccurred())
		return client
	}
}

// connected returns a function that connects through a command, as editors do.
func connected(s *subject) func() *lspclient.Client {
	return func() *lspclient.Client { return lspclient.New(bridged(s), lspclient.Options{}) }
}

// bridged starts `berth lsp connect`, the command that editors start.
func bridged(s *subject) *lspclient.Program {
	GinkgoHelper()
	cmd := exec.Command(suiteBerth.program(), "lsp", "connect", s.GetName())
	cmd.Env = suiteBerth.environment()
	cmd.Stderr = GinkgoWriter
	program, err := lspclient.Start(cmd)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(program.Kill)
	return program
}

func (t languageProject) join(ctx context.Context, name string, s *subject, folder string, connect func() *lspclient.Client) *lspUser {
	GinkgoHelper()
	p := &lspUser{
		Client: connect(), t: t, name: name, text: t.files[t.main], version: 1,
		uri: lspclient.URI(folder, t.main), helper: lspclient.URI(folder, t.helper),
	}
	DeferCleanup(p.Close)
	server, err := p.Initialize(ctx, folder)
	Expect(err).NotTo(HaveOccurred(), "%s of %s", name, s.path())
	Expect(server.Capabilities).To(HaveKey("hoverProvider"))
	Expect(p.Open(p.uri, t.language, p.version, p.text)).To(Succeed())
	return p
}

func (p *lspUser) edits(text string) {
	GinkgoHelper()
	p.version++
	p.text = text
	Expect(p.Change(p.uri, p.version, text)).To(Succeed())
}

// at returns a position in the last occurrence of greet in main.
func (p *lspUser) at() lspclient.Position {
	at := lspclient.Find(p.text, "greet", strings.Count(p.text, "greet"))
	at.Character++ // inside the word
	return at
}

// understands waits until all responses are correct, because a server may need time to load its workspace. An error response fails the spec immediately.
func (p *lspUser) understands(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		hover, err := p.Hover(ctx, p.uri, p.at())
		p.right(err)
		g.Expect(hover).To(ContainSubstring(p.t.hover), p.name)
		definitions, err := p.Definition(ctx, p.uri, p.at())
		p.right(err)
		g.Expect(definitions).To(ContainElement(HaveField("URI", p.helper)), p.name)
		references, err := p.References(ctx, p.uri, p.at())
		p.right(err)
		g.Expect(references).To(HaveLen(p.t.references), "%s: %+v", p.name, references)
		g.Expect(references).To(ContainElement(lspclient.Location{URI: p.uri, Range: p.place()}), "%s: reference in its own text", p.name)
	}).WithTimeout(startTimeout).Should(Succeed())
	Expect(p.Strays()).To(BeEmpty(), "%s received unexpected responses", p.name)
}

// place returns the range of the last occurrence of greet in main.
func (p *lspUser) place() lspclient.Range {
	start := p.at()
	start.Character--
	return lspclient.Range{Start: start, End: lspclient.Position{Line: start.Line, Character: start.Character + len("greet")}}
}

// right fails the spec immediately on an error.
func (p *lspUser) right(err error) {
	GinkgoHelper()
	if err != nil {
		StopTrying(fmt.Sprintf("%s: %v", p.name, err)).Now()
	}
}

func (p *lspUser) leaves(ctx context.Context) {
	GinkgoHelper()
	Expect(p.Leave(ctx)).To(Succeed(), p.name)
}

func complaint(words string) func(lspclient.Diagnostics) bool {
	return func(d lspclient.Diagnostics) bool {
		for _, one := range d.All {
			if strings.Contains(one.Message, words) {
				return true
			}
		}
		return false
	}
}

// together runs do for all clients concurrently.
func together(people []*lspUser, do func(*lspUser)) {
	GinkgoHelper()
	var all sync.WaitGroup
	for _, p := range people {
		all.Go(func() {
			defer GinkgoRecover()
			do(p)
		})
	}
	all.Wait()
	Expect(CurrentSpecReport().Failed()).To(BeFalse(), "a client failed")
}

// asking sends requests from all clients until enough is called. enough fails the spec if any response was an error.
func asking(ctx context.Context, people []*lspUser) (enough func()) {
	GinkgoHelper()
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	failures := make(chan error, len(people))
	answers := make(chan struct{}, len(people))
	for _, p := range people {
		all.Go(func() {
			for once := sync.OnceFunc(func() { answers <- struct{}{} }); ctx.Err() == nil; {
				if _, err := p.Hover(context.WithoutCancel(ctx), p.uri, p.at()); err != nil {
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
	for range people {
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
