// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

func TestCommands_ExitCodeAndOutput(t *testing.T) {
	for name, test := range map[string]struct {
		args     string
		code     int
		out, err []string
	}{
		"status":                             {args: "status", out: []string{"NAME", "devserver/web   True    Running   http://127.0.0.1:5173/   2          4711   5m"}},
		"status of a kind":                   {args: "status dsv", out: []string{"devserver/web"}},
		"status of one object":               {args: "status devservers/web", out: []string{"devserver/web"}},
		"status of a server on a wrong port": {args: "status", out: []string{"  devserver/web: PortVerified=False: The server listens on 5174 instead of 5173."}},
		"status, other namespace":            {args: "status -n other", out: []string{"instance/shell   False   CommandNotFound", "  instance/shell: sh was not found"}},
		"status, all namespaces":             {args: "status -A", out: []string{"NAMESPACE", "default     devserver/web", "other       instance/shell"}},
		"status, no objects":                 {args: "status -n empty", err: []string{"no objects in namespace empty"}},
		"status, missing object":             {args: "status devserver/nope", code: 3, err: []string{"devserver/nope does not exist in namespace \"default\"", "berth status -A"}},
		"status, a name and -A":              {args: "status -A devserver/web", code: 1, err: []string{"omit -A"}},
		"status, no such kind":               {args: "status pods", code: 1, err: []string{"use devserver, instance, languageserver, strategyrun, strategy, plan or instancediscovery"}},
		"restart":                            {args: "restart devserver/web", out: []string{"devserver/web restart requested"}},
		"restart, with the group":            {args: "restart DevServers.berth.dev/web", out: []string{"devserver/web restart requested"}},
		"restart, several":                   {args: "restart devserver/nope devserver/web", code: 3, out: []string{"devserver/web restart requested"}, err: []string{"devserver/nope does not exist"}},
		"restart, not a reference":           {args: "restart web", code: 1, err: []string{"KIND/NAME"}},
		"restart without arguments":          {args: "restart", code: 2, err: []string{"requires at least 1 arg", "Usage:", "berth restart KIND/NAME..."}},
		"stop":                               {args: "stop dsv/web", out: []string{"devserver/web stop requested"}},
		"start":                              {args: "start dsv/web", out: []string{"devserver/web start requested"}},
		"start, other namespace":             {args: "start dsv/web -n other", code: 3, err: []string{"does not exist in namespace \"other\""}},
		"logs without a manager":             {args: "logs devserver/web", code: 1, err: []string{"no manager", "berth up"}},
		"attach without a manager":           {args: "attach instance/shell -n other", code: 1, err: []string{"no manager"}},
		"attach to nothing":                  {args: "attach instance/shell", code: 3, err: []string{"instance/shell does not exist in namespace \"default\""}},
		"logs, a name":                       {args: "logs web", code: 1, err: []string{"no manager"}},
		"logs, a name of another namespace":  {args: "logs shell", code: 1, err: []string{`no object named "shell" in namespace "default"`, "KIND/NAME", "berth status -A"}},
		"logs of two":                        {args: "logs devserver/web devserver/web", code: 2, err: []string{"accepts 1 arg"}},
		"unknown flag":                       {args: "status --nope", code: 2, err: []string{"unknown flag: --nope", "Usage:"}},
		"unknown command":                    {args: "nope", code: 2, err: []string{"unknown command"}},
		"version":                            {args: "version", out: []string{"berth "}},
		"up, no such file":                   {args: "up -f /does/not/exist", code: 1, err: []string{"read manifests"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(web(), shell())
			g.Expect(f.run(t.Context(), strings.Fields(test.args)...)).To(Equal(test.code), f.err.String())
			for _, text := range test.out {
				g.Expect(f.out.String()).To(ContainSubstring(text))
			}
			for _, text := range test.err {
				g.Expect(f.err.String()).To(ContainSubstring(text))
			}
			g.Expect(f.out.String()+f.err.String()).NotTo(ContainSubstring("\x1b"), "no control sequences")
		})
	}
}

