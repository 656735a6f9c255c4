// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// toolClient is a client of berth mcp, which it has started.
type toolClient struct {
	*mcp.ClientSession
	// updated receives the URIs of the resources that have changed.
	updated chan string
}

// newToolClient starts berth mcp with additional arguments.
func newToolClient(ctx context.Context, args ...string) toolClient {
	GinkgoHelper()
	cmd := exec.Command(suiteBerth.program(), append([]string{"mcp", "-n", namespace}, args...)...)
	cmd.Env, cmd.Stderr = suiteBerth.environment(), GinkgoWriter
	updated := make(chan string, 100)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, request *mcp.ResourceUpdatedNotificationRequest) {
			select {
			case updated <- request.Params.URI:
			default: // no spec reads them
			}
		},
	}).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(session.Close)
	return toolClient{session, updated}
}

// call calls a tool and returns its structured result as JSON. If the tool fails, it returns the message as failure.
func (c toolClient) call(ctx context.Context, name string, arguments map[string]any) (result, failure string) {
	GinkgoHelper()
	answer, err := c.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
	Expect(err).NotTo(HaveOccurred(), name)
	if answer.IsError {
		return "", answer.Content[0].(*mcp.TextContent).Text
	}
	text, err := json.Marshal(answer.StructuredContent)
	Expect(err).NotTo(HaveOccurred())
	return string(text), ""
}

// must is call for a tool that must succeed. It decodes the result.
func (c toolClient) must(ctx context.Context, name string, arguments map[string]any) (result map[string]any) {
	GinkgoHelper()
	text, failure := c.call(ctx, name, arguments)
	Expect(failure).To(BeEmpty(), "%s %v", name, arguments)
	Expect(json.Unmarshal([]byte(text), &result)).To(Succeed())
	return result
}

