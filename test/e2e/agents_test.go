// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// sendCount is the number of texts sent to each agent.
const sendCount = 10

// Coding agents treat text and Enter that arrive together as a paste and do not submit the text, so berth send has to pause before Enter. A local server
// replaces the model and counts the texts that the agents submit.
var _ = Describe("berth send", func() {
	DescribeTable("submits every text to a coding agent", Label(anyUser, codingAgents), func(ctx context.Context, agent func(ctx context.Context, model string) *testObject, prompt string) {
		model := newModel()
		s := agent(ctx, model.URL).create(ctx).waitUntilReady(ctx)
		Eventually(func() string { return suiteBerth.run(ctx, "logs", s.path()) }).WithTimeout(startTimeout).Should(ContainSubstring(prompt))
		// An agent that is still starting loses its input: Codex waits for answers of the terminal, and Gemini CLI sets up its input after its first screen.
		// The spec therefore waits for a pause of the output. It reads the log, because the status records the last activity at most every 30 s.
		var shown string
		var since time.Time
		Eventually(func() time.Duration {
			if now := suiteBerth.run(ctx, "logs", s.path()); now != shown {
				shown, since = now, time.Now()
			}
			return time.Since(since)
		}).WithTimeout(startTimeout).Should(BeNumerically(">", 4*time.Second))
		for i := range sendCount {
			text := fmt.Sprintf("what is the square of %d?", 1000+i)
			suiteBerth.run(ctx, "send", s.path(), text)
			Eventually(model.questionCounts).Should(HaveKey(text), "text %d of %d was not submitted:\n%s", i+1, sendCount, suiteBerth.run(ctx, "logs", s.path(), "--tail", "200"))
		}
	},
		Entry("Codex", NodeTimeout(10*time.Minute), codex, "Ask Codex"),
		Entry("Gemini CLI", NodeTimeout(10*time.Minute), gemini, "Type your message"),
	)

	It("types the text that follows Ctrl-C after the interrupted program has exited", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		s := instance("interrupted", "/bin/bash", "--norc", "-i").create(ctx).waitUntilReady(ctx)
		for i := range 10 {
			logs := func() string { return suiteBerth.run(ctx, "logs", s.path()) }
			suiteBerth.run(ctx, "send", s.path(), fmt.Sprintf("echo double $((2*%d)); cat", 1000+i))
			Eventually(logs).Should(ContainSubstring(fmt.Sprint("double ", 2*(1000+i))))
			suiteBerth.run(ctx, "send", s.path(), "--interrupt", fmt.Sprintf("echo square $((%d*%d))", 1000+i, 1000+i))
			Eventually(logs).Should(ContainSubstring(fmt.Sprint("square ", (1000+i)*(1000+i))), "text %d of 10 was lost", i+1)
		}
	})
})

// codex returns an Instance of Codex that uses a model at a URL, without an account.
func codex(ctx context.Context, model string) *testObject {
	home := GinkgoT().TempDir()
	configureCodex(home, home, model)
	return agent(ctx, "codex", home)
}

// configureCodex makes Codex use a model at a URL, and trust a folder.
func configureCodex(home, trusted, model string) {
	GinkgoHelper()
	Expect(os.Mkdir(filepath.Join(home, ".codex"), 0o755)).To(Succeed())
	Expect(os.WriteFile(filepath.Join(home, ".codex", "config.toml"), fmt.Appendf(nil, `
model = "test"
model_provider = "test"
check_for_update_on_startup = false
[model_providers.test]
name = "test"
base_url = "%s/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[projects.%q]
trust_level = "trusted"
`, model, trusted), 0o644)).To(Succeed())
}

// gemini returns an Instance of Gemini CLI that uses a model at a URL, with a placeholder API key.
func gemini(ctx context.Context, model string) *testObject {
	home := GinkgoT().TempDir()
	configureGemini(home)
	return agent(ctx, "gemini", home, geminiEnv(model)...)
}

func geminiEnv(model string) []v1alpha1.EnvVar {
	return []v1alpha1.EnvVar{{Name: "GEMINI_API_KEY", Value: "none"}, {Name: "GOOGLE_GEMINI_BASE_URL", Value: model}}
}

// configureGemini makes Gemini CLI use an API key and trust all folders.
func configureGemini(home string) {
	GinkgoHelper()
	Expect(os.Mkdir(filepath.Join(home, ".gemini"), 0o755)).To(Succeed())
	Expect(os.WriteFile(filepath.Join(home, ".gemini", "settings.json"), []byte(`{
		"security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
		"general": {"disableAutoUpdate": true}
	}`), 0o644)).To(Succeed())
}

func agent(ctx context.Context, name, home string, env ...v1alpha1.EnvVar) *testObject {
	s := instance(name, filepath.Join(installProject(ctx, "test/e2e/projects/agents"), "node_modules", ".bin", name))
	spec := s.GetProcessSpec()
	spec.Process.WorkingDir = home
	spec.Process.Env = append(append(spec.Process.Env, env...), v1alpha1.EnvVar{Name: "HOME", Value: home}) // keeps the mark of the object
	return s
}

// model is a server that replaces a model. It answers every request with an error, except those of Gemini CLI if replies is set, and counts the occurrences of each
// question in the requests.
type model struct {
	*httptest.Server
	replies bool // set before the first request
	mu      sync.Mutex
	texts   map[string]int
}

func (m *model) questionCounts() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.texts)
}

var question = regexp.MustCompile(`what is the square of \d+\?`)

func newModel() *model {
	m := &model{texts: map[string]int{}}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m.mu.Lock()
		for _, text := range question.FindAllString(string(body), -1) {
			m.texts[text]++
		}
		m.mu.Unlock()
		if m.replies && strings.HasPrefix(r.URL.Path, "/v1beta/models/") {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, event := range geminiEvents(nil, "", false) {
				data, _ := json.Marshal(event)
				_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
			}
			return
		}
		http.Error(w, `{"error": {"code": 400, "message": "no model", "status": "INVALID_ARGUMENT"}}`, http.StatusBadRequest)
	}))
	DeferCleanup(m.Close)
	return m
}
