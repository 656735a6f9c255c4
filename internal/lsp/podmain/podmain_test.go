// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package podmain

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
)

// A kubelet truncates termination messages that are longer than mostState, and truncated JSON is invalid.
func TestLastWords_FitTerminationMessageLimit(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "words")
	read := func() (report lsp.Report) {
		text, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(text)).To(BeNumerically("<=", mostState))
		g.Expect(json.Unmarshal(text, &report)).To(Succeed())
		return report
	}
	long := strings.Repeat("x", 3*mostState)
	end := &facts.Exit{Known: true, Code: 3, FinishedAt: time.Unix(1, 0).UTC()}
	g.Expect(lastWords(path, lsp.Report{Incarnation: 7, Phase: facts.Exited, Exit: end, Message: long, ServerVersion: long})).To(Succeed())
	g.Expect(read()).To(And(HaveField("Incarnation", int64(7)), HaveField("Exit", end)))
	g.Expect(lastWords(path, lsp.Report{Incarnation: 8, Phase: facts.Failed, StartError: &facts.StartError{Reason: "CommandNotFound", Message: long}})).To(Succeed())
	g.Expect(read().StartError).To(HaveValue(HaveField("Reason", "CommandNotFound")))
	g.Expect(lastWords(path, lsp.Report{Incarnation: 9})).To(Succeed())
	g.Expect(read().Incarnation).To(Equal(int64(9)), "no part of the longer message is left")
}

func TestInstall_CopiesProgram(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(installInto(dir)).To(Succeed())
	info, err := os.Stat(filepath.Join(dir, Name))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o755)))
	self, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	original, err := os.Stat(self)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Size()).To(Equal(original.Size()))
	g.Expect(installInto(filepath.Join(dir, "nowhere"))).To(MatchError(ContainSubstring("install this program")))
}

func TestMain_RejectsInvalidArguments(t *testing.T) {
	g := NewWithT(t)
	for _, args := range [][]string{{}, {"--listen", ":0"}, {"--keys", "/x", "--state", "/y"}, {"--install", "/x", "more"}, {"--what"}} {
		g.Expect(Main(append([]string{Source}, args...))).To(Equal(2), "%v", args)
	}
	g.Expect(Main([]string{Source, "--install", "/nowhere"})).To(Equal(1))
}