func TestStatus_ShowsConflictOfReadyServer(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web(func(server *v1alpha1.DevServer) {
		server.Status.Conditions = append(server.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionConflict, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPortShared, Message: "Connections to port 5174 also reach pid 7.",
		})
	}))
	g.Expect(f.run(t.Context(), "status")).To(BeZero())
	g.Expect(f.out.String()).To(ContainSubstring("  devserver/web: Conflict=True: Connections to port 5174 also reach pid 7."))
}

func TestLogs_NameOfSeveralObjectsIsRefused(t *testing.T) {
	g := NewWithT(t)
	twin := shell()
	twin.Namespace, twin.Name = "default", "web"
	f := newFixture(web(), twin)
	g.Expect(f.run(t.Context(), "logs", "web")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring(`several objects are named "web": use devserver/web or instance/web`))
}

func TestHelp_NamesKubectlPlugin(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	g.Expect(f.app.run(t.Context(), []string{"/usr/bin/kubectl-berth", "restart", "--help"})).To(BeZero())
	g.Expect(f.out.String()).To(ContainSubstring("kubectl berth restart KIND/NAME"))
}

func TestStopStartRestart_ChangeOnlyTheirFields(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web())
	g.Expect(f.run(t.Context(), "stop", "devserver/web")).To(BeZero())
	g.Expect(readWeb(g, f).Spec.State).To(Equal(v1alpha1.StateStopped))

	g.Expect(f.run(t.Context(), "restart", "devserver/web")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring("is stopped, so it cannot be restarted: run berth start devserver/web"))

	g.Expect(f.run(t.Context(), "start", "devserver/web")).To(BeZero())
	g.Expect(readWeb(g, f).Spec.State).To(Equal(v1alpha1.StateRunning))

	tokens := map[string]bool{}
	for range 3 {
		g.Expect(f.run(t.Context(), "restart", "devserver/web")).To(BeZero())
		tokens[readWeb(g, f).Spec.RestartToken] = true
	}
	g.Expect(tokens).To(HaveLen(3), "each request sets a new token")
	g.Expect(readWeb(g, f).Spec.Process.Command).To(Equal([]string{"web"}), "the rest of the spec is unchanged")
}

func TestRestart_WaitsForReadyOrStalled(t *testing.T) {
	for name, test := range map[string]struct {
		status func(*v1alpha1.DevServer)
		code   int
		says   string
	}{
		"until it is ready": {status: func(s *v1alpha1.DevServer) { s.Status.ObservedRestartToken = s.Spec.RestartToken }, says: "devserver/web restarted"},
		"until it is stalled": {code: 1, says: "CommandNotFound: no such program", status: func(s *v1alpha1.DevServer) {
			s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program",
			})
		}},
		"until the request is removed": {code: 1, says: "spec.restartToken was removed before the restart began", status: func(s *v1alpha1.DevServer) {
			s.Spec.RestartToken, s.Status.ObservedRestartToken = "", "an earlier one"
		}},
		"also if the request is removed during the restart": {says: "devserver/web restarted", status: func(s *v1alpha1.DevServer) {
			s.Spec.RestartToken, s.Status.ObservedRestartToken = "", "an earlier one"
			s.Status.Incarnation++
		}},
		"until it waits for a cause": {code: 1, says: "WorkingDirMissing: The requested restart waits.", status: func(s *v1alpha1.DevServer) {
			s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionDriftDetected, Status: metav1.ConditionTrue,
				Reason: v1alpha1.ReasonWorkingDirMissing, Message: "The requested restart waits.", ObservedGeneration: s.Generation})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(web())
			code := make(chan int, 1)
			go func() { code <- f.run(t.Context(), "restart", "--wait", "devserver/web") }()
			// The controller reacts some time after the request.
			g.Eventually(func() string { return readWeb(g, f).Spec.RestartToken }, timeout).ShouldNot(BeEmpty())
			g.Consistently(code, 300*time.Millisecond).ShouldNot(Receive(), "Ready from before the request does not count")
			server := readWeb(g, f)
			test.status(server)
			edited := server.DeepCopy()
			g.Expect(f.api.Status().Update(t.Context(), server)).To(Succeed())
			server.Spec = edited.Spec
			g.Expect(f.api.Update(t.Context(), server)).To(Succeed())
			g.Eventually(code, timeout).Should(Receive(Equal(test.code)))
			g.Expect(f.out.String() + f.err.String()).To(ContainSubstring(test.says))
		})
	}
}