var _ = Describe("berth mcp", func() {
	It("lets an agent run, break, mend and remove a Vite server", Label(anyUser), NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		dir := workingCopy(ctx, "samples/vite")
		config := filepath.Join(dir, "vite.config.js") // the sample has none
		c := newToolClient(ctx)
		name := map[string]any{"name": "devserver/agent"}
		wait := map[string]any{"name": "devserver/agent", "wait": true, "timeoutSeconds": 120}

		By("starting it and finding its address")
		spec := map[string]any{
			"name": "devserver/agent", "workingDir": dir, "command": []string{"npm", "run", "dev", "--", "--port", "$(PORT)", "--strictPort"}, "wait": true, "timeoutSeconds": 120,
		}
		applied := c.must(ctx, "apply", spec)["results"].([]any)[0].(map[string]any)
		DeferCleanup(func(ctx context.Context) { _, _ = c.call(ctx, "delete", wait) }, NodeTimeout(timeout))
		Expect(applied).To(And(HaveKeyWithValue("result", "created"), HaveKeyWithValue("ready", "True")))
		address := applied["address"].(string)
		Eventually(func() (string, error) { return fetch(address) }).Should(ContainSubstring("/@vite/client"))
		// The first address may be that of the socket. Vite prints another one, and may do so after it listens.
		Eventually(func() string { address = c.must(ctx, "get", name)["address"].(string); return address }).Should(HavePrefix("http://localhost:"))
		Expect(c.must(ctx, "apply", spec)["results"].([]any)[0]).To(HaveKeyWithValue("result", "unchanged"))
		list, _ := c.call(ctx, "list", nil)
		Expect(list).To(ContainSubstring(address))

		By("breaking its configuration, and learning why it does not start")
		Expect(os.WriteFile(config, []byte("export default { this is no JavaScript"), 0o644)).To(Succeed())
		_, failure := c.call(ctx, "restart", map[string]any{"name": "devserver/agent", "wait": true, "timeoutSeconds": 20})
		Expect(failure).To(ContainSubstring("call get for the last output"))
		Eventually(func() string { text, _ := c.call(ctx, "get", name); return text }).Should(
			And(ContainSubstring("exit code 1"), ContainSubstring("failed to load config"), ContainSubstring("vite.config.js")))
		Expect(suiteBerth.run(ctx, "status", "devserver/agent", "-o", "jsonpath={.status.lastExit.logTail}")).To(ContainSubstring("failed to load config"))
		logs, _ := c.call(ctx, "logs", map[string]any{"name": "devserver/agent", "search": "(?i)failed to"})
		Expect(logs).To(ContainSubstring("vite.config.js"))

		By("mending it")
		Expect(os.Remove(config)).To(Succeed())
		Expect(c.must(ctx, "restart", wait)).To(And(HaveKeyWithValue("ready", "True"), HaveKeyWithValue("address", address)), "the address survives")
		Eventually(func() (string, error) { return fetch(address) }).Should(ContainSubstring("/@vite/client"))

		By("stopping, starting and deleting it")
		Expect(c.must(ctx, "stop", wait)).To(HaveKeyWithValue("reason", "Stopped"))
		Expect(c.must(ctx, "get", name)).To(HaveKeyWithValue("next", ContainSubstring("call start")))
		Expect(c.must(ctx, "start", wait)).To(HaveKeyWithValue("ready", "True"))
		Expect(c.must(ctx, "delete", wait)).To(HaveKeyWithValue("result", "devserver/agent deleted"))
		_, failure = c.call(ctx, "get", name)
		Expect(failure).To(ContainSubstring("does not exist"))
	})

	It("runs the dev server that berth init proposes", Label(anyUser), NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		dir := workingCopy(ctx, "samples/vite")
		suiteBerth.run(ctx, "init", dir, "--yes")
		for _, file := range []string{".mcp.json", ".claude/settings.json", ".codex/config.toml", ".cursor/mcp.json", ".vscode/mcp.json", "AGENTS.md"} {
			Expect(os.ReadFile(filepath.Join(dir, file))).To(ContainSubstring("berth"), file)
		}
		object := "devserver/" + filepath.Base(dir)
		Expect(suiteBerth.run(ctx, "apply", "-f", filepath.Join(dir, "berth.yaml"))).To(ContainSubstring("applied " + object))
		DeferCleanup(func(ctx context.Context) { suiteBerth.run(ctx, "delete", object, "--wait") }, NodeTimeout(timeout))
		suiteBerth.run(ctx, "restart", object, "--wait")
		Expect(fetch(strings.TrimSpace(suiteBerth.run(ctx, "open", object)))).To(ContainSubstring("/@vite/client"))
	})

	It("lets an agent type into a session and read its output from a cursor", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		c := newToolClient(ctx)
		name := map[string]any{"name": "instance/agent-shell"}
		c.must(ctx, "apply", map[string]any{"name": "instance/agent-shell", "command": []string{"/bin/bash", "--norc", "-i"}, "wait": true})
		DeferCleanup(func(ctx context.Context) { _, _ = c.call(ctx, "delete", name) }, NodeTimeout(timeout))
		c.must(ctx, "send", map[string]any{"name": "instance/agent-shell", "text": "echo one $((20+22))"})
		var cursor string
		Eventually(func() string {
			result := c.must(ctx, "logs", name)
			cursor = result["cursor"].(string)
			return fmt.Sprint(result["untrustedOutput"])
		}).Should(ContainSubstring("one 42"))

		By("subscribing to the object and its log")
		object := "berth://" + namespace + "/instance/agent-shell"
		for _, uri := range []string{object, object + "/log"} {
			Expect(c.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})).To(Succeed())
		}
		Eventually(c.updated).Should(Receive(Equal(object)), "the watch begins with the current state")
		c.must(ctx, "send", map[string]any{"name": "instance/agent-shell", "text": "echo two $((20+23))"})
		Eventually(func() string {
			return fmt.Sprint(c.must(ctx, "logs", map[string]any{"name": "instance/agent-shell", "cursor": cursor})["untrustedOutput"])
		}).Should(And(ContainSubstring("two 43"), Not(ContainSubstring("one 42"))))
		Eventually(func() string { return c.must(ctx, "screen", name)["untrustedOutput"].(string) }).Should(And(ContainSubstring("one 42"), ContainSubstring("two 43")))
		Eventually(func(g Gomega) { // the subscription may have begun after the output
			c.must(ctx, "send", map[string]any{"name": "instance/agent-shell", "text": "echo more"})
			g.Eventually(c.updated, time.Second).Should(Receive(Equal(object + "/log")))
		}).Should(Succeed())
		log, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: object + "/log"})
		Expect(err).NotTo(HaveOccurred())
		Expect(log.Contents[0].Text).To(ContainSubstring("two 43"))
		c.must(ctx, "stop", map[string]any{"name": "instance/agent-shell", "wait": true})
		Eventually(c.updated).Should(Receive(Equal(object)))
	})

	It("lets an agent use a plan up to its gate and approve it", Serial, NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		module, reports := copyDir("samples/greeting"), GinkgoT().TempDir()
		applyAction(ctx)
		c := newToolClient(ctx, "--toolsets", "plan", "--allow-approve")
		use := map[string]any{
			"action": "check-module", "key": module, "to": "execute", "wait": true, "timeoutSeconds": 300, "arguments": map[string]string{"module": module, "reports": reports},
		}
		created := c.must(ctx, "use", use)
		DeferCleanup(deletePlanWithRuns, onlyPlan(ctx))
		Expect(created).To(And(HaveKeyWithValue("result", "created"), HaveKeyWithValue("waiting", "for approval of Apply")))
		Expect(c.must(ctx, "use", use)).To(And(HaveKeyWithValue("result", "already exists"), HaveKeyWithValue("name", created["name"])))
		Expect(filepath.Glob(filepath.Join(reports, "*.md"))).To(BeEmpty(), "no report is written before the approval")
		status, _ := c.call(ctx, "plan_status", map[string]any{"name": created["name"]})
		Expect(status).To(And(ContainSubstring("2 findings."), ContainSubstring(`"state":"Succeeded"`)))
		Expect(c.must(ctx, "approve", map[string]any{"name": created["name"], "phase": "apply", "attempt": created["attempt"], "wait": true})).To(HaveKeyWithValue("state", "Applied"))
		Expect(filepath.Glob(filepath.Join(reports, "*.md"))).To(HaveLen(1))
	})

	It("has no more permissions than its user", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		kubeconfig := readerKubeconfig(ctx)
		s := instance("guarded", "sleep", "infinity").create(ctx).waitUntilReady(ctx)
		c := newToolClient(ctx, "--kubeconfig", kubeconfig)
		name := map[string]any{"name": s.path()}
		Expect(c.must(ctx, "get", name)).To(HaveKeyWithValue("ready", "True"))
		for tool, arguments := range map[string]map[string]any{
			"restart": name, "stop": name, "delete": name, "send": {"name": s.path(), "text": "x"},
			"apply": {"name": "instance/intruder", "command": []string{"true"}},
		} {
			_, failure := c.call(ctx, tool, arguments)
			Expect(failure).To(Or(ContainSubstring("is forbidden"), ContainSubstring("may not create instances/attach.berth.dev")), tool)
		}
		s.waitForIncarnation(ctx, 1)
	})
})

