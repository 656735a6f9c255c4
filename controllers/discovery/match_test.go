// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pattern"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestSource_MatchesByItsCriteria(t *testing.T) {
	tmux := func(prefix, pattern string, processes ...string) v1alpha1.DiscoverySource {
		return v1alpha1.DiscoverySource{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Prefix: prefix, Pattern: pattern}, Processes: processes}
	}
	docker := func(image string, labels map[string]v1alpha1.LabelText, processes ...string) v1alpha1.DiscoverySource {
		return v1alpha1.DiscoverySource{Type: v1alpha1.RuntimeDocker, Docker: &v1alpha1.DockerSource{Image: image, MatchLabels: labels}, Processes: processes}
	}
	found := runtime.Found{Name: "claude-foo", Command: "/usr/bin/claude --resume", Image: "hub/agent:2", Labels: map[string]string{"agent": "yes"}}
	for name, test := range map[string]struct {
		source v1alpha1.DiscoverySource
		means  bool
	}{
		"no criteria":                 {v1alpha1.DiscoverySource{Type: v1alpha1.RuntimeTmux}, true},
		"a prefix":                    {tmux("claude-", ""), true},
		"another prefix":              {tmux("claude-foob", ""), false},
		"a prefix in the middle":      {tmux("foo", ""), false},
		"a pattern anywhere":          {tmux("", "de-f"), true},
		"a pattern with anchors":      {tmux("", "^claude-fo$"), false},
		"the prefix, not the pattern": {tmux("claude", "bar"), false},
		"the program":                 {tmux("", "", "codex", "claude"), true},
		"another program":             {tmux("", "", "codex"), false},
		"an image":                    {docker("hub/agent:2", nil), true},
		"a prefix of an image":        {docker("hub/agent", nil), false},
		"a glob":                      {docker("*/agent:*", nil), true},
		"a glob with another ending":  {docker("*/agent:*3", nil), false},
		"only a star":                 {docker("*", nil), true},
		"stars that share a text":     {docker("hub/agent:2*2", nil), false},
		"a label":                     {docker("", map[string]v1alpha1.LabelText{"agent": "yes"}), true},
		"a label with another value":  {docker("", map[string]v1alpha1.LabelText{"agent": ""}), false},
		"a missing label":             {docker("", map[string]v1alpha1.LabelText{"other": ""}), false},
		"image, label and program":    {docker("hub/*", map[string]v1alpha1.LabelText{"agent": "yes"}, "claude"), true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			patterns := pattern.Compile(patternsOf([]v1alpha1.DiscoverySource{test.source}))
			g.Expect(matcher(&test.source, patterns.Patterns[0])(&found)).To(Equal(test.means))
		})
	}
}

func TestObjectName_IsValidAndUnique(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	session := func(socket, name string, created time.Time) *candidate {
		return &candidate{kind: v1alpha1.RuntimeTmux, socket: socket, Found: runtime.Found{ID: "$1", Name: name, Created: created}}
	}
	container := func(id, name string) *candidate {
		return &candidate{kind: v1alpha1.RuntimeDocker, Found: runtime.Found{ID: id, Name: name, Created: at}}
	}
	g := NewWithT(t)
	g.Expect(objectName(session("default", "Foo_Bar", at))).To(Equal(objectName(session("default", "Foo_Bar", at))), "the name depends only on the session")
	all := []*candidate{
		session("default", "Foo_Bar", at), session("default", "foo-bar", at), session("berth", "foo-bar", at), session("default", "foo-bar", at.Add(time.Second)),
		container("0123", "foo-bar"), container("4567", "foo-bar"), session("default", "日本 語", at), session("default", "!!!", at),
		session("default", strings.Repeat("long ", 40), at), session("default", "-a-", at),
	}
	seen := map[string]bool{}
	for _, thing := range all {
		name := objectName(thing)
		g.Expect(seen).NotTo(HaveKey(name), "two objects have the same name")
		seen[name] = true
		g.Expect(validation.IsDNS1123Label(name)).To(BeEmpty(), name)
	}
	g.Expect(objectName(all[0])).To(HavePrefix("foo-bar-"))
	g.Expect(objectName(all[7])).To(HavePrefix("found-"))
}
