// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/test/lspfake/script"
)

var _ = row("R28", "a language server whose start fails half-way, at each of twelve points, leaves nothing behind", func(ctx context.Context) {
	before := countResources()
	var servers []*v1alpha1.LanguageServer
	for _, where := range append(slices.Clone(script.Starts), "missing") {
		name := "fails-" + strings.ToLower(where)
		// The server fails to start twice and then succeeds: a failed start must not leave anything that blocks the next start.
		server := newLanguageServer(name, script.Script{Start: where, Fails: 2})
		server.Spec.StartupTimeoutSeconds = ptr.To[int32](2)
		server.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](1)
		if where == "missing" {
			server.Spec.Process.Command = []string{filepath.Join(env.dir, "no such server")}
		}
		create(ctx, server)
		servers = append(servers, server)
	}
	for _, server := range servers {
		if strings.HasSuffix(server.Name, "missing") {
			waitFor(ctx, server, "fails with the expected reason", func(o *v1alpha1.LanguageServer) bool {
				return o.Status.LastExit != nil && o.Status.LastExit.Reason == v1alpha1.ReasonCommandNotFound
			})
			continue
		}
		waitFor(ctx, server, "fails twice, then is ready", func(o *v1alpha1.LanguageServer) bool {
			return isRunning(o) && o.Status.Incarnation >= 3
		})
		pid := int(mustGet(ctx, server).Status.Process.PID)
		Expect(workloadPIDs(server.Name)).To(Equal([]int{pid}), "left behind: servers of failed starts")
		Expect(workloadPIDs(server.Name+".child")).To(BeEmpty(), "left behind: children of failed starts")
		r := mustJoin(ctx, server, server.Name)
		Expect(r.request(ctx)).To(Equal(pid))
		r.Close()
	}
	for _, server := range servers {
		Expect(k8s.Delete(ctx, server)).To(Succeed())
	}
	for _, server := range servers {
		waitForGone(ctx, server)
	}
	Eventually(ctx, func(g Gomega) {
		env.reap()
		now := countResources()
		g.Expect(now.zombies).To(BeNumerically("<=", before.zombies), "left behind: zombies")
		g.Expect(now.processes).To(BeNumerically("<=", before.processes), "left behind: processes")
		g.Expect(now.traces).To(BeNumerically("<=", before.traces), "left behind: directories or cgroups")
		g.Expect(now.routines).To(BeNumerically("<=", before.routines), "left behind: goroutines")
		g.Expect(now.files).To(BeNumerically("<=", before.files), "left behind: open files")
	}).Should(Succeed())
})

var _ = row("S17", "consumers are the connected clients, whatever dies, and a slow stop does not delay other objects", func(ctx context.Context) {
	server := newLanguageServer("srv", script.Script{})
	create(ctx, server)
	waitForRunning(ctx, server, 1)
	const clients = 6
	var readers []*documentClient
	for i := range clients {
		readers = append(readers, mustJoin(ctx, server, fmt.Sprintf("reader-%d", i)))
	}
	consumers := func(n int) {
		GinkgoHelper()
		waitFor(ctx, server, fmt.Sprintf("has %d consumers", n), func(o *v1alpha1.LanguageServer) bool { return int(o.Status.Clients) == n })
	}
	consumers(clients)
	// Some clients disconnect without a message while the server is dead; one connects.
	Expect(script.Script{InitializeMS: 1000}.Write(env.dir, "srv")).To(Succeed())
	killServer(ctx, server, 1)
	for _, r := range readers[:3] {
		r.Close()
	}
	mustJoin(ctx, server, "late")
	consumers(clients - 2)

	// Kill the multiplexer, which ends all connections: now there are no consumers.
	Expect(script.Script{}.Write(env.dir, "srv")).To(Succeed())
	pid := waitForRunning(ctx, server, 2)
	killProcess(multiplexerOf(pid).Process)
	waitFor(ctx, server, "is ready again", func(o *v1alpha1.LanguageServer) bool {
		return isRunning(o) && o.Status.Incarnation > 2
	})
	consumers(0)
	restore := mustJoin(ctx, server, "back")
	_, err := restore.request(ctx)
	Expect(err).NotTo(HaveOccurred())
	consumers(1)

	// More servers than the manager has workers stop slowly. At the same time, another server is restarted.
	var slow []*v1alpha1.LanguageServer
	for i := range 10 {
		slow = append(slow, newLanguageServer(fmt.Sprintf("slow-%d", i), script.Script{IgnoreShutdown: true, IgnoreEOF: true, IgnoreTERM: true}))
		slow[i].Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](300)
		create(ctx, slow[i])
	}
	for _, s := range slow {
		waitForRunning(ctx, s, 1)
		Expect(patchFormatted(ctx, s, stopPatch)).To(Succeed())
	}
	for _, s := range slow {
		waitFor(ctx, s, "is stopping", func(o *v1alpha1.LanguageServer) bool { return o.Status.Stopping != nil })
	}
	incarnation := mustGet(ctx, server).Status.Incarnation
	for n := range int64(3) {
		Expect(patchFormatted(ctx, server, restartPatch, fmt.Sprintf("beside slow stops %d", n))).To(Succeed())
		waitForRunning(ctx, server, incarnation+n+1)
		_, err := restore.request(ctx)
		Expect(err).NotTo(HaveOccurred())
	}
	for _, s := range slow {
		Expect(mustGet(ctx, s).Status.Stopping).NotTo(BeNil(), "delayed by slow stops: %s exited before the restarts were done", s.Name)
		Expect(patchFormatted(ctx, s, `{"spec":{"process":{"stop":{"gracePeriodSeconds":0}}}}`)).To(Succeed())
	}
	for _, s := range slow {
		waitForStopped(ctx, s)
	}
})