func TestAnswered_ReportsWhyAChangeWaits(t *testing.T) {
	drift := func(reason string, generation int64, change ...func(*v1alpha1.DevServer)) *v1alpha1.DevServer {
		server := web(change...)
		server.Generation, server.Status.ObservedGeneration = 2, 2
		server.Status.Conditions = append(server.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionDriftDetected, Status: metav1.ConditionTrue,
			Reason: reason, Message: "The process runs with an older spec.", ObservedGeneration: generation})
		return server
	}
	onRestart := func(server *v1alpha1.DevServer) { server.Spec.UpdatePolicy = v1alpha1.UpdateOnRestart }
	for name, test := range map[string]struct {
		server *v1alpha1.DevServer
		ready  bool
		says   string
	}{
		"a changed spec waits":              {server: drift(v1alpha1.ReasonPortInUse, 2), says: "PortInUse"},
		"the condition is from before":      {server: drift(v1alpha1.ReasonPortInUse, 1), ready: true},
		"the spec is for the next restart":  {server: drift(v1alpha1.ReasonDrifted, 2, onRestart), ready: true},
		"a change that need not be applied": {server: drift(v1alpha1.ReasonPortInUse, 2, onRestart), ready: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ready, err := answered(test.server, 2, test.server.Spec.RestartToken)
			g.Expect(ready).To(Equal(test.ready))
			if test.says == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(test.says)))
			}
		})
	}
}

func TestRestart_WaitTimesOut(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web())
	g.Expect(f.run(t.Context(), "restart", "--wait", "--timeout=300ms", "devserver/web")).To(Equal(4))
	g.Expect(f.err.String()).To(ContainSubstring("is not ready after 300ms: see berth status devserver/web"))
}

func TestStatus_WatchPrintsOneLinePerChange(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web())
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() { code <- f.run(ctx, "status", "-w") }()
	g.Eventually(f.out.String, timeout).Should(ContainSubstring("devserver/web Ready=True Running pid=4711 restarts=2 http://127.0.0.1:5173/"))
	g.Expect(f.api.Delete(t.Context(), web())).To(Succeed())
	g.Eventually(f.out.String, timeout).Should(ContainSubstring("devserver/web deleted"))
	cancel()
	g.Eventually(code, timeout).Should(Receive(Equal(130)))
	g.Expect(strings.Count(f.out.String(), "\n")).To(Equal(2), "one line per change")
}

func goServer(change ...func(*v1alpha1.LanguageServer)) *v1alpha1.LanguageServer {
	server := &v1alpha1.LanguageServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "go", UID: "uid-go"},
		Spec:       v1alpha1.LanguageServerSpec{Language: "go", Workspace: v1alpha1.Workspace{Folders: []string{"/src"}}},
		Status: v1alpha1.LanguageServerStatus{Endpoint: "unix:///nowhere/lsp.sock", ProcessStatus: v1alpha1.ProcessStatus{
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRunning}},
		}},
	}
	for _, do := range change {
		do(server)
	}
	return server
}

