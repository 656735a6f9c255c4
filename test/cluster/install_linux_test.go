// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// helmObjects holds the objects that the installation by Helm created, for comparison with those that the installation by kustomize creates.
var helmObjects map[string]any

// A cluster can contain only one Berth, so the two installations are tested one after the other.
var _ = Describe("Berth", Ordered, func() {
	Context("installed by Helm", addHelmSpecs)
	Context("installed by kustomize", addKustomizeSpecs)
})

func addHelmSpecs() {
	BeforeAll(func(ctx context.Context) {
		DeferCleanup(removeAll, NodeTimeout(2*timeout)) // AfterAll would run before the cleanup of the last spec
		installByHelm(ctx)
		waitForRollout(ctx)
	}, NodeTimeout(2*timeout))

	addCommonSpecs()
	addPodSpecs()
	addLanguageServerSpecs()
	addPlanSpecs()
	addTerminalSpecs()
	addSpeedSpecs()
	addLanguageServerSpeedSpecs()
	addFailureSpecs()

	It("keeps its objects and their processes across an upgrade", func(ctx context.Context) {
		tenant, server := devServer(ctx, "upgraded"), languageServer(ctx, "upgraded")
		client := server.connect(ctx)
		helm(ctx, "upgrade", "berth", earlierChart(), "--reset-then-reuse-values")
		waitForRollout(ctx)
		Expect(partsMissingInEarlierChart(ctx)).To(BeEmpty(), "the earlier chart has none of the new objects and fields")
		helm(ctx, "upgrade", "berth", chart(), "--reset-then-reuse-values", "--set=podAnnotations.generation=second")
		waitForRollout(ctx)
		Expect(partsMissingInEarlierChart(ctx)).To(ConsistOf("a field", "a policy", "a disruption budget"))
		for _, pod := range managerPods(ctx) {
			Expect(pod.Annotations).To(HaveKeyWithValue("generation", "second"))
		}
		Expect(waitForLeader(ctx).Annotations).To(HaveKeyWithValue("generation", "second"))
		tenant.expectStillRunning(ctx, 1)
		tenant.restart(ctx)
		server.expectStillRunning(ctx, 1)
		Expect(client.hover(ctx)).To(Equal(text))
		server.restart(ctx)
		Expect(client.hover(ctx)).To(Equal(text))
	}, SpecTimeout(2*timeout))

	Context("after the upgrade", func() {
		addPodSpecs()
		addLanguageServerSpecs()
		addPlanSpecs()
		addTerminalSpecs()
	})

	It("keeps CRDs and objects when it is uninstalled, and continues to manage the objects when it is installed again", func(ctx context.Context) {
		tenant := devServer(ctx, "uninstalled")
		helmObjects = installedObjects(ctx)
		helm(ctx, "uninstall", "berth", "--wait")
		Eventually(ctx, managerPods).Should(BeEmpty())
		left := installedObjects(ctx)
		for key := range helmObjects {
			if strings.HasPrefix(key, "CustomResourceDefinition ") || strings.HasSuffix(key, "/berth-kept") {
				Expect(left).To(HaveKey(key))
				delete(left, key)
			}
		}
		Expect(left).To(BeEmpty(), "only the CRDs and the policy berth-kept, which refuses nothing, remain")
		tenant.expectStillRunning(ctx, 1)

		repository, tag := image()
		helm(ctx, "install", "berth", chart(), "--set=image.repository="+repository+",image.tag="+tag)
		waitForRollout(ctx)
		tenant.expectStillRunning(ctx, 1)
		tenant.restart(ctx)
	}, SpecTimeout(3*timeout))
}

func addKustomizeSpecs() {
	BeforeAll(func(ctx context.Context) {
		DeferCleanup(removeAll, NodeTimeout(2*timeout)) // AfterAll would run before the cleanup of the last spec
		reloadPolicyParameters(ctx)
		installByKustomize(ctx)
		waitForRollout(ctx)
	}, NodeTimeout(2*timeout))

	addCommonSpecs()
	addPodSpecs()
	addLanguageServerSpecs()
	addPlanSpecs()
	addTerminalSpecs()

	It("installs the same objects as Helm", func(ctx context.Context) {
		Expect(helmObjects).NotTo(BeEmpty(), "the objects that Helm installed")
		now := installedObjects(ctx)
		for key, object := range helmObjects {
			if !strings.HasPrefix(key, "Deployment ") { // the upgrade changed the Deployment
				Expect(now).To(HaveKeyWithValue(key, object))
			}
			delete(now, key)
		}
		Expect(now).To(BeEmpty())
	}, SpecTimeout(timeout))
}

