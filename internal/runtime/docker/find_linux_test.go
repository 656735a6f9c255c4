// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// TestFindContainers lists several containers in one call: a foreign one, a stopped one, an adopted one, and one of Berth.
func TestFindContainers(t *testing.T) {
	b := newBench(t)
	theirs := b.foreign("theirs", true, false, "sleep")
	b.foreign("asleep", false, false, "sleep")
	agent := b.foreign("agent", true, false, "sleep")
	b.Expect(b.Start(b.ctx, b.adopting("adopter", 1, "agent", AdoptRequired))).To(Succeed())
	b.await("adopter", facts.Running)
	b.Expect(b.Start(b.ctx, b.process("starter", 1, "sleep"))).To(Succeed())
	own := b.await("starter", facts.Running).ContainerID

	found, err := b.Find(b.ctx, "")
	b.Expect(err).NotTo(HaveOccurred())
	by := map[string]runtime.Found{}
	for _, f := range found {
		by[f.ID] = f
		b.Expect(f.Name).NotTo(Equal("asleep"), "a stopped container cannot be adopted")
	}
	b.Expect(by[theirs]).To(And(HaveField("Name", "theirs"), HaveField("Owned", false), HaveField("Image", testImage), HaveField("Command", ContainSubstring("sleep"))))
	b.Expect(by[agent]).To(And(HaveField("Owned", true), HaveField("Owner", types.UID("adopter"))))
	b.Expect(by[own]).To(And(HaveField("Owned", true), HaveField("Owner", types.UID("starter"))))
}
