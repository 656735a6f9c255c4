// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
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

// newForeignContainer creates a container without Berth and returns its ID.
func (f *fixture) newForeignContainer(name string, start, terminal bool, mode ...string) string {
	f.Helper()
	yes := true
	made, err := f.client.ContainerCreate(f.ctx, client.ContainerCreateOptions{Name: name,
		Config:     &container.Config{Image: testImage, Cmd: mode, Tty: terminal, OpenStdin: true},
		HostConfig: &container.HostConfig{Init: &yes},
	})
	f.Expect(err).NotTo(HaveOccurred())
	f.Cleanup(func() {
		_, err := f.client.ContainerRemove(f.ctx, made.ID, client.ContainerRemoveOptions{Force: true})
		f.Expect(err).NotTo(HaveOccurred())
	})
	if start {
		_, err = f.client.ContainerStart(f.ctx, made.ID, client.ContainerStartOptions{})
		f.Expect(err).NotTo(HaveOccurred())
	}
	return made.ID
}

func (f *fixture) adoptingProcess(uid types.UID, incarnation int64, name, adopt string) runtime.Process {
	p := f.process(uid, incarnation, "sleep")
	p.Config = config(func(c *containerConfig) { c.Container, c.Adopt = name, adopt })
	return p
}

func TestAdopt_ControlsForeignContainer(t *testing.T) {
	f := newFixture(t)
	id := f.newForeignContainer("agent", true, true, "terminal")
	f.Expect(f.Start(f.ctx, f.adoptingProcess("never", 1, "agent", adoptNever))).To(Succeed())
	f.Expect(f.await("never", facts.Failed).StartError.Reason).To(Equal(v1alpha1.ReasonContainerTaken))

	f.Expect(f.Start(f.ctx, f.adoptingProcess("one", 1, "agent", adoptIfExists))).To(Succeed())
	running := f.await("one", facts.Running)
	f.Expect(running.ContainerID).To(Equal(id))
	f.Expect(f.Start(f.ctx, f.adoptingProcess("two", 1, id, adoptRequired))).To(Succeed())
	refused := f.await("two", facts.Failed).StartError
	f.Expect(refused.Reason).To(Equal(v1alpha1.ReasonContainerTaken))
	f.Expect(refused.Message).To(ContainSubstring("UID one"))

	f.Eventually(f.output("one")).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"), "the output from before the adoption")
	f.Expect(f.Type(f.ctx, "one", runtime.Keystrokes{Text: "hello\n"})).To(Succeed())
	f.Eventually(f.output("one")).WithTimeout(conformance.Timeout).Should(ContainSubstring("got <hello>"))
	f.reopen()
	f.Expect(f.observe("one")).To(Equal(running))

	f.Expect(f.Release(f.ctx, "one")).To(Succeed())
	f.Expect(f.Observe(f.ctx, "one")).To(BeEmpty())
	c, err := f.inspect(f.ctx, id)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(c.State.Running).To(BeTrue(), "a released container keeps running")

	f.Expect(f.Start(f.ctx, f.adoptingProcess("two", 2, id, adoptRequired))).To(Succeed())
	f.Expect(f.await("two", facts.Running).ContainerID).To(Equal(id), "the container is free now")
	f.Expect(f.Forget(f.ctx, "two")).NotTo(Succeed(), "the container is still running")
	f.Expect(f.stop("two", 2)).To(Succeed())
	f.await("two", facts.Exited)
	f.Expect(f.Forget(f.ctx, "two")).To(Succeed())
	c, err = f.inspect(f.ctx, id)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(c).NotTo(BeNil(), "an adopted container is not removed")
}

func TestAdoptedContainer_StartsOncePerIncarnation(t *testing.T) {
	f := newFixture(t)
	id := f.newForeignContainer("server", false, false, "env", "FROM_IMAGE")
	f.Expect(f.Start(f.ctx, f.adoptingProcess("again", 1, "server", adoptRequired))).To(Succeed())
	first := f.await("again", facts.Exited)
	f.Expect(first.Exit.Code).To(BeZero())
	f.Expect(f.output("again")()).To(Equal("FROM_IMAGE=yes\n"))
	f.Expect(f.Start(f.ctx, f.adoptingProcess("again", 1, "server", adoptRequired))).To(Succeed())
	f.Expect(f.observe("again")).To(Equal(first), "the container starts once per incarnation")
	f.Expect(f.Start(f.ctx, f.adoptingProcess("again", 2, "server", adoptRequired))).To(Succeed())
	second := f.await("again", facts.Exited)
	f.Expect(second.ContainerID).To(Equal(id))
	f.Expect(second.StartedAt).NotTo(Equal(first.StartedAt))
	f.Expect(f.output("again")()).To(Equal("FROM_IMAGE=yes\nFROM_IMAGE=yes\n"))
}

