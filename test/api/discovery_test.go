// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

var discoveryOnly = []string{kindDiscovery}

// init adds the test cases for the rules that only InstanceDiscovery has.
func init() {
	long := strings.Repeat("a", 318)
	refusals = append(refusals, []refusal{
		{"no source", discoveryOnly, `{spec: {sources: []}}`, "spec.sources"},
		{"a source twice", discoveryOnly, `{spec: {sources: [{name: a, type: Tmux}, {name: a, type: Docker}]}}`, "Duplicate value"},
		{"a source of the type Host", discoveryOnly, `{spec: {sources: [{name: a, type: Host}]}}`, "the type of a source must be Tmux or Docker"},
		{"tmux for a Docker source", discoveryOnly, `{spec: {sources: [{name: a, type: Docker, tmux: {prefix: a}}]}}`, "tmux is only allowed if type is Tmux"},
		{"docker for a tmux source", discoveryOnly, `{spec: {sources: [{name: a, type: Tmux, docker: {image: a}}]}}`, "docker is only allowed if type is Docker"},
		{"a pattern that is not a regular expression", discoveryOnly, `{spec: {sources: [{name: a, type: Tmux, tmux: {pattern: "claude-("}}]}}`, "must be a valid regular expression (RE2)"},
		{"the state OnDemand", discoveryOnly, `{spec: {state: OnDemand}}`, "Unsupported value"},
		{"an interval of one second", discoveryOnly, `{spec: {intervalSeconds: 1}}`, "greater than or equal to 5"},
		{"a long name", discoveryOnly, `{metadata: {name: ` + strings.Repeat("a", 64) + `}}`, "the name must have at most 63 characters"},
		{"a label of a container with a long name", discoveryOnly, `{spec: {sources: [{name: a, type: Docker, docker: {matchLabels: {` + long + `: b}}}]}}`, "at most 317 characters"},
		{"a label with a long name", discoveryOnly, `{spec: {template: {labels: {` + long + `: b}}}}`, "at most 317 characters"},
		{"an annotation with a long name", discoveryOnly, `{spec: {template: {annotations: {` + long + `: b}}}}`, "at most 317 characters"},
	}...)
	transitions = append(transitions, []transition{
		{"another source, stopped, refreshed", discoveryOnly, `{}`, `{spec: {state: Stopped, refreshToken: a, sources: [{name: b, type: Docker}]}}`, ""},
		{"a pattern that becomes invalid", discoveryOnly, `{}`, `{spec: {sources: [{name: all, type: Tmux, tmux: {pattern: "["}}]}}`, "must be a valid regular expression (RE2)"},
	}...)
}

func TestDefaults_InstanceDiscovery(t *testing.T) {
	o := object(t, kindDiscovery, "defaulted", `{spec: {sources: [{name: a, type: Tmux, tmux: {prefix: claude-}}, {name: b, type: Docker}], template: {}}}`)
	NewWithT(t).Expect(dryRun(t.Context(), o)).To(Succeed())
	expectEqualJSON(t, parse(t, `
state: Running
intervalSeconds: 30
sources:
- {name: a, type: Tmux, tmux: {prefix: claude-, socket: default}}
- {name: b, type: Docker}
template: {ttlSecondsAfterStopped: 3600}
`), o.Object["spec"])
}

func TestDefinition_InstanceDiscovery(t *testing.T) {
	g := NewWithT(t)
	crd := definition(t, kindDiscovery)
	g.Expect(crd.Spec.Names.Categories).To(ConsistOf("berth"))
	g.Expect(crd.Spec.Names.ShortNames).To(ConsistOf("disc"))
	columns := make([]string, 0, 7)
	for _, column := range crd.Spec.Versions[0].AdditionalPrinterColumns {
		columns = append(columns, column.Name)
	}
	g.Expect(columns).To(Equal([]string{"Ready", "Reason", "Found", "Created", "Known", "Skipped", "Age"}))
}
