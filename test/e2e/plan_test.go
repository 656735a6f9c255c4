// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = Describe("the action check-module", Serial, func() {
	It("checks a module, waits for approval even if berth is killed, and writes one report", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		module, reports := copyDir("samples/greeting"), GinkgoT().TempDir()
		applyAction(ctx)
		use := func() string {
			return suiteBerth.run(ctx, "use", "check-module", "--arg", "module="+module, "--arg", "reports="+reports, "--key", module, "--to", "execute")
		}
		Expect(use()).To(ContainSubstring("created"))
		Expect(use()).To(ContainSubstring("already exists"), "the same key returns the same plan")
		plan := onlyPlan(ctx)
		DeferCleanup(deletePlanWithRuns, plan)

		By("waiting for the approval gate")
		waitForPlan(ctx, plan, v1alpha1.PhaseExecute, v1alpha1.PlanComplete)
		Expect(filepath.Glob(filepath.Join(reports, "*.md"))).To(BeEmpty(), "no report is written before the approval")
		Expect(suiteBerth.kubectl(ctx, "get", "plans", plan.Name)).To(MatchRegexp(`check-module +Execute +Complete +for approval of Apply`))
		tree := suiteBerth.run(ctx, "plan", "status", plan.Name)
		Expect(tree).To(MatchRegexp(`├─ Strategize +Complete(?s:.*)list-files +Succeeded(?s:.*)├─ Execute +Complete(?s:.*)test-module +Succeeded(?s:.*)└─ Apply`))
		Expect(tree).To(ContainSubstring("to continue: berth plan approve " + plan.Name + " --attempt 1 --phase apply"))
		Expect(tree).To(And(MatchRegexp(`search-module +Succeeded +\S+ +2 findings\.`), MatchRegexp(`test-module +Succeeded +\S+ +The tests pass: 1 package\.`)))
		Expect(suiteBerth.kubectl(ctx, "get", "strategyruns", "-o", "wide")).To(MatchRegexp(`search-module +Succeeded +Succeeded +\d\S* +\d\S* +2 findings\.`))
		Expect(suiteBerth.run(ctx, "logs", "strategyrun/"+runOf(ctx, plan, "search-module").Name)).To(ContainSubstring("Goodbye has no comment"))

		By("keeping the gate across a restart of berth")
		suiteBerth.kill(ctx)
		suiteBerth.up(ctx)
		waitForPlan(ctx, plan, v1alpha1.PhaseExecute, v1alpha1.PlanComplete)

		By("approving, which writes the report")
		Expect(suiteBerth.run(ctx, "plan", "approve", plan.Name, "--wait")).To(ContainSubstring("Apply Applied"))
		found, err := filepath.Glob(filepath.Join(reports, "*.md"))
		Expect(err).NotTo(HaveOccurred())
		Expect(found).To(HaveLen(1))
		text, err := os.ReadFile(found[0])
		Expect(err).NotTo(HaveOccurred())
		Expect(string(text)).To(And(ContainSubstring("2 files, 32 lines. Plan "+plan.Name+", attempt 1."), ContainSubstring("FIXME: everybody leaves, too."),
			ContainSubstring("- search-module: 2 findings.\n- summarize-module: 1 package.\n- test-module: The tests pass: 1 package.\n")))

		By("checking that each run happened once")
		var runs v1alpha1.StrategyRunList
		Expect(suiteBerth.client.List(ctx, &runs, inNamespace, client.MatchingLabels{v1alpha1.LabelPlan: plan.Name})).To(Succeed())
		Expect(runs.Items).To(HaveLen(5))
		for _, name := range []string{"list-files", "search-module", "test-module", "summarize-module", "write-report"} {
			Eventually(func(g Gomega) {
				strategy := &v1alpha1.Strategy{}
				g.Expect(suiteBerth.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, strategy)).To(Succeed())
				g.Expect(strategy.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: 1}), name)
			}).Should(Succeed())
		}

		By("keeping the files of the runs as long as the runs")
		var kept []string
		for i := range runs.Items {
			result := runs.Items[i].Status.Result
			Expect(result).NotTo(BeNil(), runs.Items[i].Name)
			Expect(result.File).To(BeARegularFile())
			kept = append(kept, result.File)
		}
		deletePlanWithRuns(ctx, plan)
		for _, path := range kept {
			Expect(path).NotTo(BeAnExistingFile())
		}
	})

	It("reports which phase failed and why, and continues from there", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		module, reports := copyDir("samples/greeting"), GinkgoT().TempDir()
		broken := filepath.Join(module, "broken_test.go")
		test := func(body string) {
			text := "package greeting\n\nimport \"testing\"\n\nfunc TestBroken(t *testing.T) { " + body + " }\n"
			Expect(os.WriteFile(broken, []byte(text), 0o644)).To(Succeed())
		}
		test(`t.Error("broken")`)
		applyAction(ctx)
		suiteBerth.run(ctx, "use", "check-module", "--arg", "module="+module, "--arg", "reports="+reports, "--to", "apply")
		plan := onlyPlan(ctx)
		DeferCleanup(deletePlanWithRuns, plan)
		waitForPlan(ctx, plan, v1alpha1.PhaseExecute, v1alpha1.PlanErrored)
		Expect(filepath.Glob(filepath.Join(reports, "*.md"))).To(BeEmpty())
		tree := suiteBerth.run(ctx, "plan", "status", plan.Name)
		Expect(tree).To(And(ContainSubstring("Execute failed: test-module Failed"), ContainSubstring("berth plan retry "+plan.Name)))
		Expect(tree).To(MatchRegexp(`test-module +Failed +\S+ +The run ended with exit code 1: The tests of example.com/greeting fail\.: berth logs`))
		Expect(suiteBerth.run(ctx, "logs", "strategyrun/"+runOf(ctx, plan, "test-module").Name)).To(ContainSubstring("--- FAIL: TestBroken"))

		test(`t.Log("mended")`)
		Expect(suiteBerth.run(ctx, "plan", "retry", plan.Name, "--reason", "the test is mended", "--wait")).To(ContainSubstring("Apply Applied"))
		text, err := os.ReadFile(filepath.Join(reports, plan.Name+".md"))
		Expect(err).NotTo(HaveOccurred())
		Expect(string(text)).To(ContainSubstring("attempt 2"))
		Expect(suiteBerth.run(ctx, "plan", "status", plan.Name)).To(MatchRegexp(`attempt 1(?s:.*)test-module +Failed(?s:.*)attempt 2(?s:.*)test-module +Succeeded`))
	})
})

