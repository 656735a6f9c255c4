// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// TestFind_ListsSessionsWithOwners lists several sessions in one call: a foreign one, one with a difficult name, one of another Berth, one that this Berth
// adopted, and one that this Berth created.
func TestFind_ListsSessionsWithOwners(t *testing.T) {
	f := newFixture(t)
	found, err := f.Find(f.ctx, f.socket)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(found).To(BeEmpty(), "no server is running")

	f.newForeignSession("theirs")
	f.newForeignSession("a#b")
	f.newForeignSession("elsewhere")
	f.mustTmux("set-option", "-t", "=elsewhere:", markUID, "of-another")
	f.mustTmux("set-option", "-t", "=elsewhere:", markInstall, "elsewhere")
	f.newForeignSession("agent")
	adopted := f.adopt("agent")
	own := f.start(sessionConfig{Session: "own"}, "terminal")
	f.awaitWindow(own)

	f.Eventually(func(g Gomega) {
		found, err := f.Find(f.ctx, f.socket)
		g.Expect(err).NotTo(HaveOccurred())
		by := map[string]runtime.Found{}
		for _, s := range found {
			by[s.Name] = s
		}
		g.Expect(by).To(HaveLen(5))
		g.Expect(by["theirs"]).To(And(HaveField("Owned", false), HaveField("Unfit", ""), HaveField("Command", "workload"), HaveField("ID", "$0")))
		g.Expect(by["a#b"].Unfit).To(ContainSubstring("which tmux does not keep unchanged"))
		g.Expect(by["elsewhere"]).To(And(HaveField("Owned", true), HaveField("Owner", types.UID(""))), "of another Berth")
		g.Expect(by["agent"]).To(And(HaveField("Owned", true), HaveField("Owner", adopted)))
		g.Expect(by["own"]).To(And(HaveField("Owned", true), HaveField("Owner", own), HaveField("Unfit", Not(BeEmpty()))))
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	_, err = f.Find(f.ctx, "../elsewhere")
	f.Expect(err).To(HaveOccurred())
}