// agentCount is the number of agents that use one berth mcp at the same time.
const agentCount = 50

var _ = Describe("berth mcp over HTTP", func() {
	It("serves 50 agents at the same time", Label(anyUser), NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		s := instance("crowded", "sleep", "infinity").create(ctx).waitUntilReady(ctx)
		address, token := listenMCP(ctx)
		Expect(s.read(ctx)).To(Succeed())
		version, before := s.GetResourceVersion(), residentMemory(suiteBerth.cmd.Process.Pid)

		var all sync.WaitGroup
		took := make([][]time.Duration, agentCount)
		failed := make([]error, agentCount)
		for i := range agentCount {
			all.Go(func() { took[i], failed[i] = manyCalls(ctx, address, token, s.path()) })
		}
		all.Wait()
		Expect(errors.Join(failed...)).NotTo(HaveOccurred())
		times := slices.Sorted(slices.Values(slices.Concat(took...)))
		Expect(times).To(HaveLen(agentCount * callCount()))
		after := residentMemory(suiteBerth.cmd.Process.Pid)
		AddReportEntry(fmt.Sprintf("%d agents, %d calls: p50 %s, p99 %s; memory of berth up before and after: %d and %d MiB",
			agentCount, len(times), times[len(times)/2], times[len(times)*99/100], before>>20, after>>20))
		Expect(after - before).To(BeNumerically("<", 64<<20))
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.GetResourceVersion()).To(Equal(version), "reading writes nothing")
	})
})

// callCount returns the number of calls of each agent: the value of the environment variable CALLS, or 20.
func callCount() int {
	if n, err := strconv.Atoi(os.Getenv("CALLS")); err == nil {
		return n
	}
	return 20
}

// manyCalls connects one agent and calls tools that read. It returns how long each call took.
func manyCalls(ctx context.Context, address, token, name string) (took []time.Duration, err error) {
	transport := &mcp.StreamableClientTransport{Endpoint: address, HTTPClient: &http.Client{Transport: bearer(token)}}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(ctx, transport, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	for i := range callCount() {
		tool := []string{"get", "logs", "list"}[i%3]
		arguments := map[string]any{}
		if tool != "list" {
			arguments["name"] = name
		}
		begun := time.Now()
		result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil {
			return took, err
		}
		text := result.Content[0].(*mcp.TextContent).Text
		if result.IsError || tool != "logs" && !strings.Contains(text, name) {
			return took, fmt.Errorf("%s: %s", tool, text)
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

// bearer sends a token with each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// readerKubeconfig returns a kubeconfig of a service account that may only read Berth objects.
func readerKubeconfig(ctx context.Context) string {
	GinkgoHelper()
	suiteBerth.kubectl(ctx, "-n", namespace, "create", "serviceaccount", "reader")
	suiteBerth.kubectl(ctx, "-n", namespace, "create", "role", "reader", "--verb=get,list,watch", "--resource=instances.berth.dev,devservers.berth.dev,languageservers.berth.dev")
	suiteBerth.kubectl(ctx, "-n", namespace, "create", "rolebinding", "reader", "--role=reader", "--serviceaccount="+namespace+":reader")
	DeferCleanup(func(ctx context.Context) {
		suiteBerth.kubectl(ctx, "-n", namespace, "delete", "serviceaccount/reader", "role/reader", "rolebinding/reader")
	}, NodeTimeout(timeout))
	token := strings.TrimSpace(suiteBerth.kubectl(ctx, "-n", namespace, "create", "token", "reader"))
	path := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	text, err := os.ReadFile(suiteBerth.kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
	user := strings.TrimSpace(suiteBerth.kubectl(ctx, "--kubeconfig", path, "config", "view", "-o", "jsonpath={.users[0].name}"))
	suiteBerth.kubectl(ctx, "--kubeconfig", path, "config", "set-credentials", user, "--token="+token)
	Eventually(func() int { // the API server learns of the role and of the binding from watches of its own
		_, code := suiteBerth.resultOf(ctx, filepath.Join(suiteBerth.assets, "kubectl"), "--kubeconfig", path, "-n", namespace, "auth", "can-i", "get", "instances.berth.dev")
		return code
	}).WithContext(ctx).Should(BeZero())
	return path
}
