// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics checks that the metrics and health checks of a manager exist and match docs/metrics.md.
package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
	_ "github.com/berth-dev/berth/internal/runtime/langserver" // registers the metrics of language servers, as in every program that has a manager
	"github.com/berth-dev/berth/test/testenv"
)

const patience = 2 * time.Minute

// TestMetrics_HaveValuesAndDocumentation takes an Instance through start, crash, restart, stop and adoption, so that every metric has a value.
func TestMetrics_HaveValuesAndDocumentation(t *testing.T) {
	g := NewWithT(t)
	ctrl.SetLogger(logr.Discard())
	config := controlPlane(t)
	k8s, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	backend := fake.WithSockets(fake.New(t.Context(), clock.RealClock{}))
	backend.Program("check", fake.Program{Exit: &facts.Exit{Known: true}})
	first := start(t, config, backend)

	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "measured"}}
	instance.Spec.Process.Command = []string{"serve"}
	instance.Spec.Backoff.InitialSeconds = ptr.To[int32](0)
	g.Expect(k8s.Create(t.Context(), instance)).To(Succeed())
	waitUntilReady(g, k8s, instance, 1)
	backend.Exit(instance.UID, facts.Exit{Known: true, Code: 3})
	waitUntilReady(g, k8s, instance, 2)
	updateInstance(g, k8s, instance, func() { instance.Spec.RestartToken = "again" })
	waitUntilReady(g, k8s, instance, 3)
	updateInstance(g, k8s, instance, func() { instance.Spec.State = v1alpha1.StateStopped })
	g.Eventually(func(g Gomega) { // wait until the stop is complete: an earlier start would count as a restart
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(instance), instance)).To(Succeed())
		g.Expect(meta.FindStatusCondition(instance.Status.Conditions, v1alpha1.ConditionReady)).To(HaveField("Reason", v1alpha1.ReasonStopped))
	}).WithTimeout(patience).WithPolling(50 * time.Millisecond).Should(Succeed())
	updateInstance(g, k8s, instance, func() { instance.Spec.State = v1alpha1.StateRunning })
	waitUntilReady(g, k8s, instance, 4)
	waiting := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waiting"}}
	waiting.Spec.Process.Command = []string{"serve"}
	waiting.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: "none", Key: "token"}}}}
	g.Expect(k8s.Create(t.Context(), waiting)).To(Succeed())
	backend.Show(instance.UID, "Continue? [y/N] ")
	plan := planToApprove(t, g, k8s)
	first.stop()
	second := start(t, config, backend)

	g.Eventually(func(g Gomega) { // poll: the manager changes the counters after the status write that made the object ready
		sample := samples(g, second.scrape(g))
		for _, reason := range []string{"Created", "Crashed", "Requested", "Resumed"} {
			g.Expect(sample[`berth_starts_total{kind="instances",reason="`+reason+`"}`]).To(Equal("1"), reason)
		}
		g.Expect(sample[`berth_live_processes{kind="instances"}`]).To(Equal("1"))
		g.Expect(sample[`berth_breakers{kind="instances",state="Closed"}`]).To(Equal("2"), "an object that cannot start has a breaker, too")
		g.Expect(sample[`berth_adoption_seconds_count{kind="instances"}`]).To(Equal("1"))
		g.Expect(sample[`berth_apply_to_ready_seconds_bucket{kind="instances",le="0.001"}`]).NotTo(BeEmpty(), "the lowest bucket is 1 ms")
		g.Expect(sample[`berth_apply_to_ready_seconds_count{kind="instances"}`]).NotTo(BeElementOf("", "0"))
		g.Expect(sample[`berth_status_writes_per_transition_count{kind="instances"}`]).NotTo(BeElementOf("", "0"))
		for _, kind := range []string{"instances", "plans"} {
			g.Expect(sample[`berth_waiting{kind="`+kind+`"}`]).To(Equal("1"), kind)
		}
		g.Expect(sample[`berth_not_ready{kind="instances",reason="InvalidEnvironment"}`]).To(Equal("1"))
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(waiting), waiting)).To(Succeed())
		since := float64(meta.FindStatusCondition(waiting.Status.Conditions, v1alpha1.ConditionReady).LastTransitionTime.Unix())
		g.Expect(strconv.ParseFloat(sample[`berth_not_ready_since_timestamp_seconds{kind="instances",reason="InvalidEnvironment"}`], 64)).To(Equal(since))
	}).WithTimeout(patience).Should(Succeed())
	expectDocumented(g, second.scrape(g))

	for _, check := range []string{"healthz", "healthz/ping", "readyz", "readyz/cache"} {
		g.Eventually(func() (string, error) { return get("http://" + second.health + "/" + check) }).WithTimeout(patience).Should(Equal("ok"), check)
	}
	for _, object := range []client.Object{instance, waiting, plan} {
		g.Expect(k8s.Delete(t.Context(), object)).To(Succeed())
	}
	g.Eventually(func(g Gomega) {
		g.Expect(second.scrape(g)).NotTo(ContainSubstring("berth_not_ready"), "no object is left")
		for _, series := range []string{`berth_live_processes{kind="instances"}`, `berth_waiting{kind="instances"}`, `berth_waiting{kind="plans"}`} {
			g.Expect(samples(g, second.scrape(g))[series]).To(Equal("0"), series)
		}
		g.Expect(samples(g, second.scrape(g))[`berth_breakers{kind="instances",state="Closed"}`]).To(Equal("0"))
	}).WithTimeout(patience).Should(Succeed())
}