var _ = row("S18", "restart against stop and delete: stop and delete win; a restart that fails keeps the object and reports the cause", func(ctx context.Context) {
	for n := range 4 {
		server := newLanguageServer(fmt.Sprintf("srv-%d", n), script.Script{InitializeMS: 50})
		create(ctx, server)
		waitForRunning(ctx, server, 1)
		inParallel(24, func(i int) error {
			if i == 12 {
				if n%2 == 0 {
					return retryRequest(ctx, func() error { return k8s.Delete(ctx, server.DeepCopy()) })
				}
				return patchObject(ctx, server, stopPatch)
			}
			err := patchFormatted(ctx, server, restartPatch, fmt.Sprint(i))
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		if n%2 == 0 {
			waitForGone(ctx, server, "not resurrected: ")
		} else {
			waitForStopped(ctx, server)
		}
		Expect(workloadPIDs(server.Name)).To(BeEmpty(), "resurrected: a server of an object that was stopped or deleted")
		Consistently(ctx, func() []int { return workloadPIDs(server.Name) }).Should(BeEmpty(), "resurrected: a server of an object that was stopped or deleted")
	}

	server := newLanguageServer("srv", script.Script{})
	create(ctx, server)
	waitForRunning(ctx, server, 1)
	r := mustJoin(ctx, server, "reader")
	right := server.Spec.Process.Command
	Expect(patchFormatted(ctx, server, `{"spec":{"process":{"command":["/does/not/exist"]}}}`)).To(Succeed())
	waitFor(ctx, server, "keeps its server and reports why the change waits", func(o *v1alpha1.LanguageServer) bool {
		drift := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDriftDetected)
		return isRunning(o) && drift != nil && drift.Status == metav1.ConditionTrue && drift.Reason == v1alpha1.ReasonCommandNotFound
	})
	pid, err := r.request(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(workloadPIDs("srv")).To(Equal([]int{pid}))
	running, err := procstat.Identify(pid)
	Expect(err).NotTo(HaveOccurred())
	killProcess(running) // only now must a server be started, which fails
	failed := waitFor(ctx, server, "exists and reports why it is not ready", func(o *v1alpha1.LanguageServer) bool {
		return !isRunning(o) && o.Status.LastExit != nil && o.Status.LastExit.Reason == v1alpha1.ReasonCommandNotFound
	})
	Expect(failed.Status.Endpoint).NotTo(BeEmpty())
	Expect(workloadPIDs("srv")).To(BeEmpty())
	// A request that arrives during that time, on an existing connection, waits.
	waiting := make(chan error, 1)
	go func() {
		_, err := r.request(ctx)
		waiting <- err
	}()
	Consistently(ctx, waiting).ShouldNot(Receive())
	Expect(patchFormatted(ctx, server, `{"spec":{"process":{"command":["%s"]}}}`, strings.Join(right, `","`))).To(Succeed())
	Eventually(ctx, waiting).Should(Receive(BeNil()), "the waiting request is answered")
})
