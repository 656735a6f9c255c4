// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// Real clients start berth mcp with few environment variables, so the tests pass the kubeconfig as a flag, as docs/mcp.md recommends.
var _ = Describe("berth mcp with real clients", Ordered, Label(anyUser), func() {
	var project, home string

	// prepare returns a command that runs a program of the npm project with its own Node, because the conformance suite needs Node 22. run runs it and returns what
	// it prints on standard output.
	prepare := func(ctx context.Context, program string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(project, "node_modules", ".bin", program), args...)
		cmd.Dir = home
		cmd.Env = append(suiteBerth.environment(), "HOME="+home)
		for i, variable := range cmd.Env {
			if path, ok := strings.CutPrefix(variable, "PATH="); ok {
				cmd.Env[i] = "PATH=" + filepath.Join(project, "node_modules", "node", "bin") + string(os.PathListSeparator) + path
			}
		}
		return cmd
	}
	run := func(ctx context.Context, program string, args ...string) string {
		GinkgoHelper()
		cmd := prepare(ctx, program, args...)
		var printed, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &printed, &said
		Expect(cmd.Run()).To(Succeed(), "%s %s\n%s\n%s", program, strings.Join(args, " "), &printed, &said)
		Expect(said.String()).NotTo(ContainSubstring("Warning"), "%s %s", program, strings.Join(args, " "))
		return printed.String()
	}
	server := func() []string {
		return []string{suiteBerth.program(), "mcp", "-n", namespace, "--kubeconfig", suiteBerth.kubeconfig(), "--allow-approve"}
	}

	BeforeAll(func(ctx context.Context) {
		project, home = installProject(ctx, "test/e2e/projects/mcp"), GinkgoT().TempDir()
	}, NodeTimeout(startTimeout))

	It("is called by the official inspector", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		inspect := func(args ...string) string {
			GinkgoHelper()
			return run(ctx, "mcp-inspector", append(append([]string{"--cli"}, server()...), args...)...)
		}
		list := inspect("--method", "tools/list", "--strict")
		var tools struct {
			Tools []struct {
				Name         string          `json:"name"`
				OutputSchema json.RawMessage `json:"outputSchema"`
			} `json:"tools"`
		}
		Expect(json.Unmarshal([]byte(list), &tools)).To(Succeed(), list)
		Expect(tools.Tools).To(HaveLen(23))
		call := func(tool string, args ...string) string {
			GinkgoHelper()
			flags := []string{"--method", "tools/call", "--tool-name", tool}
			for _, arg := range args {
				flags = append(flags, "--tool-arg", arg)
			}
			return inspect(flags...)
		}
		Expect(call("apply", "name=instance/inspected", `command=["bash","-c","echo hello; exec cat"]`, "wait=true")).To(ContainSubstring("created"))
		Expect(call("list")).To(ContainSubstring("instance/inspected"))
		Expect(call("get", "name=instance/inspected")).To(ContainSubstring("Running"))
		Expect(call("send", "name=instance/inspected", "text=echoed")).To(ContainSubstring("typed"))
		Expect(call("logs", "name=instance/inspected", "search=hello")).To(ContainSubstring("hello"))
		Expect(call("screen", "name=instance/inspected")).To(ContainSubstring("hello"))
		Expect(call("restart", "name=instance/inspected", "wait=true")).To(ContainSubstring("Running"))
		Expect(call("stop", "name=instance/inspected", "wait=true")).To(ContainSubstring("Stopped"))
		Expect(call("start", "name=instance/inspected", "wait=true")).To(ContainSubstring("Running"))
		Expect(call("delete", "name=instance/inspected", "wait=true")).To(ContainSubstring("instance/inspected deleted"))

		By("calling the tools of the toolset code")
		project := languageProjects["gopls"]
		dir := GinkgoT().TempDir()
		for file, text := range project.files {
			Expect(os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)).To(Succeed())
		}
		file, by := "file="+filepath.Join(dir, project.main), "server=inspected"
		Expect(call("apply", "name=languageserver/inspected", `command=["`+project.command(ctx)[0]+`"]`, "language=go", "workingDir="+dir, "wait=true", "timeoutSeconds=120")).To(
			ContainSubstring("created"))
		DeferCleanup(func(ctx context.Context) { suiteBerth.run(ctx, "delete", "languageserver/inspected", "--wait") }, NodeTimeout(timeout))
		Expect(call("diagnostics", `files=["`+filepath.Join(dir, project.main)+`"]`, by)).To(MatchRegexp(`"settled": ?true`))
		for _, tool := range []string{"definition", "references", "hover"} {
			Expect(call(tool, file, "symbol=greet", by)).To(Or(ContainSubstring(project.helper), ContainSubstring(project.hover)), tool)
		}
		Expect(call("symbols", file, by)).To(ContainSubstring("main"))
		Expect(call("rename", file, "symbol=greet", "newName=welcome", by)).To(ContainSubstring(project.helper))
		Expect(call("format", file, by)).To(MatchRegexp(`"changed": ?false`))

		By("calling the tools of the toolset plan")
		applyAction(ctx)
		arguments, err := json.Marshal(map[string]string{"module": copyDir("samples/greeting"), "reports": GinkgoT().TempDir()})
		Expect(err).NotTo(HaveOccurred())
		created := call("use", "action=check-module", "key=inspected", "arguments="+string(arguments), "wait=true", "timeoutSeconds=300")
		plan := onlyPlan(ctx)
		DeferCleanup(deletePlanWithRuns, plan)
		Expect(created).To(ContainSubstring("for approval of Execute"))
		name := "name=" + plan.Name
		Expect(call("plan_status", name)).To(ContainSubstring("Succeeded"))
		Expect(call("approve", name, "phase=execute", "attempt=1")).To(ContainSubstring(plan.Name))
		Expect(call("revert", name, "phase=execute", "attempt=1")).To(ContainSubstring(plan.Name))
		Expect(call("cancel", name)).To(ContainSubstring(plan.Name))
		// A cancelled plan has no failed phase, so this call must fail.
		retry := append(append([]string{"--cli"}, server()...), "--method", "tools/call", "--tool-name", "retry", "--tool-arg", name, "--tool-arg", "phase=execute", "--tool-arg", "attempt=1")
		text, _ := prepare(ctx, "mcp-inspector", retry...).CombinedOutput() // the inspector reports the failure of the tool in its exit code
		Expect(string(text)).To(ContainSubstring("cancelled"))
	})

	It("passes the scenarios of the conformance suite that apply", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		address, token := listenMCP(ctx)
		// The suite sends no token.
		target, err := url.Parse(address)
		Expect(err).NotTo(HaveOccurred())
		proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.Header.Set("Authorization", "Bearer "+token)
		}, FlushInterval: -1})
		DeferCleanup(proxy.Close)
		// Most other scenarios need tools and prompts of a test server.
		for _, scenario := range []string{"server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"} {
			Expect(run(ctx, "conformance", "server", "--url", proxy.URL+target.Path, "--scenario", scenario)).To(MatchRegexp(`Passed: (\d)/\d, 0 failed, 0 warnings`), scenario)
		}
		response, err := http.Post(address, "application/json", strings.NewReader("{}"))
		Expect(err).NotTo(HaveOccurred())
		Expect(response.Body.Close()).To(Succeed())
		Expect(response.StatusCode).To(Equal(http.StatusUnauthorized))
	})

	It("is connected in Claude Code", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		run(ctx, "claude", append([]string{"mcp", "add", "berth", "--"}, server()...)...)
		Expect(run(ctx, "claude", "mcp", "list")).To(MatchRegexp(`berth: .* Connected`))
	})
})

// listenMCP starts berth mcp on a free port, and returns its address and its token.
func listenMCP(ctx context.Context) (address, token string) {
	GinkgoHelper()
	var said output
	cmd := exec.Command(suiteBerth.program(), "mcp", "-n", namespace, "--listen", "127.0.0.1:0")
	cmd.Env, cmd.Stderr = suiteBerth.environment(), &said
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() {
		Expect(cmd.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Expect(cmd.Wait()).To(Succeed())
	})
	printed := regexp.MustCompile(`(?s)MCP server: (\S+)\n.*Authorization: Bearer (\S+)\n`)
	Eventually(ctx, said.String).Should(MatchRegexp(printed.String()))
	found := printed.FindStringSubmatch(said.String())
	return found[1], found[2]
}
