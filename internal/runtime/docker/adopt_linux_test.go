// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"regexp"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// foreign creates a container without Berth and returns its ID.
func (b *bench) foreign(name string, start, terminal bool, mode ...string) string {
	b.Helper()
	yes := true
	made, err := b.client.ContainerCreate(b.ctx, client.ContainerCreateOptions{Name: name,
		Config:     &container.Config{Image: testImage, Cmd: mode, Tty: terminal, OpenStdin: true},
		HostConfig: &container.HostConfig{Init: &yes},
	})
	b.Expect(err).NotTo(HaveOccurred())
	b.Cleanup(func() {
		_, err := b.client.ContainerRemove(b.ctx, made.ID, client.ContainerRemoveOptions{Force: true})
		b.Expect(err).NotTo(HaveOccurred())
	})
	if start {
		_, err = b.client.ContainerStart(b.ctx, made.ID, client.ContainerStartOptions{})
		b.Expect(err).NotTo(HaveOccurred())
	}
	return made.ID
}

func (b *bench) adopting(uid types.UID, incarnation int64, name, adopt string) runtime.Process {
	p := b.process(uid, incarnation, "sleep")
	p.Config = config(func(c *Config) { c.Container, c.Adopt = name, adopt })
	return p
}

func TestAdoption(t *testing.T) {
	b := newBench(t)
	id := b.foreign("agent", true, true, "terminal")
	b.Expect(b.Start(b.ctx, b.adopting("never", 1, "agent", AdoptNever))).To(Succeed())
	b.Expect(b.await("never", facts.Failed).StartError.Reason).To(Equal(v1alpha1.ReasonContainerTaken))

	b.Expect(b.Start(b.ctx, b.adopting("one", 1, "agent", AdoptIfExists))).To(Succeed())
	running := b.await("one", facts.Running)
	b.Expect(running.ContainerID).To(Equal(id))
	b.Expect(b.Start(b.ctx, b.adopting("two", 1, id, AdoptRequired))).To(Succeed())
	refused := b.await("two", facts.Failed).StartError
	b.Expect(refused.Reason).To(Equal(v1alpha1.ReasonContainerTaken))
	b.Expect(refused.Message).To(ContainSubstring("UID one"))

	b.Eventually(b.output("one")).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"), "the output from before the adoption")
	b.Expect(b.Type(b.ctx, "one", []byte("hello\n"))).To(Succeed())
	b.Eventually(b.output("one")).WithTimeout(conformance.Timeout).Should(ContainSubstring("got <hello>"))
	b.reopen()
	b.Expect(b.observe("one")).To(Equal(running))

	b.Expect(b.Release(b.ctx, "one")).To(Succeed())
	b.Expect(b.Observe(b.ctx, "one")).To(BeEmpty())
	c, err := b.inspect(b.ctx, id)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(c.State.Running).To(BeTrue(), "a released container keeps running")

	b.Expect(b.Start(b.ctx, b.adopting("two", 2, id, AdoptRequired))).To(Succeed())
	b.Expect(b.await("two", facts.Running).ContainerID).To(Equal(id), "the container is free now")
	b.Expect(b.Forget(b.ctx, "two")).NotTo(Succeed(), "it is still running")
	b.Expect(b.Stop(b.ctx, "two", 2)).To(Succeed())
	b.await("two", facts.Exited)
	b.Expect(b.Forget(b.ctx, "two")).To(Succeed())
	c, err = b.inspect(b.ctx, id)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(c).NotTo(BeNil(), "an adopted container is not removed")
}

func TestAdoptedIsStartedAgain(t *testing.T) {
	b := newBench(t)
	id := b.foreign("server", false, false, "env", "FROM_IMAGE")
	b.Expect(b.Start(b.ctx, b.adopting("again", 1, "server", AdoptRequired))).To(Succeed())
	first := b.await("again", facts.Exited)
	b.Expect(first.Exit.Code).To(BeZero())
	b.Expect(b.output("again")()).To(Equal("FROM_IMAGE=yes\n"))
	b.Expect(b.Start(b.ctx, b.adopting("again", 1, "server", AdoptRequired))).To(Succeed())
	b.Expect(b.observe("again")).To(Equal(first), "the container starts once per incarnation")
	b.Expect(b.Start(b.ctx, b.adopting("again", 2, "server", AdoptRequired))).To(Succeed())
	second := b.await("again", facts.Exited)
	b.Expect(second.ContainerID).To(Equal(id))
	b.Expect(second.StartedAt).NotTo(Equal(first.StartedAt))
	b.Expect(b.output("again")()).To(Equal("FROM_IMAGE=yes\nFROM_IMAGE=yes\n"))
}

func TestAdoptionOfWhatIsNotThere(t *testing.T) {
	b := newBench(t)
	b.Expect(b.Start(b.ctx, b.adopting("required", 1, "nobody", AdoptRequired))).To(Succeed())
	b.Expect(b.await("required", facts.Failed).StartError.Reason).To(Equal(v1alpha1.ReasonContainerMissing))
	b.Expect(b.Start(b.ctx, b.adopting("made", 1, "nobody", AdoptIfExists))).To(Succeed())
	b.await("made", facts.Running)
	b.Expect(b.AttachCommand("made")).To(HaveSuffix("berth-made-1"))
}

func TestHandsOn(t *testing.T) {
	b := newBench(t)
	p := b.process("hands", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	// An engine sets the size after the program has started, so the program may print its size in the middle of another line.
	sizes := regexp.MustCompile(`size \d+x\d+\r\n`)
	said := func() string { return sizes.ReplaceAllString(b.output("hands")(), "") }
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	b.Eventually(said).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"))
	b.Expect(b.Type(b.ctx, "hands", []byte("half a line"))).To(Succeed())
	b.Eventually(said).WithTimeout(conformance.Timeout).Should(HaveSuffix("half a line"), "a prompt without a newline is visible")
	b.reopen()
	b.observe("hands")
	b.Expect(b.Type(b.ctx, "hands", []byte(" more\n"))).To(Succeed())
	b.Eventually(said).WithTimeout(conformance.Timeout).Should(ContainSubstring("got <half a line more>"))
	b.Expect(strings.Count(said(), "half a line more\r\n")).To(Equal(1), "no output is lost or repeated when the manager restarts")
	b.Expect(strings.Count(said(), "ready")).To(Equal(1))
	b.Expect(b.Type(b.ctx, "hands", []byte("\x03"))).To(Succeed())
	b.Expect(b.await("hands", facts.Exited).Exit.Code).To(BeEquivalentTo(130))
	b.Expect(b.Type(b.ctx, "hands", []byte("\x03"))).To(MatchError(runtime.ErrNotFound))

	b.Expect(b.Start(b.ctx, b.process("plain", 1, "sleep"))).To(Succeed())
	b.Eventually(b.output("plain")).WithTimeout(conformance.Timeout).Should(Equal("ready\n"))
	b.Expect(b.Type(b.ctx, "plain", []byte("\x03"))).To(Succeed())
	b.Expect(b.await("plain", facts.Exited).Exit.Code).To(BeEquivalentTo(130))
}
