// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/printable"
)

// hostile sets the title of a terminal, clears the screen, reverses text and starts another line.
const hostile = "before \x1b]0;OWNED\a\x1b[2J\u009b31m\u202eRLO\u2066\u200f\r\u2028\nforged line"

// controlCharacters returns the characters of a text that can control a terminal.
func controlCharacters(text string) string {
	return strings.Map(func(char rune) rune {
		if char == '\n' || char == '\t' || !unicode.In(char, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return -1
		}
		return char
	}, text)
}

func TestPrintable_RemovesControlCharacters(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"plain text":                {"a\tb\nc é 漢字 🙂", "a\tb\nc é 漢字 🙂"},
		"a color":                   {"\x1b[1;31mred\x1b[0m", "red"},
		"a title":                   {"\x1b]0;OWNED\a", "\ufffd]0;OWNED\ufffd"},
		"an unterminated title":     {"\x1b]0;OWNED, and what follows", "\ufffd]0;OWNED, and what follows"},
		"a nested sequence":         {"\x1b\x1b[0m[31mx", "\ufffd[31mx"},
		"8-bit controls":            {"\u009b31mx", "\ufffd31mx"},
		"invalid UTF-8":             {"\x9b31mx", "\ufffd31mx"},
		"carriage return":           {"safe\revil", "safe\ufffdevil"},
		"backspace and delete":      {"a\b\x7f", "a\ufffd\ufffd"},
		"bidirectional marks":       {"a\u202eb\u2066c\u200fd\u061c", "a\ufffdb\ufffdc\ufffdd\ufffd"},
		"invisible characters":      {"a\u200bb\ufeff\U000e0041", "a\ufffdb\ufffd\ufffd"},
		"line separators":           {"a\u2028b\u2029", "a\ufffdb\ufffd"},
		"the replacement character": {"\ufffd", "\ufffd"},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(printable.Text(tc.text)).To(Equal(tc.want))
		})
	}
	NewWithT(t).Expect(clean("a\nb\tc")).To(Equal("a b c"))
}

func FuzzPrintable(f *testing.F) {
	f.Add(hostile)
	f.Add("\x1b\x1b[0m[31mx")
	f.Add("\xff\x9b\xc2")
	f.Fuzz(func(t *testing.T, text string) {
		shown := printable.Text(text)
		if left := controlCharacters(shown); left != "" || !utf8.ValidString(shown) {
			t.Errorf("%q becomes %q", text, shown)
		}
		if printable.Text(shown) != shown {
			t.Errorf("%q changes when it is cleaned again", text)
		}
		if line := clean(text); strings.ContainsAny(line, "\n\t") || controlCharacters(line) != "" {
			t.Errorf("%q becomes the line %q", text, line)
		}
	})
}

// hostileConditions returns the conditions of a stalled object, with hostile messages.
func hostileConditions() []metav1.Condition {
	return []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Reason", Message: hostile},
		{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: "Reason", Message: hostile},
		{Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionFalse, Reason: "Reason", Message: hostile},
	}
}

// hostileObjects returns objects with hostile text in every field that accepts text.
func hostileObjects() []client.Object {
	plan := newPlan(inState(v1alpha1.PhaseExecute, v1alpha1.PlanErrored), func(plan *v1alpha1.Plan) {
		plan.Annotations = map[string]string{annotationReason: hostile}
		plan.Spec.IdempotencyKey = "key"
		plan.Status.Waiting, plan.Status.Conditions = hostile, hostileConditions()
		plan.Status.Runs = []v1alpha1.PlanRun{{
			Name: "check-1", Strategy: "search", Outcome: v1alpha1.OutcomeFailed, Message: hostile, Result: &v1alpha1.RunResult{Summary: hostile},
		}}
	})
	done := newPlan(inState(v1alpha1.PhaseApply, v1alpha1.PlanApplied), func(plan *v1alpha1.Plan) {
		plan.Name, plan.UID, plan.Status.Waiting = "done", "uid-done", hostile
	})
	return []client.Object{
		web(func(server *v1alpha1.DevServer) {
			server.Status.URL, server.Status.Conditions = "http://127.0.0.1:5173/"+hostile, hostileConditions()
		}),
		&v1alpha1.Instance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shell", UID: "uid-shell"},
			Status:     v1alpha1.InstanceStatus{AttachCommand: hostile, ProcessStatus: v1alpha1.ProcessStatus{HostName: hostile, Conditions: hostileConditions()}},
		},
		&v1alpha1.LanguageServer{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "go", UID: "uid-go"},
			Status:     v1alpha1.LanguageServerStatus{Endpoint: hostile, ProcessStatus: v1alpha1.ProcessStatus{Conditions: hostileConditions()}},
		},
		&v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "search"}, Status: v1alpha1.StrategyStatus{Conditions: hostileConditions()}},
		&v1alpha1.StrategyRun{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "run", UID: "uid-run"},
			Status: v1alpha1.StrategyRunStatus{
				Outcome: v1alpha1.OutcomeFailed, Result: &v1alpha1.RunResult{Summary: hostile}, ProcessStatus: v1alpha1.ProcessStatus{Conditions: hostileConditions()},
			},
		},
		checkModule(), plan, done,
	}
}

