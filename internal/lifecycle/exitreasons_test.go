// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// reported matches the reasons of failed starts and of unhealthy processes where the code sets them.
var reported = regexp.MustCompile(`(?:StartError\{Reason:|UnhealthyReason =|markFaulty\(b,|fault:|f\.fault, f\.message =|report\.Unhealthy, report\.Message =|failure\(|ofImage\() ?(?:v1alpha1\.|shim\.|lsp\.)?Reason(\w+)`)

// TestExits_HasRowForEachReason searches the code for the reasons that backends report.
func TestExits_HasRowForEachReason(t *testing.T) {
	g := NewWithT(t)
	root := filepath.Join("..", "..")
	found := map[string]string{}
	for _, dir := range []string{"internal", "controllers"} {
		g.Expect(filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, match := range reported.FindAllStringSubmatch(string(text), -1) {
				found[match[1]] = path
			}
			return err
		})).To(Succeed())
	}
	g.Expect(found).To(And(HaveKey("ContainerMissing"), HaveKey("CommandNotFound"), HaveKey("Hung"), HaveKey("MemoryLimit"), HaveKey("TimedOut")), "reasons in the code")
	for reason, path := range found {
		g.Expect(exits).To(HaveKey(reason), "the reason of %s", path)
	}
}

func TestExits_RowsAreConsistent(t *testing.T) {
	for reason, meaning := range exits {
		g := NewWithT(t)
		ways := 0
		for _, is := range []bool{meaning.requested, meaning.succeeded, meaning.failed, meaning.unhealthy, meaning.lost} {
			if is {
				ways++
			}
		}
		g.Expect(ways).To(BeNumerically("<=", 1), "%s ends in one way", reason)
		g.Expect(ways > 0 || meaning.output).To(Or(BeFalse(), Equal(meaning.ran)), "%s: only a program that ran can end or print something", reason)
		g.Expect(meaning.retried || meaning.healable).To(Or(BeFalse(), Equal(!meaning.ran)), "%s: only a start is retried", reason)
	}
}
