// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e uses Berth as its users do: it runs `berth up` and its commands, with real servers and real trouble.
//
// It needs what `make build controlplane` makes, node, npm, chromium and python3, and Linux.
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
	"github.com/berth-dev/berth/test/plane"
)

const (
	// startTimeout is how long a server may take until it is ready: one that has to compile first, on a busy machine.
	startTimeout = 3 * time.Minute
	// timeout is how long everything else may take.
	timeout = time.Minute
	poll    = 100 * time.Millisecond
)

var (
	// house is the `berth up` of this suite.
	house    *berth
	failures plane.Failures
)

var _ = ReportAfterEach(failures.Note)

func TestEndToEnd(t *testing.T) {
	RegisterFailHandler(Fail)
	log.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(timeout)
	SetDefaultEventuallyPollingInterval(poll)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "End to end")
	failures.Tell(t)
}

var _ = BeforeSuite(func(ctx context.Context) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	Expect(err).NotTo(HaveOccurred())
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = filepath.Join(root, "bin")
	}
	// Sockets have short names: a temporary folder of Ginkgo's would be too long for them.
	state, err := os.MkdirTemp("", "berth-e2e-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(os.RemoveAll(state)).To(Succeed()) })

	house = newBerth(root, assets, state)
	house.up(ctx)
	DeferCleanup(closeHouse)
}, NodeTimeout(5*time.Minute))

var _ = BeforeEach(func(ctx context.Context) {
	if !house.running() {
		house.up(ctx) // a spec that failed has left it down
	}
}, NodeTimeout(5*time.Minute))

var _ = AfterEach(func() {
	if CurrentSpecReport().Failed() {
		house.explain()
	}
})

// closeHouse deletes whatever a spec left, ends berth and sees that nothing of it is there any more.
func closeHouse(ctx context.Context) {
	if !house.running() {
		house.up(ctx)
	}
	Expect(house.client.DeleteAllOf(ctx, &v1alpha1.DevServer{}, inNamespace)).To(Succeed())
	Expect(house.client.DeleteAllOf(ctx, &v1alpha1.Instance{}, inNamespace)).To(Succeed())
	Expect(house.client.DeleteAllOf(ctx, &v1alpha1.LanguageServer{}, inNamespace)).To(Succeed())
	Eventually(func(g Gomega) {
		var servers v1alpha1.DevServerList
		var instances v1alpha1.InstanceList
		var languageServers v1alpha1.LanguageServerList
		g.Expect(house.client.List(ctx, &servers)).To(Succeed())
		g.Expect(house.client.List(ctx, &instances)).To(Succeed())
		g.Expect(house.client.List(ctx, &languageServers)).To(Succeed())
		g.Expect(servers.Items).To(BeEmpty())
		g.Expect(instances.Items).To(BeEmpty())
		g.Expect(languageServers.Items).To(BeEmpty())
	}).WithTimeout(startTimeout).Should(Succeed())

	house.interrupt(ctx)
	By("looking for what was left over")
	Eventually(func() []string { return marked(houseMark, house.mark) }).Should(BeEmpty(), "processes")
	Eventually(house.sockets).Should(BeEmpty(), "sockets")
	Eventually(func() []string { return cgroupsBelow(house.cgroupsBefore) }).Should(BeEmpty(), "cgroups with processes or of objects")
}