func TestLanguageServerCommands_ExitCodeAndOutput(t *testing.T) {
	for name, test := range map[string]struct {
		args     string
		code     int
		out, err string
	}{
		"status":                        {args: "status lsv/go", out: "languageserver/go   True    Running   berth lsp connect go"},
		"restart":                       {args: "restart languageserver/go", out: "languageserver/go restart requested"},
		"stop":                          {args: "stop languageservers/go", out: "languageserver/go stop requested"},
		"start":                         {args: "start lsv/go", out: "languageserver/go start requested"},
		"start, already running":        {args: "start lsv/running", out: "languageserver/running already has the state Running; to retry it, run berth restart languageserver/running"},
		"logs":                          {args: "logs lsv/go", code: 1, err: "no manager"},
		"connect to nothing":            {args: "lsp connect nope", code: 3, err: `languageserver/nope does not exist in namespace "default": to list all, run berth status languageservers -A`},
		"connect to a server":           {args: "lsp connect devserver/web", code: 1, err: "devserver/web is not a language server"},
		"connect without name":          {args: "lsp connect", code: 2, err: "accepts 1 arg"},
		"connect until the input ends":  {args: "lsp connect go"},
		"as editors call it":            {args: "lsp connect languageserver/go --stdio --clientProcessId=4711"},
		"connect, stopped":              {args: "lsp connect stopped", err: "is stopped; waiting. To start it, run: berth start languageserver/stopped"},
		"connect, no address":           {args: "lsp connect fresh", err: "has no endpoint yet"},
		"connect, unsupported endpoint": {args: "lsp connect far", code: 1, err: "does not support: tcp://1.2.3.4:5"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(goServer(), web(),
				goServer(func(s *v1alpha1.LanguageServer) { s.Name, s.Spec.State = "stopped", v1alpha1.StateStopped }),
				goServer(func(s *v1alpha1.LanguageServer) { s.Name, s.Spec.State = "running", v1alpha1.StateRunning }),
				goServer(func(s *v1alpha1.LanguageServer) { s.Name, s.Status.Endpoint = "fresh", "" }),
				goServer(func(s *v1alpha1.LanguageServer) { s.Name, s.Status.Endpoint = "far", "tcp://1.2.3.4:5" }))
			g.Expect(f.run(t.Context(), strings.Fields(test.args)...)).To(Equal(test.code), f.err.String())
			g.Expect(f.out.String()).To(ContainSubstring(test.out))
			g.Expect(f.err.String()).To(ContainSubstring(test.err))
		})
	}
}

// TestLSPConnect_WaitsForEndpointAndReconnects connects before the endpoint exists, and reconnects after it has changed.
func TestLSPConnect_WaitsForEndpointAndReconnects(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(goServer(func(s *v1alpha1.LanguageServer) { s.Status.Endpoint = "" }))
	editor, toBerth := io.Pipe()
	f.app.in = editor
	code := make(chan int, 1)
	go func() { code <- f.run(t.Context(), "lsp", "connect", "go") }()
	g.Eventually(f.err.String, timeout).Should(ContainSubstring("has no endpoint yet"))

	for _, name := range []string{"one", "two"} {
		path := filepath.Join(t.TempDir(), name)
		listener, err := control.Listen(path)
		g.Expect(err).NotTo(HaveOccurred())
		server := goServer()
		g.Expect(f.api.Get(t.Context(), client.ObjectKeyFromObject(server), server)).To(Succeed())
		server.Status.Endpoint = "unix://" + path
		g.Expect(f.api.Status().Update(t.Context(), server)).To(Succeed())
		conn, err := listener.Accept()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(listener.Close()).To(Succeed())
		_, err = conn.Write(wire.AppendFrame(nil, []byte(`{"jsonrpc":"2.0","method":"hello/`+name+`"}`)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(f.out.String, timeout).Should(ContainSubstring("hello/" + name))
		g.Expect(conn.Close()).To(Succeed())
		g.Expect(os.Remove(path)).To(Succeed())
	}
	g.Expect(toBerth.Close()).To(Succeed())
	g.Eventually(code, timeout).Should(Receive(BeZero()))
}

func TestTemporary_IncludesAnswersThatWereCut(t *testing.T) {
	g := NewWithT(t)
	g.Expect(temporary(fmt.Errorf("install the CRDs: %w", io.ErrUnexpectedEOF))).To(BeTrue())
	g.Expect(temporary(&url.Error{Op: "Patch", URL: "https://127.0.0.1", Err: io.EOF})).To(BeTrue())
	g.Expect(temporary(errors.New("the manifest is invalid"))).To(BeFalse())
}
