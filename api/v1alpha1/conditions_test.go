// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestReasons_AreDocumented compares the reasons in conditions.go with the rows of docs/messages.md.
func TestReasons_AreDocumented(t *testing.T) {
	g := NewWithT(t)
	file, err := parser.ParseFile(token.NewFileSet(), "conditions.go", nil, 0)
	g.Expect(err).NotTo(HaveOccurred())
	var reasons []string
	ast.Inspect(file, func(node ast.Node) bool {
		spec, is := node.(*ast.ValueSpec)
		if is && strings.HasPrefix(spec.Names[0].Name, "Reason") {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			g.Expect(err).NotTo(HaveOccurred())
			reasons = append(reasons, value)
		}
		return true
	})
	g.Expect(len(reasons)).To(BeNumerically(">", 100))

	page, err := os.ReadFile("../../docs/messages.md")
	g.Expect(err).NotTo(HaveOccurred())
	var rows []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, row[1])
	}
	g.Expect(rows).To(ConsistOf(reasons), "docs/messages.md has one row for each reason")
}

// TestOutcomes_AreReasons checks that the outcome of a run, which is the reason of its conditions, is a documented reason.
func TestOutcomes_AreReasons(t *testing.T) {
	for outcome, reason := range map[RunOutcome]string{
		OutcomeSucceeded: ReasonSucceeded, OutcomeFailed: ReasonFailed, OutcomeTimedOut: ReasonTimedOut, OutcomeCancelled: ReasonCancelled, OutcomeSkipped: ReasonSkippedCircuitOpen,
	} {
		NewWithT(t).Expect(string(outcome)).To(Equal(reason))
	}
}