func TestOutput_ContainsNoTerminalControls(t *testing.T) {
	const owned = "]0;OWNED"
	for _, tc := range []struct {
		args  string
		shown string // text that the output must contain, so that the case tests hostile text; may be empty
	}{
		{"status", owned}, {"status -A", owned}, {"status devserver/web", owned}, {"status instance/shell", owned}, {"status languageserver/go", owned},
		{"status strategy/search", owned}, {"status strategyrun/run", owned}, {"status plan/check", owned},
		{"restart devserver/web --wait", owned}, {"restart devserver/web", ""}, {"restart instance/shell --wait", owned}, {"stop devserver/web", ""},
		{"start devserver/web", ""}, {"stop strategyrun/run", ""}, {"open devserver/web", owned}, {"lsp connect go", owned},
		{"plan status", owned}, {"plan status check", owned}, {"plan status -w done", owned}, {"plan approve check", ""}, {"plan retry check", ""},
		{"plan retry check --wait", owned}, {"plan revert check", ""}, {"plan cancel check", ""}, {"plan retry done", ""},
		{"use check-module --key key --arg module=/src --wait", ""}, {"use check-module --name check --arg module=/src", owned},
		{"run missing", ""}, {"reset strategies search", ""}, {"logs devserver/web", ""}, {"attach instance/shell", ""}, {"send instance/shell x", ""},
		{"discover", ""}, {"adopt instance/shell --host here", owned}, {"adopt instance/HOSTILE --host here", owned}, {"status HOSTILE", ""}, {"status HOSTILE/web", ""}, {"open devserver/HOSTILE", owned}, {"logs instance/HOSTILE", ""}, {"HOSTILE", ""},
		{"status --HOSTILE", ""}, {"plan status HOSTILE", owned}, {"use HOSTILE --arg module=/src", owned}, {"run HOSTILE", owned}, {"use check-module --arg HOSTILE=x", ""},
	} {
		t.Run(tc.args, func(t *testing.T) {
			g := NewWithT(t)
			f := newPlanFixture(hostileObjects()...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var args []string
			for _, arg := range strings.Fields(tc.args) {
				args = append(args, strings.ReplaceAll(arg, "HOSTILE", hostile))
			}
			f.run(ctx, args...)
			g.Expect(ctx.Err()).NotTo(HaveOccurred())
			shown := f.out.String() + f.err.String()
			g.Expect(shown).NotTo(BeEmpty())
			g.Expect(controlCharacters(shown)).To(BeEmpty(), "%q", shown)
			g.Expect(utf8.ValidString(shown)).To(BeTrue())
			g.Expect(shown).To(ContainSubstring(tc.shown))
			if !strings.Contains(tc.args, "HOSTILE") {
				g.Expect(shown).NotTo(ContainSubstring("\nforged"), "no value starts a new line")
			}
		})
	}
}

func TestBoard_ShowsNoTerminalControls(t *testing.T) {
	g := NewWithT(t)
	out := &output{}
	b := newBoard(out, false)
	b.size = func() (int, int) { return 400, 5 }
	b.draw([]string{hostile})
	g.Expect(controlCharacters(strings.TrimSuffix(strings.TrimSuffix(out.String(), "\x1b[J"), "\x1b[K\n"))).To(BeEmpty(), "%q", out.String())
}
