// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"path/filepath"
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

func TestEngineThatIsNotThere(t *testing.T) {
	g := NewWithT(t)
	r, err := New(Options{Host: "unix://" + filepath.Join(t.TempDir(), "none.sock"), Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred(), "New does not need a running engine")
	defer func() { g.Expect(r.Close()).To(Succeed()) }()
	says := And(HaveOccurred(), MatchError(ContainSubstring("does not respond; start it, or correct DOCKER_HOST")))
	_, err = r.Observe(t.Context(), "a")
	g.Expect(err).To(says)
	_, err = r.List(t.Context())
	g.Expect(err).To(says)
	g.Expect(r.Start(t.Context(), runtime.Process{UID: "a", Incarnation: 1, Config: config(nil)})).To(says)
	g.Expect(r.Stop(t.Context(), "a", 1)).To(says)
	g.Expect(r.Kill(t.Context(), "a", 1)).To(says)
	g.Expect(r.Forget(t.Context(), "a")).To(says)
	_, err = r.Containers(t.Context())
	g.Expect(err).To(says)

	_, err = New(Options{Host: "nonsense", Dir: t.TempDir()})
	g.Expect(err).To(MatchError(ContainSubstring("DOCKER_HOST")))
}

func TestTwoManagersOfOneDirectory(t *testing.T) {
	b := newBench(t)
	_, err := New(b.options)
	b.Expect(err).To(MatchError(ContainSubstring("another berth manager uses the directory")))
}

func TestEngineKilled(t *testing.T) {
	b := newBench(t)
	p := b.process("killed", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	b.Expect(b.Start(b.ctx, b.process("plain", 1, "sleep"))).To(Succeed())
	b.await("killed", facts.Running)
	b.Eventually(b.output("killed")).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"))
	b.Eventually(b.output("plain")).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"))

	b.Expect(engineHere.Kill()).To(Succeed())
	_, err := b.Observe(b.ctx, "killed")
	b.Expect(err).To(HaveOccurred(), "the state is unknown without the engine")
	b.Expect(engineHere.Restart()).To(Succeed())

	// Without live-restore, a restarted engine kills the containers that still ran. Only the engine reports their exit.
	for _, uid := range []types.UID{"killed", "plain"} {
		ended := b.await(uid, facts.Exited)
		b.Expect(ended.Exit).NotTo(BeNil())
		b.Expect(ended.Exit.Signal).To(BeEmpty(), "Berth has not sent a signal")
		b.Expect(b.list(b.ctx, uid)).To(HaveLen(1))
	}
	b.Expect(b.output("plain")()).To(Equal("ready\n"), "the output is copied once, despite the loss of the engine")

	b.Expect(b.Start(b.ctx, b.process("plain", 2, "sleep"))).To(Succeed())
	b.Expect(b.await("plain", facts.Running).Number).To(BeEquivalentTo(2))
	b.Expect(b.list(b.ctx, "plain")).To(HaveLen(1), "the earlier container was removed")
	b.Eventually(b.output("plain")).WithTimeout(conformance.Timeout).Should(Equal("ready\nready\n"))
}

func TestContainerRemovedByHand(t *testing.T) {
	b := newBench(t)
	b.Expect(b.Start(b.ctx, b.process("removed", 1, "sleep"))).To(Succeed())
	running := b.await("removed", facts.Running)
	_, err := b.client.ContainerRemove(b.ctx, running.ContainerID, client.ContainerRemoveOptions{Force: true})
	b.Expect(err).NotTo(HaveOccurred())
	gone := b.await("removed", facts.Exited)
	b.Expect(gone.Exit.Known).To(BeFalse(), "the exit code of a removed container is unknown")
	b.Expect(gone.Exit.Message).To(ContainSubstring("was removed by another program"))
	b.Expect(b.Start(b.ctx, b.process("removed", 1, "sleep"))).To(Succeed())
	b.Expect(b.observe("removed")).To(Equal(gone), "the incarnation has already exited")
	b.reopen()
	b.Expect(b.observe("removed").Exit).To(Equal(gone.Exit))
	b.Expect(b.Start(b.ctx, b.process("removed", 2, "exit", "3"))).To(Succeed())
	b.Expect(b.await("removed", facts.Exited).Exit.Code).To(BeEquivalentTo(3))
}

func TestImageMissing(t *testing.T) {
	b := newBench(t)
	p := b.process("missing", 1, "sleep")
	p.Config = config(func(c *Config) { c.Image = "no-such-image:latest" })
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	failed := b.await("missing", facts.Failed)
	b.Expect(failed.StartError.Reason).To(Equal(v1alpha1.ReasonImageMissing))
	b.Expect(failed.StartError.Message).To(And(ContainSubstring(`"no-such-image:latest"`), ContainSubstring("IfNotPresent")))
	b.reopen()
	b.Expect(b.observe("missing")).To(Equal(failed))

	// The registry is unreachable. The start waits for the registry without blocking the caller.
	p = b.process("missing", 2, "sleep")
	p.Config = config(func(c *Config) { c.Image, c.Pull = "127.0.0.1:1/no-such-image:latest", PullIfNotPresent })
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	failed = b.await("missing", facts.Failed)
	b.Expect(failed.StartError.Reason).To(Equal(v1alpha1.ReasonStartFailed))
	b.Expect(failed.StartError.Message).To(ContainSubstring("cannot pull image"))
	b.Expect(b.Start(b.ctx, b.process("missing", 3, "exit", "0"))).To(Succeed())
	b.await("missing", facts.Exited)
}

func TestConfigThatIsRefused(t *testing.T) {
	b := newBench(t)
	for text, change := range map[string]func(*Config){
		"no image and no container are set": func(c *Config) { c.Image = "" },
		"must not be adopted":               func(c *Config) { c.Image, c.Container = "", "some" },
		"no container is set":               func(c *Config) { c.Adopt = AdoptRequired },
		"must be Never, IfExists":           func(c *Config) { c.Adopt = "Always" },
		"must be Never or":                  func(c *Config) { c.Pull = "Always" },
		"must be absolute paths":            func(c *Config) { c.Mounts = []Mount{{Source: "here", Target: "/there"}} },
		"rejects the container":             func(c *Config) { c.Mounts = []Mount{{Source: "/no/such/source", Target: "/there"}} },
		"no-such-network":                   func(c *Config) { c.Network = "no-such-network" },
		"no-such-user":                      func(c *Config) { c.User = "no-such-user" },
	} {
		p := b.process("refused", b.observe("refused").Number+1, "sleep")
		p.Config = config(change)
		b.Expect(b.Start(b.ctx, p)).To(Succeed())
		failed := b.await("refused", facts.Failed)
		b.Expect(failed.StartError.Message).To(ContainSubstring(text))
		b.Expect(b.list(b.ctx, "refused")).To(BeEmpty(), "the rejected container is removed")
	}
}

func TestCrashBetweenCreateAndStart(t *testing.T) {
	b := newBench(t)
	p := b.process("half", 1, "sleep")
	e, err := b.acquire("half")
	b.Expect(err).NotTo(HaveOccurred())
	c, _ := parse(p)
	e.record = record{UID: p.UID, Incarnation: 1}
	_, err = b.create(b.ctx, e, launch{process: p, config: c})
	b.Expect(err).NotTo(HaveOccurred())
	made := e.record.Container
	b.release(e)
	b.reopen()
	b.Expect(b.Observe(b.ctx, "half")).To(BeEmpty(), "the container was not started")
	all, err := b.List(b.ctx)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(all).To(HaveLen(1), "the collector finds the container")
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	b.Expect(b.await("half", facts.Running).ContainerID).To(Equal(made))

	// If the record is lost too, the engine still has the container.
	b.Expect(b.Kill(b.ctx, "half", 1)).To(Succeed())
	b.await("half", facts.Exited)
}

// A UID that is forgotten during List may still be in the list of containers. It must not remain as an incarnation that is starting.
func TestForgottenWhileItIsListed(t *testing.T) {
	b := newBench(t)
	p := b.process("late", 1, "sleep")
	parsed, _ := parse(p)
	e, err := b.acquire(p.UID)
	b.Expect(err).NotTo(HaveOccurred())
	e.record = record{UID: p.UID, Name: p.Name, Incarnation: 1}
	_, err = b.create(b.ctx, e, launch{process: p, config: parsed})
	b.release(e)
	b.Expect(err).NotTo(HaveOccurred())
	listed, err := b.list(b.ctx, "")
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(listed).To(HaveLen(1))

	b.Expect(b.Forget(b.ctx, p.UID)).To(Succeed())
	_, _, err = b.Runtime.observe(b.ctx, p.UID, listed)
	b.Expect(err).NotTo(HaveOccurred())
	late, err := b.List(b.ctx)
	b.Expect(err).NotTo(HaveOccurred())
	for _, incarnation := range late {
		b.Expect(incarnation.Alive()).To(BeFalse(), "there is no process to stop: %+v", incarnation)
		b.Expect(b.Forget(b.ctx, types.UID(incarnation.UID))).To(Succeed())
	}
	b.Expect(b.List(b.ctx)).To(BeEmpty())
}

func TestContainersAndPause(t *testing.T) {
	b := newBench(t)
	b.Expect(b.Start(b.ctx, b.process("paused", 1, "sleep"))).To(Succeed())
	i := b.await("paused", facts.Running)
	all, err := b.Containers(b.ctx)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(all).To(HaveLen(1))
	b.Expect(all[0].ID).To(Equal(i.ContainerID))
	b.Expect(all[0].Name).To(Equal("berth-paused-1"))
	b.Expect(all[0].Image).To(Equal(testImage))
	b.Expect(all[0].Owner).To(BeEquivalentTo("paused"))
	b.Expect(all[0].State).To(Equal(string(container.StateRunning)))
	b.Expect(b.AttachCommand("paused")).To(Equal("docker --host " + engineHere.Host + " attach --sig-proxy=false berth-paused-1"))
	b.Expect(b.AttachCommand("unknown")).To(BeEmpty())

	_, err = b.client.ContainerPause(b.ctx, i.ContainerID, client.ContainerPauseOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	now := b.observe("paused")
	b.Expect(now.Phase).To(Equal(facts.Running))
	b.Expect(now.Message).To(ContainSubstring("paused"))
	b.Expect(b.Stop(b.ctx, "paused", 1)).To(Succeed(), "a paused container still receives the signal")
	b.Expect(b.await("paused", facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
}