// planToApprove returns a plan whose first phase succeeds, so that it waits for approval.
func planToApprove(t *testing.T, g Gomega, k8s client.Client) *v1alpha1.Plan {
	t.Helper()
	named := metav1.ObjectMeta{Namespace: "default", Name: "check"}
	strategy, action, plan := &v1alpha1.Strategy{ObjectMeta: named}, &v1alpha1.Action{ObjectMeta: named}, &v1alpha1.Plan{ObjectMeta: named}
	strategy.Spec.Process.Command = []string{"check"}
	phase := &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "check"}}}
	action.Spec.Strategize, action.Spec.Execute, action.Spec.Apply = phase, phase, phase
	plan.Spec.ActionRef.Name = "check"
	for _, object := range []client.Object{strategy, action, plan} {
		g.Expect(k8s.Create(t.Context(), object)).To(Succeed())
	}
	return plan
}

// running is a running manager and its addresses.
type running struct {
	metrics, health string
	stop            func()
}

// start runs a manager on free ports. If another program takes one of the ports before the manager listens, start tries other ports.
func start(t *testing.T, config *rest.Config, backend runtime.Runtime) *running {
	t.Helper()
	g := NewWithT(t)
	for range 10 {
		r := &running{metrics: freeAddress(g), health: freeAddress(g)}
		mgr, err := manager.New(config, manager.Options{
			Runtimes: runtime.NewRegistry(backend, logr.Discard()), Metrics: metricsserver.Options{BindAddress: r.metrics}, HealthProbeBindAddress: r.health,
		})
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()
		over := false
		r.stop = func() {
			cancel()
			if !over {
				over = true
				g.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
			}
		}
		t.Cleanup(r.stop)
		select {
		case err := <-ended:
			over = true
			g.Expect(err).To(MatchError(syscall.EADDRINUSE))
		case <-mgr.Elected(): // the manager is the leader and serves its endpoints
			return r
		}
	}
	t.Fatal("no free address found")
	return nil
}

func freeAddress(g Gomega) string {
	port, err := testenv.FreePort()
	g.Expect(err).NotTo(HaveOccurred())
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func (r *running) scrape(g Gomega) string {
	text, err := get("http://" + r.metrics + "/metrics")
	g.Expect(err).NotTo(HaveOccurred())
	return text
}

func get(url string) (string, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, text)
	}
	return string(text), err
}

// samples returns the value of each series of a scrape.
func samples(g Gomega, scrape string) map[string]string {
	values := map[string]string{}
	for lines := bufio.NewScanner(strings.NewReader(scrape)); lines.Scan(); {
		if series, value, found := strings.Cut(lines.Text(), "} "); found {
			values[series+"}"] = value
		}
	}
	g.Expect(values).NotTo(BeEmpty())
	return values
}

// expectDocumented expects a row in docs/metrics.md for each metric of a scrape, and a metric for each row. A row that ends with * covers all metrics
// with that prefix, except Berth's own metrics, each of which needs its own row.
func expectDocumented(g Gomega, scrape string) {
	document, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "metrics.md"))
	g.Expect(err).NotTo(HaveOccurred())
	var rows, families []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z_*]+)`").FindAllStringSubmatch(string(document), -1) {
		rows = append(rows, match[1])
	}
	for _, match := range regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(scrape, -1) {
		families = append(families, match[1])
	}
	g.Expect(rows).NotTo(BeEmpty())
	g.Expect(families).To(ContainElement("berth_starts_total"))
	covers := func(row, family string) bool {
		prefix, all := strings.CutSuffix(row, "*")
		return row == family || all && strings.HasPrefix(family, prefix) && !strings.HasPrefix(family, "berth_")
	}
	for _, family := range families {
		documented := slices.ContainsFunc(rows, func(row string) bool { return covers(row, family) })
		g.Expect(documented).To(BeTrue(), "%s is not in docs/metrics.md; add it", family)
	}
	for _, row := range rows {
		served := slices.ContainsFunc(families, func(family string) bool { return covers(row, family) })
		g.Expect(served).To(BeTrue(), "%s is in docs/metrics.md, but the manager does not serve it", row)
	}
}

func controlPlane(t *testing.T) *rest.Config {
	t.Helper()
	environment := testenv.New(filepath.Join("..", "..", ".."))
	config, err := environment.Start()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "start an API server")
	t.Cleanup(func() { _ = environment.Stop() })
	return config
}

// waitUntilReady waits until the given incarnation is ready.
func waitUntilReady(g Gomega, k8s client.Client, instance *v1alpha1.Instance, incarnation int64) {
	g.Eventually(func(g Gomega) {
		g.Expect(k8s.Get(context.Background(), client.ObjectKeyFromObject(instance), instance)).To(Succeed())
		g.Expect(instance.Status.Incarnation).To(Equal(incarnation))
		g.Expect(meta.IsStatusConditionTrue(instance.Status.Conditions, v1alpha1.ConditionReady)).To(BeTrue())
	}).WithTimeout(patience).WithPolling(50 * time.Millisecond).Should(Succeed())
}

// updateInstance changes the object as a user would, and retries on conflicts with the manager.
func updateInstance(g Gomega, k8s client.Client, instance *v1alpha1.Instance, do func()) {
	g.Eventually(func(g Gomega) {
		g.Expect(k8s.Get(context.Background(), client.ObjectKeyFromObject(instance), instance)).To(Succeed())
		do()
		g.Expect(k8s.Update(context.Background(), instance)).To(Succeed())
	}).WithTimeout(patience).WithPolling(50 * time.Millisecond).Should(Succeed())
}
