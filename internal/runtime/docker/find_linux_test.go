// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
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

// A container with rights on the machine is listed as unfit, and its adoption is refused by the engine's own report of these rights.
func TestAdopt_RefusesPrivilegedContainerOfEngine(t *testing.T) {
	f := newFixture(t)
	made, err := f.client.ContainerCreate(f.ctx, client.ContainerCreateOptions{Name: "powerful",
		Config:     &container.Config{Image: testImage, Cmd: []string{"sleep"}},
		HostConfig: &container.HostConfig{Binds: []string{"/:/machine:ro"}},
	})
	f.Expect(err).NotTo(HaveOccurred())
	f.Cleanup(func() {
		_, err := f.client.ContainerRemove(f.ctx, made.ID, client.ContainerRemoveOptions{Force: true})
		f.Expect(err).NotTo(HaveOccurred())
	})
	_, err = f.client.ContainerStart(f.ctx, made.ID, client.ContainerStartOptions{})
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(f.Find(f.ctx, "")).To(ContainElement(And(HaveField("Name", "powerful"), HaveField("Unfit", ContainSubstring("it mounts /")))))
	f.Expect(f.Start(f.ctx, f.adoptingProcess("adopter", 1, "powerful", adoptRequired))).To(Succeed())
	refused := f.await("adopter", facts.Failed).StartError
	f.Expect(refused.Reason).To(Equal(v1alpha1.ReasonContainerTaken))
	f.Expect(refused.Message).To(ContainSubstring("container powerful must not be adopted, because it mounts /"))

	// A text that is only the beginning of an ID names no container.
	f.Expect(f.Start(f.ctx, f.adoptingProcess("by-beginning", 1, made.ID[:5], adoptRequired))).To(Succeed())
	f.Expect(f.await("by-beginning", facts.Failed).StartError.Reason).To(Equal(v1alpha1.ReasonContainerMissing))
}