// addCommonSpecs adds the specs that apply to both kinds of installation.
func addCommonSpecs() {
	It("has two managers, one of which is the leader", func(ctx context.Context) {
		Expect(managerPods(ctx)).To(HaveLen(2))
		Expect(waitForLeader(ctx).Name).To(HavePrefix("berth-manager-"))
	}, SpecTimeout(timeout))

	It("runs its managers under the restricted Pod Security Standard", func(ctx context.Context) {
		namespace, err := clientset.CoreV1().Namespaces().Get(ctx, managerNamespace, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
		for _, pod := range managerPods(ctx) {
			process := firstProcess(&pod, "manager")
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process))
			Expect(err).NotTo(HaveOccurred())
			said := string(status)
			for field, want := range map[string]string{"Uid": "65532\t65532\t65532\t65532", "CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"} {
				Expect(said).To(ContainSubstring("\n"+field+":\t"+want+"\n"), field)
			}
			mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", process))
			Expect(err).NotTo(HaveOccurred())
			Expect(string(mounts)).To(MatchRegexp(`(?m)^\S+ / \S+ ro[, ]`), "the root file system is read-only")
		}
	}, SpecTimeout(timeout))

	It("extends the roles view, edit and admin to the kinds of Berth", func(ctx context.Context) {
		namespace := namespaceOfSpec(ctx)
		look := []string{"get devservers", "list plans", "get instances/log"}
		change := []string{"create devservers", "delete plans", "deletecollection strategyruns", "create instances/attach"}
		for role, may := range map[string][]string{"view": look, "edit": slices.Concat(look, change), "admin": slices.Concat(look, change)} {
			who := createMember(ctx, namespace, role)
			for _, what := range slices.Concat(look, change, []string{"patch devservers/status"}) {
				// A controller adds the new roles to the aggregated roles shortly after their creation.
				Eventually(ctx, isAllowed).WithArguments(who, namespace, what).Should(Equal(slices.Contains(may, what)), "%s: %s", role, what)
			}
		}
	}, SpecTimeout(timeout))

	It("serves metrics to authorized clients only", func(ctx context.Context) {
		may := createToken(ctx, managerNamespace, "scraper", "berth-metrics-reader")
		mayNot := createToken(ctx, managerNamespace, "stranger", "")
		for _, address := range []string{managerPods(ctx)[0].Status.PodIP, managerPods(ctx)[1].Status.PodIP, metricsAddress(ctx)} {
			Eventually(ctx, func(g Gomega, ctx context.Context) {
				code, text, err := scrape(ctx, address, may)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(code).To(Equal(http.StatusOK), text)
				g.Expect(text).To(ContainSubstring("berth_front_held_requests"))
			}).Should(Succeed())
			for token, want := range map[string]int{"": http.StatusUnauthorized, "nonsense": http.StatusUnauthorized, mayNot: http.StatusForbidden} {
				code, text, err := scrape(ctx, address, token)
				Expect(err).NotTo(HaveOccurred())
				Expect(code).To(Equal(want), text)
				Expect(text).NotTo(ContainSubstring("berth_front"))
			}
		}
	}, SpecTimeout(timeout))

	It("runs a DevServer, and removes everything that belongs to it when it is deleted", func(ctx context.Context) {
		tenant := devServer(ctx, "works")
		tenant.restart(ctx)
		tenant.deleteAndCheck(ctx)
	}, SpecTimeout(timeout))

	It("refuses objects that its policies forbid", func(ctx context.Context) {
		forbidden := newDevServer(namespaceOfSpec(ctx), "forbidden")
		forbidden.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimeHost}
		Eventually(ctx, func(ctx context.Context) error { return k8s.Create(ctx, forbidden.DeepCopy()) }).Should(MatchError(ContainSubstring("the runtime Host is not allowed")))
	}, SpecTimeout(timeout))
}