// applyAction applies the sample action, and deletes it at the end of the spec.
func applyAction(ctx context.Context) {
	GinkgoHelper()
	file := filepath.Join(suiteBerth.root, "config", "samples", "plan", "check-module.yaml")
	suiteBerth.kubectl(ctx, "apply", "-f", file)
	DeferCleanup(func(ctx context.Context) { suiteBerth.kubectl(ctx, "delete", "--ignore-not-found", "-f", file) })
}

// copyDir copies a directory of the repository and returns the path of the copy, which a test may change.
func copyDir(source string) string {
	GinkgoHelper()
	dir := filepath.Join(GinkgoT().TempDir(), filepath.Base(source))
	Expect(os.CopyFS(dir, os.DirFS(filepath.Join(suiteBerth.root, source)))).To(Succeed())
	return dir
}

func onlyPlan(ctx context.Context) *v1alpha1.Plan {
	GinkgoHelper()
	var plans v1alpha1.PlanList
	Expect(suiteBerth.client.List(ctx, &plans, inNamespace)).To(Succeed())
	Expect(plans.Items).To(HaveLen(1))
	return &plans.Items[0]
}

// deletePlanWithRuns deletes a plan and waits until its runs are deleted too.
func deletePlanWithRuns(ctx context.Context, plan *v1alpha1.Plan) {
	Expect(client.IgnoreNotFound(suiteBerth.client.Delete(ctx, plan, client.PropagationPolicy(metav1.DeletePropagationBackground)))).To(Succeed())
	Eventually(func(g Gomega) {
		var runs v1alpha1.StrategyRunList
		g.Expect(suiteBerth.client.List(ctx, &runs, inNamespace, client.MatchingLabels{v1alpha1.LabelPlan: plan.Name})).To(Succeed())
		g.Expect(runs.Items).To(BeEmpty())
	}).WithTimeout(startTimeout).Should(Succeed())
}

// waitForPlan waits until the plan has that phase and state. The timeout is long, because the first go test compiles the standard library.
func waitForPlan(ctx context.Context, plan *v1alpha1.Plan, phase v1alpha1.PlanPhase, state v1alpha1.PlanState) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		now := &v1alpha1.Plan{}
		g.Expect(suiteBerth.client.Get(ctx, client.ObjectKeyFromObject(plan), now)).To(Succeed())
		g.Expect(now.Status.CurrentPhase).To(Equal(phase))
		g.Expect(now.Status.State).To(Equal(state), "%v", now.Status.History)
	}).WithTimeout(startTimeout).Should(Succeed())
}

// runOf returns the run of the strategy in the current phase of the plan.
func runOf(ctx context.Context, plan *v1alpha1.Plan, strategy string) v1alpha1.PlanRun {
	GinkgoHelper()
	now := &v1alpha1.Plan{}
	Expect(suiteBerth.client.Get(ctx, client.ObjectKeyFromObject(plan), now)).To(Succeed())
	for _, run := range now.Status.Runs {
		if run.Strategy == strategy {
			return run
		}
	}
	Fail("no run of " + strategy)
	return v1alpha1.PlanRun{}
}
