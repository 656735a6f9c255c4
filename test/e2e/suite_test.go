// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e uses Berth as its users do: it runs `berth up` and its commands with real servers and real failures.
//
// The package requires Linux, the programs that `make build controlplane` builds, node, npm, chromium and python3.
package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	// startTimeout bounds the time until a server is ready, including compilation on a busy machine.
	startTimeout = 3 * time.Minute
	// timeout bounds every other step.
	timeout = time.Minute
	poll    = 100 * time.Millisecond
)

var (
	// suiteBerth is the `berth up` of this suite.
	suiteBerth *berth
	failures   testenv.Failures
)

var _ = ReportAfterEach(failures.Note)

func TestEndToEnd(t *testing.T) {
	RegisterFailHandler(Fail)
	log.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(timeout)
	SetDefaultEventuallyPollingInterval(poll)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "End to end")
	failures.Report(t)
}

var _ = BeforeSuite(func(ctx context.Context) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	Expect(err).NotTo(HaveOccurred())
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = filepath.Join(root, "bin")
	}
	// Paths of sockets are limited in length: the path of a temporary directory of Ginkgo would be too long.
	state, err := os.MkdirTemp("", "berth-e2e-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(os.RemoveAll(state)).To(Succeed()) })

	suiteBerth = newBerth(root, assets, state)
	suiteBerth.up(ctx)
	DeferCleanup(stopSuiteBerth)
}, NodeTimeout(5*time.Minute))

// anyUser labels specs that take long and do not depend on the user who runs berth. CI runs them only as an ordinary user.
const anyUser = "any-user"

// codingAgents labels specs that type into coding agents, which lose input on a machine with many more busy processes than cores. CI runs them with nothing else.
const codingAgents = "coding-agents"

var _ = BeforeEach(func(ctx context.Context) {
	if !suiteBerth.running() {
		suiteBerth.up(ctx) // a spec that failed may have stopped berth
	}
}, NodeTimeout(5*time.Minute))

var _ = AfterEach(func() {
	if CurrentSpecReport().Failed() {
		suiteBerth.explain()
	}
})

// stopSuiteBerth deletes the remaining objects, stops berth and checks that nothing of berth remains.
func stopSuiteBerth(ctx context.Context) {
	if !suiteBerth.running() {
		suiteBerth.up(ctx)
	}
	Expect(suiteBerth.client.DeleteAllOf(ctx, &v1alpha1.DevServer{}, inNamespace)).To(Succeed())
	Expect(suiteBerth.client.DeleteAllOf(ctx, &v1alpha1.Instance{}, inNamespace)).To(Succeed())
	Expect(suiteBerth.client.DeleteAllOf(ctx, &v1alpha1.LanguageServer{}, inNamespace)).To(Succeed())
	Eventually(func(g Gomega) {
		var servers v1alpha1.DevServerList
		var instances v1alpha1.InstanceList
		var languageServers v1alpha1.LanguageServerList
		g.Expect(suiteBerth.client.List(ctx, &servers)).To(Succeed())
		g.Expect(suiteBerth.client.List(ctx, &instances)).To(Succeed())
		g.Expect(suiteBerth.client.List(ctx, &languageServers)).To(Succeed())
		g.Expect(servers.Items).To(BeEmpty())
		g.Expect(instances.Items).To(BeEmpty())
		g.Expect(languageServers.Items).To(BeEmpty())
	}).WithTimeout(startTimeout).Should(Succeed())

	suiteBerth.interrupt(ctx)
	By("checking that no process, socket or cgroup remains")
	Eventually(func() []string { return processesWithVariable(suiteMark, suiteBerth.mark) }).Should(BeEmpty(), "processes")
	Eventually(suiteBerth.sockets).Should(BeEmpty(), "sockets")
	Eventually(func() []string { return cgroupsBelow(suiteBerth.cgroupsBefore) }).Should(BeEmpty(), "cgroups with processes or of objects")
}
