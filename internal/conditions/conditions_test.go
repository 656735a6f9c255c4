// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestWriter_SetsExactlyOneConditionTrue(t *testing.T) {
	g := NewWithT(t)
	var all []metav1.Condition
	first := time.Unix(1_800_000_000, 999)
	w := Writer{Conditions: &all, Generation: 3, Now: first}
	w.Be(v1alpha1.ConditionStalled, "Blocked", "Do something.")
	g.Expect(all).To(ConsistOf(
		And(HaveField("Type", "Ready"), HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "Blocked"), HaveField("Message", "Do something.")),
		And(HaveField("Type", "Reconciling"), HaveField("Status", metav1.ConditionFalse), HaveField("Message", "")),
		And(HaveField("Type", "Stalled"), HaveField("Status", metav1.ConditionTrue), HaveField("ObservedGeneration", int64(3)), HaveField("Message", "Do something.")),
	))

	w.Now = first.Add(time.Minute)
	w.Be(v1alpha1.ConditionStalled, "Blocked", "Do something else.")
	g.Expect(meta.FindStatusCondition(all, v1alpha1.ConditionStalled).LastTransitionTime.Time).To(Equal(first.Truncate(time.Second)))
	w.Be(v1alpha1.ConditionReady, "Running", "")
	g.Expect(meta.FindStatusCondition(all, v1alpha1.ConditionStalled).LastTransitionTime.Time).To(Equal(w.Now.Truncate(time.Second)))
}

func TestWriter_OmitsConditionsWithUsualStatus(t *testing.T) {
	g := NewWithT(t)
	var all []metav1.Condition
	w := Writer{Conditions: &all, Now: time.Unix(1_800_000_000, 0)}
	types := func() (types []string) {
		for _, c := range all {
			types = append(types, c.Type)
		}
		return types
	}
	w.Set(v1alpha1.ConditionReady, metav1.ConditionUnknown, "R", "")
	w.Set(v1alpha1.ConditionRestarting, metav1.ConditionFalse, "R", "")
	w.Set(v1alpha1.ConditionConflict, metav1.ConditionTrue, "R", "")
	w.Set(v1alpha1.ConditionHealthy, metav1.ConditionFalse, "R", "")
	w.Set(v1alpha1.ConditionIndexed, metav1.ConditionTrue, "R", "")
	w.Set(v1alpha1.ConditionIdle, metav1.ConditionUnknown, "R", "Nothing counts its clients.")
	unusual := types()
	g.Expect(unusual).To(HaveLen(6))

	w.Set(v1alpha1.ConditionCircuitOpen, metav1.ConditionFalse, "R", "")
	w.Set(v1alpha1.ConditionContained, metav1.ConditionTrue, "R", "")
	w.Set(v1alpha1.ConditionAdopted, metav1.ConditionUnknown, "R", "")
	g.Expect(types()).To(Equal(unusual))

	w.Set(v1alpha1.ConditionConflict, metav1.ConditionFalse, "R", "")
	g.Expect(types()).NotTo(ContainElement(v1alpha1.ConditionConflict), "removed when it no longer says anything")
}

func TestSentence_AddsCapitalAndFullStop(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"  \n":                               "",
		"no space left on device":            "No space left on device.",
		"no space left on device\n":          "No space left on device.",
		"timeout":                            "Timeout.",
		"first, the disk is full":            "First, the disk is full.",
		"It is a sentence.":                  "It is a sentence.",
		"the output is long…":                "The output is long…",
		"source agents: pattern \"(\"":       "Source agents: pattern \"(\".",
		"GET http://x/ returned status 500":  "GET http://x/ returned status 500.",
		"http://x/ returned status 500":      "http://x/ returned status 500.",
		"/nope does not exist":               "/nope does not exist.",
		"./serve is not executable":          "./serve is not executable.",
		"main.go: undefined: serve":          "main.go: undefined: serve.",
		"spec.runtime.pod.image: is missing": "spec.runtime.pod.image: is missing.",
		"restartPolicy is Never":             "restartPolicy is Never.",
		"berth-lsp is not installed":         "berth-lsp is not installed.",
		"127.0.0.1:80 is in use":             "127.0.0.1:80 is in use.",
		`"web" is missing`:                   `"web" is missing.`,
		`'web' is missing`:                   `'web' is missing.`,
		"tls: bad certificate":               "tls: bad certificate.", // the text before the colon may be the name of a package or program
		"tmux is not installed":              "tmux is not installed.",
		"berth up stopped the process":       "berth up stopped the process.",
		"über allem":                         "über allem.",
		`run "berth logs devserver/web"`:     `Run "berth logs devserver/web".`,
	} {
		g := NewWithT(t)
		g.Expect(Sentence(text)).To(Equal(want))
		g.Expect(Sentence(want)).To(Equal(want), "a sentence stays as it is")
	}
}

func TestWriter_MakesMessagesSentences(t *testing.T) {
	g := NewWithT(t)
	var all []metav1.Condition
	w := Writer{Conditions: &all, Now: time.Unix(1_800_000_000, 0)}
	w.Be(v1alpha1.ConditionReconciling, "NotReady", "the server is not ready yet")
	w.Set(v1alpha1.ConditionHealthy, metav1.ConditionFalse, "Hung", strings.Repeat("x", 2*MaxMessage))
	g.Expect(meta.FindStatusCondition(all, v1alpha1.ConditionReady).Message).To(Equal("The server is not ready yet."))
	g.Expect(meta.FindStatusCondition(all, v1alpha1.ConditionReconciling).Message).To(Equal("The server is not ready yet."))
	g.Expect(meta.FindStatusCondition(all, v1alpha1.ConditionStalled).Message).To(BeEmpty())
	g.Expect(meta.FindStatusCondition(all, v1alpha1.ConditionHealthy).Message).To(And(HavePrefix("Xxx"), HaveSuffix("xxx…")))
}

func TestTruncate_CutsBetweenRunes(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Truncate("short", 5)).To(Equal("short"))
	g.Expect(Truncate("longer", 5)).To(Equal("lo…"))
	g.Expect(Truncate("äöüäöü", 8)).To(Equal("äö…"))
	g.Expect(Truncate(strings.Repeat("ü", MaxMessage), MaxMessage)).To(And(HaveSuffix("ü…"), WithTransform(func(s string) int { return len(s) }, BeNumerically("<=", MaxMessage))))
}
