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

// TestFind_ListsContainersWithOwners creates three foreign containers, of which one is adopted and one is stopped, and starts a container with Berth. One call
// of Find lists all of them except the stopped one.
func TestFind_ListsContainersWithOwners(t *testing.T) {
	f := newFixture(t)
	theirs := f.newForeignContainer("theirs", true, false, "sleep")
	f.newForeignContainer("asleep", false, false, "sleep")
	agent := f.newForeignContainer("agent", true, false, "sleep")
	f.Expect(f.Start(f.ctx, f.adoptingProcess("adopter", 1, "agent", adoptRequired))).To(Succeed())
	f.await("adopter", facts.Running)
	f.Expect(f.Start(f.ctx, f.process("starter", 1, "sleep"))).To(Succeed())
	own := f.await("starter", facts.Running).ContainerID

	found, err := f.Find(f.ctx, "")
	f.Expect(err).NotTo(HaveOccurred())
	by := map[string]runtime.Found{}
	for _, c := range found {
		by[c.ID] = c
		f.Expect(c.Name).NotTo(Equal("asleep"), "a stopped container cannot be adopted")
	}
	f.Expect(by[theirs]).To(And(HaveField("Name", "theirs"), HaveField("Owned", false), HaveField("Image", testImage), HaveField("Command", ContainSubstring("sleep"))))
	f.Expect(by[agent]).To(And(HaveField("Owned", true), HaveField("Owner", types.UID("adopter"))))
	f.Expect(by[own]).To(And(HaveField("Owned", true), HaveField("Owner", types.UID("starter"))))
}
