// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/endpoint"
)

// renewedAgo returns the Lease of a host, renewed the given time ago.
func renewedAgo(host string, ago time.Duration) client.Object {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: endpoint.Namespace, Name: "berth-host-" + host, Labels: map[string]string{v1alpha1.LabelHost: host}},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-ago)))},
	}
}

func onHost(host string) func(*v1alpha1.DevServer) {
	return func(server *v1alpha1.DevServer) { server.Status.HostName = host }
}

func TestCommands_WarnAboutSilentManager(t *testing.T) {
	const silence = 45*time.Minute + 30*time.Second // also 45m on a slow machine
	const silent = "warning: the manager of host laptop has been silent for 45m"
	for name, test := range map[string]struct {
		args    string
		objects []client.Object
		warns   string
	}{
		"status":                {"status", []client.Object{web(onHost("laptop")), renewedAgo("laptop", silence)}, silent},
		"status of one":         {"status devserver/web", []client.Object{web(onHost("laptop")), renewedAgo("laptop", silence)}, silent},
		"restart":               {"restart devserver/web", []client.Object{web(onHost("laptop")), renewedAgo("laptop", silence)}, silent},
		"stop":                  {"stop devserver/web", []client.Object{web(onHost("laptop")), renewedAgo("laptop", silence)}, silent},
		"renewed":               {"status", []client.Object{web(onHost("laptop")), renewedAgo("laptop", 12*time.Second)}, ""},
		"another host":          {"status", []client.Object{web(onHost("laptop")), renewedAgo("laptop", 0), renewedAgo("other", time.Hour)}, ""},
		"a host without Lease":  {"status", []client.Object{web(onHost("laptop")), renewedAgo("other", time.Hour)}, ""},
		"no host, one reports":  {"status", []client.Object{web(), renewedAgo("laptop", time.Hour), renewedAgo("other", 0)}, ""},
		"no host, none reports": {"status", []client.Object{web(), renewedAgo("laptop", time.Hour), renewedAgo("other", silence)}, "warning: every manager has been silent for 45m"},
		"no Lease at all":       {"status", []client.Object{web()}, ""},
		"no objects":            {"status", []client.Object{renewedAgo("laptop", time.Hour)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(test.objects...)
			g.Expect(f.run(t.Context(), strings.Fields(test.args)...)).To(BeZero(), f.err.String())
			if test.warns == "" {
				g.Expect(f.err.String()).NotTo(ContainSubstring("warning"))
				return
			}
			g.Expect(f.err.String()).To(ContainSubstring(test.warns))
			g.Expect(strings.Count(f.err.String(), "warning")).To(Equal(1))
		})
	}
}

func TestExcerpt_KeepsLastRelevantLines(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"nothing":      {"", nil},
		"blank lines":  {"\n\r\n \n", nil},
		"one line":     {"npm error Missing script: \"dev\"\n", []string{`npm error Missing script: "dev"`}},
		"stack frames": {"SyntaxError: x\n    at wrapSafe (node:internal:1)\n    at Module\n\nNode.js v20\n", []string{"SyntaxError: x", "Node.js v20"}},
		"escapes":      {"\x1b[31mred\x1b[0m\x07\r\n", []string{"red\ufffd"}},
		"many lines":   {strings.Repeat("x\n", 40) + "last\n", append(slices.Repeat([]string{"x"}, outputLines-1), "last")},
		"long lines":   {strings.Repeat(strings.Repeat("y", 200)+"\n", 9), slices.Repeat([]string{strings.Repeat("y", outputLine-3) + "…"}, 6)},
		"one too long": {strings.Repeat("ä", 600), []string{strings.Repeat("ä", (outputLine-3)/2) + "…"}},
		"frames":       {"failed to load config\n ╭─[ vite.config.js:1:2 ]\n │" + strings.Repeat(" ", 900) + "┬\n ╯\n}\n", []string{"failed to load config", " ╭─[ vite.config.js:1:2 ]"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got := excerpt([]byte(test.text))
			g.Expect(got).To(Equal(test.want))
			g.Expect(len(strings.Join(got, "\n"))).To(BeNumerically("<=", outputLimit))
		})
	}
}
