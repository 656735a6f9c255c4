// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// TestFindSessions lists several sessions in one call: a foreign one, one with a difficult name, one whose program has exited, one of this Berth,
// and one of another Berth.
func TestFindSessions(t *testing.T) {
	b := newBench(t)
	found, err := b.Find(b.ctx, b.socket)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(found).To(BeEmpty(), "no server is running")

	b.foreign("theirs")
	b.foreign("a#b")
	b.foreign("elsewhere")
	b.mustTmux("set-option", "-t", "=elsewhere:", markUID, "of-another")
	b.mustTmux("set-option", "-t", "=elsewhere:", markInstall, "elsewhere")
	b.foreign("agent")
	adopted := b.adopt("agent")
	own := b.start(Config{Session: "own"}, "terminal")
	b.windowOf(own)

	b.Eventually(func(g Gomega) {
		found, err := b.Find(b.ctx, b.socket)
		g.Expect(err).NotTo(HaveOccurred())
		by := map[string]runtime.Found{}
		for _, f := range found {
			by[f.Name] = f
		}
		g.Expect(by).To(HaveLen(5))
		g.Expect(by["theirs"]).To(And(HaveField("Owned", false), HaveField("Unfit", ""), HaveField("Command", "workload"), HaveField("ID", "$0")))
		g.Expect(by["a#b"].Unfit).To(ContainSubstring("which tmux does not keep unchanged"))
		g.Expect(by["elsewhere"]).To(And(HaveField("Owned", true), HaveField("Owner", types.UID(""))), "of another Berth")
		g.Expect(by["agent"]).To(And(HaveField("Owned", true), HaveField("Owner", adopted)))
		g.Expect(by["own"]).To(And(HaveField("Owned", true), HaveField("Owner", own), HaveField("Unfit", Not(BeEmpty()))))
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	_, err = b.Find(b.ctx, "../elsewhere")
	b.Expect(err).To(HaveOccurred())
}