// The engine removes such a container when its program ends, so a restart would leave nothing to start.
func TestCheck_RefusesNextIncarnationOfContainerThatIsRemoved(t *testing.T) {
	f := newFixture(t)
	start := func(name string, remove bool) {
		made, err := f.client.ContainerCreate(f.ctx, client.ContainerCreateOptions{Name: name,
			Config: &container.Config{Image: testImage, Cmd: []string{"sleep"}}, HostConfig: &container.HostConfig{AutoRemove: remove}})
		f.Expect(err).NotTo(HaveOccurred())
		f.Cleanup(func() { _, _ = f.client.ContainerRemove(f.ctx, made.ID, client.ContainerRemoveOptions{Force: true}) })
		_, err = f.client.ContainerStart(f.ctx, made.ID, client.ContainerStartOptions{})
		f.Expect(err).NotTo(HaveOccurred())
	}
	start("removed", true)
	start("kept", false)
	for name, reason := range map[string]string{"removed": v1alpha1.ReasonContainerMissing, "kept": ""} {
		uid := types.UID(name)
		f.Expect(f.Check(f.ctx, f.adoptingProcess(uid, 1, name, adoptRequired))).To(MatchError(errors.ErrUnsupported))
		f.Expect(f.Start(f.ctx, f.adoptingProcess(uid, 1, name, adoptRequired))).To(Succeed())
		f.await(uid, facts.Running)
		f.Expect(f.Check(f.ctx, f.adoptingProcess(uid, 1, name, adoptRequired))).To(MatchError(errors.ErrUnsupported), "the adopted program is this incarnation")
		f.Expect(f.Check(f.ctx, f.adoptingProcess(uid, 2, name, adoptIfExists))).To(MatchError(errors.ErrUnsupported), "a container of the image replaces it")
		var refused *facts.StartError
		err := f.Check(f.ctx, f.adoptingProcess(uid, 2, name, adoptRequired))
		f.Expect(errors.As(err, &refused)).To(Equal(reason != ""), "%v", err)
		if refused != nil {
			f.Expect(refused.Reason).To(Equal(reason))
		}
	}
}

func TestAdopt_MissingContainerFailsOnlyIfRequired(t *testing.T) {
	f := newFixture(t)
	f.Expect(f.Start(f.ctx, f.adoptingProcess("required", 1, "unused", adoptRequired))).To(Succeed())
	f.Expect(f.await("required", facts.Failed).StartError.Reason).To(Equal(v1alpha1.ReasonContainerMissing))
	f.Expect(f.Start(f.ctx, f.adoptingProcess("made", 1, "unused", adoptIfExists))).To(Succeed())
	f.await("made", facts.Running)
	f.Expect(f.AttachCommand("made")).To(HaveSuffix("berth-made-1"))
}

func TestTerminal_ContinuesAfterManagerRestart(t *testing.T) {
	f := newFixture(t)
	p := f.process("hands", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	// An engine sets the size after the program has started, so the program may print its size in the middle of another line.
	sizes := regexp.MustCompile(`size \d+x\d+\r\n`)
	said := func() string { return sizes.ReplaceAllString(f.output("hands")(), "") }
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.Eventually(said).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"))
	f.Expect(f.Type(f.ctx, "hands", runtime.Keystrokes{Text: "half a line"})).To(Succeed())
	f.Eventually(said).WithTimeout(conformance.Timeout).Should(HaveSuffix("half a line"), "a prompt without a newline is visible")
	f.reopen()
	f.observe("hands")
	f.Expect(f.Type(f.ctx, "hands", runtime.Keystrokes{Text: " more\n"})).To(Succeed())
	f.Eventually(said).WithTimeout(conformance.Timeout).Should(ContainSubstring("got <half a line more>"))
	f.Expect(strings.Count(said(), "half a line more\r\n")).To(Equal(1), "no output is lost or repeated when the manager restarts")
	f.Expect(strings.Count(said(), "ready")).To(Equal(1))
	f.Expect(f.Type(f.ctx, "hands", runtime.Keystrokes{Interrupt: true})).To(Succeed())
	f.Expect(f.await("hands", facts.Exited).Exit.Code).To(BeEquivalentTo(130))
	f.Expect(f.Type(f.ctx, "hands", runtime.Keystrokes{Interrupt: true})).To(MatchError(runtime.ErrNotFound))

	f.Expect(f.Start(f.ctx, f.process("plain", 1, "sleep"))).To(Succeed())
	f.Eventually(f.output("plain")).WithTimeout(conformance.Timeout).Should(Equal("ready\n"))
	f.Expect(f.Type(f.ctx, "plain", runtime.Keystrokes{Interrupt: true})).To(Succeed())
	f.Expect(f.await("plain", facts.Exited).Exit.Code).To(BeEquivalentTo(130))
}
