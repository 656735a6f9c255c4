// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
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

// TestLogs_AsksManagerIfObjectMustNotBeRead checks a role that permits reading the output but not the object. Every other error is reported as it is.
func TestLogs_AsksManagerIfObjectMustNotBeRead(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		says string
	}{
		"forbidden":      {apierrors.NewForbidden(schema.GroupResource{Resource: "devservers"}, "web", nil), `"ftp://pinned"`},
		"not available":  {apierrors.NewServiceUnavailable("no quorum"), "no quorum"},
		"does not exist": {apierrors.NewNotFound(schema.GroupResource{Resource: "devservers"}, "web"), "devserver/web does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(servedAt("laptop", "https://192.0.2.1"))
			f.api = interceptor.NewClient(f.api, interceptor.Funcs{
				Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
					if _, is := object.(*v1alpha1.DevServer); is {
						return test.err
					}
					return api.Get(ctx, key, object, opts...)
				},
			})
			g.Expect(f.run(t.Context(), "logs", "devserver/web", "--endpoint=ftp://pinned")).NotTo(BeZero())
			g.Expect(f.err.String()).To(ContainSubstring(test.says))
		})
	}
}
