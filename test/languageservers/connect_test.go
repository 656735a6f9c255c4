// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/mux"
	"github.com/berth-dev/berth/test/lspclient"
	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/npm"
)

// program returns the command to start the server in a folder.
func (s server) program(t *testing.T, folder string) *exec.Cmd {
	t.Helper()
	g := NewWithT(t)
	path := s.command[0]
	switch path {
	case "clangd":
		need.Programs(t, "clangd")
	case "gopls":
		built, err := filepath.Abs("../../bin/gopls")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(built).To(BeARegularFile(), "make gopls builds it")
		path = built
	default:
		need.Programs(t, "node", "npm")
		dir, err := npm.Install(t.Context(), "npm", func() { t.Log("installing the language servers with npm") })
		g.Expect(err).NotTo(HaveOccurred())
		path = filepath.Join(dir, "node_modules", ".bin", path)
	}
	command := exec.CommandContext(context.WithoutCancel(t.Context()), path, s.command[1:]...)
	command.Dir = folder
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return command
}

// start starts the server and returns a connection to its standard input and output. The whole process group is killed at the end of the test.
func (s server) start(t *testing.T, folder string) *lspclient.Program {
	t.Helper()
	command := s.program(t, folder)
	output, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	command.Stderr = output
	running, err := lspclient.Start(command)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = running.Close()
		_ = output.Close()
		if t.Failed() {
			text, _ := os.ReadFile(output.Name())
			t.Logf("standard error of the server: %.2000s", text)
		}
	})
	return running
}

// initializationOptions returns the initialization options of the server.
func (s server) initializationOptions(t *testing.T) map[string]any {
	t.Helper()
	if s.command[0] != "typescript-language-server" {
		return s.options
	}
	need.Programs(t, "node", "npm")
	dir, err := npm.Install(t.Context(), "npm", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	options := maps.Clone(s.options)
	options["tsserver"] = map[string]any{"path": filepath.Join(dir, "node_modules", "typescript", "lib")}
	return options
}

// alone starts a server for one client, and connects the client.
func (s server) alone(t *testing.T, folder string, capabilities json.RawMessage) *lspclient.Client {
	t.Helper()
	c := lspclient.New(s.start(t, folder), lspclient.Options{AnswerRequest: s.answerRequest})
	return s.initialize(t, c, folder, capabilities)
}

// answerRequest answers a request of a server with its settings.
func (s server) answerRequest(method string, params json.RawMessage) (any, *lspclient.Error) {
	if method != "workspace/configuration" {
		return nil, nil
	}
	var p struct {
		Items []struct{ Section string }
	}
	_ = json.Unmarshal(params, &p) // an invalid request gets an empty list
	values := make([]any, len(p.Items))
	for i, item := range p.Items {
		values[i] = s.settings[item.Section]
	}
	return values, nil
}

// shared starts a server that clients share, and returns the function that connects a client.
func (s server) shared(t *testing.T, folder string) (connect func(capabilities json.RawMessage) *lspclient.Client) {
	t.Helper()
	m := s.multiplexer(t, folder)
	return func(capabilities json.RawMessage) *lspclient.Client {
		return s.connect(t, m, folder, capabilities)
	}
}

// connect connects a client to a multiplexer.
func (s server) connect(t *testing.T, m *mux.Mux, folder string, capabilities json.RawMessage) *lspclient.Client {
	t.Helper()
	near, far := net.Pipe()
	go m.Serve(far)
	return s.initialize(t, lspclient.New(near, lspclient.Options{}), folder, capabilities)
}

// multiplexer starts a server behind a multiplexer.
func (s server) multiplexer(t *testing.T, folder string) *mux.Mux {
	t.Helper()
	m := mux.New(mux.Options{Config: s.config(t, folder), Log: t.Logf})
	running := s.start(t, folder)
	m.Attach(1, running, running)
	t.Cleanup(func() { m.Quit("the test is over") })
	return m
}

// config is the configuration of the multiplexer.
func (s server) config(t *testing.T, folder string) lsp.Config {
	t.Helper()
	config := lsp.Config{Language: s.language, Folders: []string{folder}}
	var err error
	config.InitializationOptions, err = json.Marshal(s.initializationOptions(t))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	if s.settings != nil {
		config.Settings, err = json.Marshal(s.settings)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	}
	return config
}

func (s server) initialize(t *testing.T, c *lspclient.Client, folder string, capabilities json.RawMessage) *lspclient.Client {
	t.Helper()
	t.Cleanup(c.Close)
	params := map[string]any{
		"processId": nil, "rootPath": folder, "rootUri": lspclient.URI(folder), "capabilities": capabilities,
		"workspaceFolders":      []any{map[string]any{"uri": lspclient.URI(folder), "name": filepath.Base(folder)}},
		"initializationOptions": s.initializationOptions(t),
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	NewWithT(t).Expect(c.Call(ctx, "initialize", params, nil)).To(Succeed())
	NewWithT(t).Expect(c.Notify("initialized", map[string]any{})).To(Succeed())
	return c
}
