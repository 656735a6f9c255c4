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

// runbooks is where users read what an alert means; the section is named like the alert.
const runbooks = "https://github.com/berth-dev/berth/blob/main/docs/operations.md#"

func TestAlerts(t *testing.T) {
	rule := kustomized(t, "config/prometheus").Get("PrometheusRule", "berth-manager")
	operations := read(t, "docs", "operations.md")
	alerts := 0
	for _, group := range list(rule.At("spec", "groups")) {
		for _, alert := range list(group.At("rules")) {
			alerts++
			name, _ := alert.At("alert").(string)
			expression, _ := alert.At("expr").(string)
			known(t, name, expression)
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
				t.Errorf("%s has the runbook %q, and its section is %s", name, runbook, runbooks+strings.ToLower(name))
			}
			if !strings.Contains(operations, "### "+name+"\n") {
				t.Errorf("docs/operations.md has no section %s: say what it means and what to do", name)
			}
		}
	}
	if alerts < 10 {
		t.Errorf("there are %d alerts", alerts)
	}
	for _, section := range regexp.MustCompile(`(?m)^### (Berth\w+)$`).FindAllStringSubmatch(operations, -1) {
		if !strings.Contains(text(t, rule), "alert: "+section[1]+"\n") {
			t.Errorf("docs/operations.md tells of %s, which is no alert", section[1])
		}
	}
}

func TestDashboard(t *testing.T) {
	dashboard := Object{}
	if err := json.Unmarshal([]byte(read(t, "config", "prometheus", "berth.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, expressions := map[any]bool{}, 0
	for _, panel := range list(dashboard.At("panels")) {
		title, _ := panel.At("title").(string)
		if ids[panel.At("id")] || title == "" {
			t.Errorf("panel %v has no title or not an id of its own", panel.At("id"))
		}
		ids[panel.At("id")] = true
		for _, target := range list(panel.At("targets")) {
			expressions++
			expression, _ := target.At("expr").(string)
			// Grafana replaces these before Prometheus sees them.
			known(t, title, strings.NewReplacer("$__rate_interval", "5m", "$job", "berth-metrics").Replace(expression))
		}
	}
	if expressions < 20 {
		t.Errorf("there are %d expressions", expressions)
	}
	for _, metric := range []string{"berth_live_processes", "berth_not_ready", "berth_starts_total", "berth_breakers", "berth_apply_to_ready_seconds_bucket"} {
		if !strings.Contains(read(t, "config", "prometheus", "berth.json"), metric) {
			t.Errorf("nothing shows %s", metric)
		}
	}
}

// TestMistakesAreFound has known find what it is there for.
func TestMistakesAreFound(t *testing.T) {
	for _, expression := range []string{"sum(berth_starts)", "sum by (kind (berth_breakers)", "sum(berth_starts_total{kynd='x'})", "sum by (kynd) (berth_starts_total)"} {
		if problems(t, expression) == nil {
			t.Errorf("%s was accepted", expression)
		}
	}
}

func known(t *testing.T, where, expression string) {
	t.Helper()
	for _, problem := range problems(t, expression) {
		t.Errorf("%s: %s: %s", where, expression, problem)
	}
}

var (
	// row is a metric in docs/metrics.md: its name and type, and the rest of its row with the labels.
	row = regexp.MustCompile("(?m)^\\| `([a-z_*]+)` \\|(.*)$")
	// anywhere is a metric that a text there names.
	anywhere = regexp.MustCompile("`([a-z_]+)`")
	// ofPrometheus are labels that a scrape adds, and the metric of the scrape itself.
	ofPrometheus = []string{"job", "pod", "namespace", "instance", "le"}
)

// problems are what is wrong with an expression: it does not parse, or names a metric or a label that docs/metrics.md does not have.
func problems(t *testing.T, expression string) []string {
	t.Helper()
	parsed, err := parser.ParseExpr(expression)
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	page, rest := read(t, "docs", "metrics.md"), ""
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, is := node.(*parser.VectorSelector); is && selector.Name != "up" {
			labelled, documented := documentation(page, selector.Name)
			rest += labelled
			if !documented {
				found = append(found, "docs/metrics.md has no "+selector.Name)
			}
			for _, matcher := range selector.LabelMatchers {
				if !has(labelled, matcher.Name) {
					found = append(found, selector.Name+" has no label "+matcher.Name)
				}
			}
		}
		return nil
	})
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if aggregate, is := node.(*parser.AggregateExpr); is {
			for _, label := range aggregate.Grouping {
				if !has(rest, label) {
					found = append(found, "no metric has the label "+label)
				}
			}
		}
		return nil
	})
	return found
}

func has(labelled, label string) bool {
	return label == "__name__" || slices.Contains(ofPrometheus, label) || strings.Contains(labelled, "`"+label+"`")
}

// documentation gives what the page says of a metric beside its name.
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

func list(value any) []Object {
	entries, _ := value.([]any)
	objects := make([]Object, 0, len(entries))
	for _, entry := range entries {
		if object, is := entry.(map[string]any); is {
			objects = append(objects, object)
		}
	}
	return objects
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
