// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

func TestMissingEngine_IsReportedByEveryCall(t *testing.T) {
	g := NewWithT(t)
	r, err := New(Options{Host: "unix://" + filepath.Join(t.TempDir(), "none.sock"), Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred(), "New does not need a running engine")
	defer func() { g.Expect(r.Close()).To(Succeed()) }()
	says := And(HaveOccurred(), MatchError(ContainSubstring("does not respond; start it, or correct DOCKER_HOST")))
	_, err = r.Observe(t.Context(), "a")
	g.Expect(err).To(says)
	g.Expect(errors.As(err, new(*runtime.UnavailableError))).To(BeTrue())
	_, err = r.List(t.Context())
	g.Expect(err).To(says)
	g.Expect(r.Start(t.Context(), runtime.Process{UID: "a", Incarnation: 1, Config: config(nil)})).To(says)
	g.Expect(r.Stop(t.Context(), "a", 1)).To(says)
	g.Expect(r.Kill(t.Context(), "a", 1)).To(says)
	g.Expect(r.Forget(t.Context(), "a")).To(says)
	g.Expect(r.Check(t.Context(), runtime.Process{UID: "a", Incarnation: 1, Config: config(nil)})).To(says)
	_, err = r.Find(t.Context(), "")
	g.Expect(err).To(says)

	_, err = New(Options{Host: "nonsense", Dir: t.TempDir()})
	g.Expect(err).To(MatchError(ContainSubstring("DOCKER_HOST")))
}

func TestNew_RefusesDirectoryInUse(t *testing.T) {
	f := newFixture(t)
	_, err := New(f.options)
	f.Expect(err).To(MatchError(ContainSubstring("another berth manager uses the directory")))
}

func TestEngineKilled_ReportsExitsAfterRestart(t *testing.T) {
	f := newFixture(t)
	p := f.process("killed", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.Expect(f.Start(f.ctx, f.process("plain", 1, "sleep"))).To(Succeed())
	f.await("killed", facts.Running)
	f.Eventually(f.output("killed")).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"))
	f.Eventually(f.output("plain")).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"))

	f.Expect(testEngine.Kill()).To(Succeed())
	_, err := f.Observe(f.ctx, "killed")
	f.Expect(err).To(HaveOccurred(), "the state is unknown without the engine")
	f.Expect(testEngine.Restart()).To(Succeed())

	// Without live-restore, a restarted engine kills the containers that are still running. Only the engine reports their exit.
	for _, uid := range []types.UID{"killed", "plain"} {
		ended := f.await(uid, facts.Exited)
		f.Expect(ended.Exit).NotTo(BeNil())
		f.Expect(ended.Exit.Signal).To(BeEmpty(), "Berth has not sent a signal")
		f.Expect(f.list(f.ctx, uid)).To(HaveLen(1))
	}
	f.Expect(f.output("plain")()).To(Equal("ready\n"), "the output is copied once, despite the loss of the engine")

	f.Expect(f.Start(f.ctx, f.process("plain", 2, "sleep"))).To(Succeed())
	f.Expect(f.await("plain", facts.Running).Number).To(BeEquivalentTo(2))
	f.Expect(f.list(f.ctx, "plain")).To(HaveLen(1), "the earlier container was removed")
	f.Eventually(f.output("plain")).WithTimeout(conformance.Timeout).Should(Equal("ready\nready\n"))
}

func TestRemovedContainer_HasUnknownExit(t *testing.T) {
	f := newFixture(t)
	f.Expect(f.Start(f.ctx, f.process("removed", 1, "sleep"))).To(Succeed())
	running := f.await("removed", facts.Running)
	_, err := f.client.ContainerRemove(f.ctx, running.ContainerID, client.ContainerRemoveOptions{Force: true})
	f.Expect(err).NotTo(HaveOccurred())
	gone := f.await("removed", facts.Exited)
	f.Expect(gone.Exit.Known).To(BeFalse(), "the exit code of a removed container is unknown")
	f.Expect(gone.Exit.Message).To(ContainSubstring("was removed by another program"))
	f.Expect(f.Start(f.ctx, f.process("removed", 1, "sleep"))).To(Succeed())
	f.Expect(f.observe("removed")).To(Equal(gone), "the incarnation has already exited")
	f.reopen()
	f.Expect(f.observe("removed").Exit).To(Equal(gone.Exit))
	f.Expect(f.Start(f.ctx, f.process("removed", 2, "exit", "3"))).To(Succeed())
	f.Expect(f.await("removed", facts.Exited).Exit.Code).To(BeEquivalentTo(3))
}

func TestStart_ReportsMissingImage(t *testing.T) {
	f := newFixture(t)
	p := f.process("missing", 1, "sleep")
	p.Config = config(func(c *containerConfig) { c.Image = "no-such-image:latest" })
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	failed := f.await("missing", facts.Failed)
	f.Expect(failed.StartError.Reason).To(Equal(v1alpha1.ReasonImageMissing))
	f.Expect(failed.StartError.Message).To(And(ContainSubstring(`"no-such-image:latest"`), ContainSubstring("IfNotPresent")))
	f.Expect(f.Check(f.ctx, p)).To(Equal(failed.StartError))
	f.Expect(f.Check(f.ctx, f.process("missing", 2, "sleep"))).To(Succeed())
	f.reopen()
	f.Expect(f.observe("missing")).To(Equal(failed))

	// The registry is unreachable. The start waits for the registry without blocking the caller.
	p = f.process("missing", 2, "sleep")
	p.Config = config(func(c *containerConfig) { c.Image, c.Pull = "127.0.0.1:1/no-such-image:latest", pullIfNotPresent })
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	failed = f.await("missing", facts.Failed)
	f.Expect(failed.StartError.Reason).To(Equal(v1alpha1.ReasonStartFailed))
	f.Expect(failed.StartError.Message).To(ContainSubstring("cannot pull image"))
	f.Expect(f.Start(f.ctx, f.process("missing", 3, "exit", "0"))).To(Succeed())
	f.await("missing", facts.Exited)
}

func TestStart_WithoutCommandRunsEntrypointOfImage(t *testing.T) {
	f := newFixture(t)
	p := f.process("entrypoint", 1)
	p.Command = nil
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.Expect(f.await("entrypoint", facts.Exited).Exit.Code).To(BeEquivalentTo(99), "the workload refuses to run without a mode")
	f.Eventually(f.output("entrypoint")).WithTimeout(conformance.Timeout).Should(ContainSubstring("a mode is required"))

	const bare = "berth-bare:latest"
	f.Expect(testEngine.Image(f.ctx, bare, conformance.Workload(t), "ENTRYPOINT []")).To(Succeed())
	p.UID, p.Config = "bare", config(func(c *containerConfig) { c.Image = bare })
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	refused := f.await("bare", facts.Failed).StartError
	f.Expect(refused.Reason).To(Equal(v1alpha1.ReasonCommandNotFound), refused.Message)
	f.Expect(refused.Message).To(Equal(`image "berth-bare:latest" has neither an entrypoint nor a command; set spec.process.command, or use another image`))
}

func TestStart_RefusesInvalidConfig(t *testing.T) {
	f := newFixture(t)
	for text, change := range map[string]func(*containerConfig){
		"no image and no container are set": func(c *containerConfig) { c.Image = "" },
		"must not be adopted":               func(c *containerConfig) { c.Image, c.Container = "", "some" },
		"no container is set":               func(c *containerConfig) { c.Adopt = adoptRequired },
		"must be Never, IfExists":           func(c *containerConfig) { c.Adopt = "Always" },
		"must be Never or":                  func(c *containerConfig) { c.Pull = "Always" },
		"must be absolute paths":            func(c *containerConfig) { c.Mounts = []bindMount{{Source: "here", Target: "/there"}} },
		"rejects the container":             func(c *containerConfig) { c.Mounts = []bindMount{{Source: "/no/such/source", Target: "/there"}} },
		"no-such-network":                   func(c *containerConfig) { c.Network = "no-such-network" },
		"no-such-user":                      func(c *containerConfig) { c.User = "no-such-user" },
	} {
		p := f.process("refused", f.observe("refused").Number+1, "sleep")
		p.Config = config(change)
		f.Expect(f.Start(f.ctx, p)).To(Succeed())
		failed := f.await("refused", facts.Failed)
		f.Expect(failed.StartError.Message).To(ContainSubstring(text))
		f.Expect(f.list(f.ctx, "refused")).To(BeEmpty(), "the rejected container is removed")
	}
}

func TestStart_UsesContainerCreatedBeforeCrash(t *testing.T) {
	f := newFixture(t)
	p := f.process("half", 1, "sleep")
	e, err := f.acquire("half")
	f.Expect(err).NotTo(HaveOccurred())
	c, _ := parse(p)
	e.record = record{UID: p.UID, Incarnation: 1}
	_, err = f.create(f.ctx, e, launch{process: p, config: c})
	f.Expect(err).NotTo(HaveOccurred())
	made := e.record.Container
	f.release(e)
	f.reopen()
	f.Expect(f.Observe(f.ctx, "half")).To(BeEmpty(), "the container was not started")
	all, err := f.List(f.ctx)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(all).To(HaveLen(1), "the collector finds the container")
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.Expect(f.await("half", facts.Running).ContainerID).To(Equal(made))

	f.Expect(f.Kill(f.ctx, "half", 1)).To(Succeed())
	f.await("half", facts.Exited)
}

// If a UID is forgotten while List runs, its container may still be in the list that List received from the engine. List must then not report a living
// incarnation of that UID.
func TestList_DropsUIDForgottenMeanwhile(t *testing.T) {
	f := newFixture(t)
	p := f.process("late", 1, "sleep")
	parsed, _ := parse(p)
	e, err := f.acquire(p.UID)
	f.Expect(err).NotTo(HaveOccurred())
	e.record = record{UID: p.UID, Name: p.Name, Incarnation: 1}
	_, err = f.create(f.ctx, e, launch{process: p, config: parsed})
	f.release(e)
	f.Expect(err).NotTo(HaveOccurred())
	listed, err := f.list(f.ctx, "")
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(listed).To(HaveLen(1))

	f.Expect(f.Forget(f.ctx, p.UID)).To(Succeed())
	_, _, err = f.Runtime.observe(f.ctx, p.UID, listed)
	f.Expect(err).NotTo(HaveOccurred())
	late, err := f.List(f.ctx)
	f.Expect(err).NotTo(HaveOccurred())
	for _, incarnation := range late {
		f.Expect(incarnation.Alive()).To(BeFalse(), "there is no process to stop: %+v", incarnation)
		f.Expect(f.Forget(f.ctx, types.UID(incarnation.UID))).To(Succeed())
	}
	f.Expect(f.List(f.ctx)).To(BeEmpty())
}

func TestPausedContainer_IsReportedAndStops(t *testing.T) {
	f := newFixture(t)
	f.Expect(f.Start(f.ctx, f.process("paused", 1, "sleep"))).To(Succeed())
	i := f.await("paused", facts.Running)
	all, err := f.Find(f.ctx, "")
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(all).To(HaveLen(1))
	f.Expect(all[0].ID).To(Equal(i.ContainerID))
	f.Expect(all[0].Name).To(Equal("berth-paused-1"))
	f.Expect(all[0].Image).To(Equal(testImage))
	f.Expect(all[0].Owner).To(BeEquivalentTo("paused"))
	f.Expect(f.AttachCommand("paused")).To(Equal("docker --host " + testEngine.Host + " attach --sig-proxy=false berth-paused-1"))
	f.Expect(f.AttachCommand("unknown")).To(BeEmpty())

	_, err = f.client.ContainerPause(f.ctx, i.ContainerID, client.ContainerPauseOptions{})
	f.Expect(err).NotTo(HaveOccurred())
	now := f.observe("paused")
	f.Expect(now.Phase).To(Equal(facts.Running))
	f.Expect(now.Message).To(ContainSubstring("paused"))
	f.Expect(f.Stop(f.ctx, "paused", 1)).To(Succeed(), "a paused container still receives the signal")
	f.Expect(f.await("paused", facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
}

// stop stops an incarnation as internal/lifecycle does: it calls Stop again while the stop is deferred.
func (f *fixture) stop(uid types.UID, incarnation int64) (err error) {
	f.Helper()
	f.Eventually(func() bool {
		err = f.Stop(f.ctx, uid, incarnation)
		return err == nil && f.observe(uid).StopDeferred
	}).WithTimeout(conformance.Timeout).WithPolling(20 * time.Millisecond).Should(BeFalse())
	return err
}

// TestStop_DoesNotWaitForInit has an engine that lists only the init program of a container, as long as the container has not started its program or, if the
// engine cannot list it, for ever.
func TestStop_DoesNotWaitForInit(t *testing.T) {
	var listed atomic.Int32
	host := proxyEngine(t, func(w http.ResponseWriter, r *http.Request) (handled bool) {
		if !strings.HasSuffix(r.URL.Path, "/top") {
			return false
		}
		listed.Add(1)
		_, _ = w.Write([]byte(`{"Titles":["PID"],"Processes":[["1"]]}`))
		return true
	})
	f := newFixture(t)
	f.options.Host = host
	f.reopen()
	f.Expect(f.Start(f.ctx, f.process("new", 1, "sleep"))).To(Succeed())
	running := f.await("new", facts.Running)
	f.Expect(running.StopDeferred).To(BeFalse(), "no stop was requested")
	f.Eventually(f.output("new")).WithTimeout(conformance.Timeout).Should(ContainSubstring("ready"))
	for i := range int32(3) {
		f.Expect(f.Stop(f.ctx, "new", 1)).To(Succeed())
		f.Expect(listed.Load()).To(Equal(i+1), "one query, without waiting")
		f.Expect(f.observe("new")).To(And(HaveField("Phase", facts.Running), HaveField("StopSent", false), HaveField("StopDeferred", true)))
	}
	f.Eventually(f.Events()).WithTimeout(conformance.Timeout).Should(Receive(Equal(types.UID("new"))), "the deferral is a change that Observe reports")

	f.reopen()
	f.Expect(f.observe("new").StopDeferred).To(BeFalse(), "another manager asks the engine again")
	f.Expect(f.Stop(f.ctx, "new", 1)).To(Succeed())
	f.entries.Get("new").deferred.since = time.Now().Add(-deferMost)
	f.Expect(f.Stop(f.ctx, "new", 1)).To(Succeed())
	f.Expect(f.observe("new").StopDeferred).To(BeFalse())
	f.Expect(f.await("new", facts.Exited).Exit.Signal).To(Equal("SIGTERM"), "the signal is sent at last")
}

// TestStop_DefersSignalOfSlowContainer limits the CPU of containers, so that the init program often handles no signals yet when the engine reports that the
// container is running. If Stop sent the signal at once, a third of these containers would ignore it.
func TestStop_DefersSignalOfSlowContainer(t *testing.T) {
	f := newFixture(t)
	for i := range 8 {
		name := fmt.Sprintf("slow-%d", i)
		id := f.newForeignContainer(name, false, false, "sleep")
		slow := client.ContainerUpdateOptions{Resources: &container.Resources{CPUPeriod: 100_000, CPUQuota: 2000}} // in microseconds
		updated, err := f.client.ContainerUpdate(f.ctx, id, slow)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(updated.Warnings).NotTo(ContainElement(ContainSubstring("CPU")), "the engine limits the CPU")
		uid := types.UID(name)
		f.Expect(f.Start(f.ctx, f.adoptingProcess(uid, 1, name, adoptRequired))).To(Succeed())
		f.Expect(f.stop(uid, 1)).To(Succeed())
		f.Expect(f.await(uid, facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
	}
}

func TestStop_RecordsOnlySentSignal(t *testing.T) {
	var f *fixture
	var failOnce, recordedEarly atomic.Bool
	failOnce.Store(true)
	host := proxyEngine(t, func(w http.ResponseWriter, r *http.Request) (handled bool) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/top"):
			text, err := os.ReadFile(filepath.Join(f.dir("unsent"), recordFile))
			recordedEarly.Store(err != nil || strings.Contains(string(text), "stopSent"))
		case strings.HasSuffix(r.URL.Path, "/kill") && failOnce.Swap(false):
			http.Error(w, `{"message":"injected"}`, http.StatusInternalServerError)
			return true
		}
		return false
	})
	f = newFixture(t)
	f.options.Host = host
	f.reopen()
	f.Expect(f.Start(f.ctx, f.process("unsent", 1, "sleep"))).To(Succeed())
	f.await("unsent", facts.Running)
	f.Expect(f.stop("unsent", 1)).To(MatchError(ContainSubstring("injected")))
	f.Expect(recordedEarly.Load()).To(BeFalse(), "if the manager crashes while it waits for the program, the next one must send the signal")
	f.Expect(f.observe("unsent").StopSent).To(BeFalse(), "lifecycle repeats a stop only if it was not sent")
	f.Expect(f.Stop(f.ctx, "unsent", 1)).To(Succeed())
	f.Expect(f.observe("unsent").StopSent).To(BeTrue())
	f.Expect(f.await("unsent", facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
}

func TestStop_SendsSignalAfterFailedRecord(t *testing.T) {
	f := newFixture(t)
	f.Expect(f.Start(f.ctx, f.process("unrecorded", 1, "sleep"))).To(Succeed())
	f.await("unrecorded", facts.Running)
	dir, aside := f.dir("unrecorded"), filepath.Join(t.TempDir(), "aside")
	f.Expect(os.Rename(dir, aside)).To(Succeed())
	f.Expect(os.WriteFile(dir, nil, 0o600)).To(Succeed(), "a file where the directory of the record should be")
	f.Expect(f.stop("unrecorded", 1)).To(MatchError(ContainSubstring("not a directory")))
	f.Expect(os.Remove(dir)).To(Succeed())
	f.Expect(os.Rename(aside, dir)).To(Succeed())
	f.Expect(f.observe("unrecorded").StopSent).To(BeFalse(), "lifecycle repeats a stop only if it was not sent")
	f.Expect(f.Stop(f.ctx, "unrecorded", 1)).To(Succeed())
	f.Expect(f.await("unrecorded", facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
}

// proxyEngine returns the address of a proxy for the test engine. The proxy forwards each request that intercept does not handle.
func proxyEngine(t *testing.T, intercept func(http.ResponseWriter, *http.Request) (handled bool)) string {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(testEngine.Host, "unix://"))
	}}
	forward := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine"
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !intercept(w, r) {
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() { server.Close(); transport.CloseIdleConnections() })
	return "tcp://" + strings.TrimPrefix(server.URL, "http://")
}
