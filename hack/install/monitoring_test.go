// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// runbooks is the page that explains the alerts. Each section has the name of its alert.
const runbooks = "https://github.com/berth-dev/berth/blob/main/docs/operations.md#"

func TestAlerts_AreValidAndDocumented(t *testing.T) {
	rule := renderKustomization(t, "config/prometheus").Get("PrometheusRule", "berth-manager")
	operations := readFile(t, "docs", "operations.md")
	alerts := 0
	for _, group := range objectList(rule.At("spec", "groups")) {
		for _, alert := range objectList(group.At("rules")) {
			alerts++
			name, _ := alert.At("alert").(string)
			expression, _ := alert.At("expr").(string)
			checkExpression(t, name, expression)
			severity := alert.At("labels", "severity")
			if severity != "warning" && severity != "critical" {
				t.Errorf("%s has the severity %v", name, severity)
			}
			for _, annotation := range []string{"summary", "description"} {
				if said, _ := alert.At("annotations", annotation).(string); said == "" {
					t.Errorf("%s has no %s", name, annotation)
				}
			}
			if runbook, _ := alert.At("annotations", "runbook_url").(string); runbook != runbooks+strings.ToLower(name) {
				t.Errorf("%s has the runbook %q, want %s", name, runbook, runbooks+strings.ToLower(name))
			}
			if !strings.Contains(operations, "### "+name+"\n") {
				t.Errorf("docs/operations.md has no section %s; add one that explains the alert", name)
			}
		}
	}
	if alerts < 10 {
		t.Errorf("only %d alerts", alerts)
	}
	for _, section := range regexp.MustCompile(`(?m)^### (Berth\w+)$`).FindAllStringSubmatch(operations, -1) {
		if !strings.Contains(toYAML(t, rule), "alert: "+section[1]+"\n") {
			t.Errorf("docs/operations.md has a section %s, but there is no such alert", section[1])
		}
	}
}

func TestDashboard_UsesKnownMetrics(t *testing.T) {
	dashboard := Object{}
	if err := json.Unmarshal([]byte(readFile(t, "config", "prometheus", "berth.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, expressions := map[any]bool{}, 0
	for _, panel := range objectList(dashboard.At("panels")) {
		title, _ := panel.At("title").(string)
		if ids[panel.At("id")] || title == "" {
			t.Errorf("panel %v has no title or no unique id", panel.At("id"))
		}
		ids[panel.At("id")] = true
		for _, target := range objectList(panel.At("targets")) {
			expressions++
			expression, _ := target.At("expr").(string)
			// Grafana replaces these variables before it sends the expression to Prometheus.
			checkExpression(t, title, strings.NewReplacer("$__rate_interval", "5m", "$job", "berth-metrics").Replace(expression))
		}
	}
	if expressions < 20 {
		t.Errorf("only %d expressions", expressions)
	}
	for _, metric := range []string{"berth_live_processes", "berth_not_ready", "berth_starts_total", "berth_breakers", "berth_apply_to_ready_seconds_bucket"} {
		if !strings.Contains(readFile(t, "config", "prometheus", "berth.json"), metric) {
			t.Errorf("no panel shows %s", metric)
		}
	}
}

// TestProblems_ReportsInvalidExpressions checks that problems reports invalid expressions.
func TestProblems_ReportsInvalidExpressions(t *testing.T) {
	for _, expression := range []string{"sum(berth_starts)", "sum by (kind (berth_breakers)", "sum(berth_starts_total{kynd='x'})", "sum by (kynd) (berth_starts_total)"} {
		if problems(t, expression) == nil {
			t.Errorf("%s was accepted", expression)
		}
	}
}

func checkExpression(t *testing.T, where, expression string) {
	t.Helper()
	for _, problem := range problems(t, expression) {
		t.Errorf("%s: %s: %s", where, expression, problem)
	}
}

var (
	// row matches a metric in a table of docs/metrics.md: its name, and the rest of its row, which contains the labels.
	row = regexp.MustCompile("(?m)^\\| `([a-z_*]+)` \\|(.*)$")
	// anywhere matches the name of a metric anywhere in docs/metrics.md, not only in a table.
	anywhere = regexp.MustCompile("`([a-z_]+)`")
	// scrapeLabels are labels that a scrape adds, and the label of histogram buckets.
	scrapeLabels = []string{"job", "pod", "namespace", "instance", "le"}
)

// problems returns the errors in an expression: it cannot be parsed, or it uses a metric or label that docs/metrics.md does not list.
func problems(t *testing.T, expression string) []string {
	t.Helper()
	parsed, err := parser.ParseExpr(expression)
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	page, rest := readFile(t, "docs", "metrics.md"), ""
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, is := node.(*parser.VectorSelector); is && selector.Name != "up" {
			labelled, documented := documentation(page, selector.Name)
			rest += labelled
			if !documented {
				found = append(found, "docs/metrics.md has no "+selector.Name)
			}
			for _, matcher := range selector.LabelMatchers {
				if !hasLabel(labelled, matcher.Name) {
					found = append(found, selector.Name+" has no label "+matcher.Name)
				}
			}
		}
		return nil
	})
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if aggregate, is := node.(*parser.AggregateExpr); is {
			for _, label := range aggregate.Grouping {
				if !hasLabel(rest, label) {
					found = append(found, "no metric has the label "+label)
				}
			}
		}
		return nil
	})
	return found
}

func hasLabel(labelled, label string) bool {
	return label == "__name__" || slices.Contains(scrapeLabels, label) || strings.Contains(labelled, "`"+label+"`")
}

// documentation returns the row of a metric without the name of the metric, or an empty row if only the text of the page names the metric. It returns false if
// the page does not name the metric at all.
func documentation(page, metric string) (string, bool) {
	family := metric
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if cut, has := strings.CutSuffix(metric, suffix); has && strings.Contains(page, "`"+cut+"`") {
			family = cut
		}
	}
	for _, match := range row.FindAllStringSubmatch(page, -1) {
		prefix, all := strings.CutSuffix(match[1], "*")
		if match[1] == family || all && strings.HasPrefix(family, prefix) {
			return match[2], true
		}
	}
	for _, match := range anywhere.FindAllStringSubmatch(page, -1) {
		if match[1] == family {
			return "", true
		}
	}
	return "", false
}

func objectList(value any) []Object {
	entries, _ := value.([]any)
	objects := make([]Object, 0, len(entries))
	for _, entry := range entries {
		if object, is := entry.(map[string]any); is {
			objects = append(objects, object)
		}
	}
	return objects
}

func readFile(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
