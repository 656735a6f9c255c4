// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

func TestLogs_ScreenPrintsRenderedTerminal(t *testing.T) {
	g := NewWithT(t)
	agent := agentInPod()
	agent.Spec.Terminal.Columns, agent.Spec.Terminal.Rows = ptr.To[int32](10), ptr.To[int32](3)
	f := newFixture(agent, agentPod("2"))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "old\r\n\x1b[2J\x1b[H\x1b[1;31mfirst line is long\x1b[0m\x1b]0;title\a\r\n\x1b[3;1H> \x1b[6n")
	}))
	t.Cleanup(server.Close)
	f.app.connect = func(*connectionFlags) (*connection, error) {
		return &connection{config: &rest.Config{Host: server.URL}, client: f.api, namespace: "default"}, nil
	}
	g.Expect(f.run(t.Context(), "logs", "--screen", "instance/agent")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(Equal("first line\n is long\n>\n"))
}

func TestLogs_ScreenRefusesInvalidUse(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"with -f":                   {[]string{"-f", "instance/agent"}, 2, "--screen prints the current screen: it cannot be combined with --follow or --tail"},
		"with --tail":               {[]string{"--tail=3", "instance/agent"}, 2, "it cannot be combined with --follow or --tail"},
		"object without a terminal": {[]string{"devserver/web"}, 1, "devserver/web has no terminal"},
		"missing object":            {[]string{"instance/none"}, 3, "instance/none"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(agentInPod(), web())
			g.Expect(f.run(t.Context(), append([]string{"logs", "--screen"}, test.args...)...)).To(Equal(test.code))
			g.Expect(f.err.String()).To(ContainSubstring(test.says))
		})
	}
}
