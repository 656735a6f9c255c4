// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conditions sets status conditions in the same way for all kinds.
package conditions

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/printable"
)

// MaxMessage is the limit of messages in conditions and events, in bytes. The API server permits more, but longer messages are not read.
const MaxMessage = 1000

// Writer sets the conditions of one object.
type Writer struct {
	Conditions *[]metav1.Condition
	Generation int64
	Now        time.Time
}

// Set sets a condition for the current generation. It removes a condition that has no message and has its usual status or the status Unknown (see usual),
// because an absent condition means the same. The message becomes a sentence: see Sentence. The transition time changes only with the status, so setting the
// same condition again changes nothing.
func (w Writer) Set(conditionType string, status metav1.ConditionStatus, reason, message string) {
	if saysNothing(conditionType, status, message) {
		meta.RemoveStatusCondition(w.Conditions, conditionType)
		return
	}
	meta.SetStatusCondition(w.Conditions, metav1.Condition{
		Type: conditionType, Status: status, ObservedGeneration: w.Generation, LastTransitionTime: metav1.NewTime(w.Now.Truncate(time.Second)),
		Reason: reason, Message: Truncate(Sentence(message), MaxMessage),
	})
}

// Renew sets the observed generation of the conditions with these types, as far as they exist. Call it only for a condition that was evaluated for the current
// generation and keeps its value. A condition that was not evaluated keeps its generation, so that clients recognize an outdated value.
func (w Writer) Renew(conditionTypes ...string) {
	for _, conditionType := range conditionTypes {
		if condition := meta.FindStatusCondition(*w.Conditions, conditionType); condition != nil {
			condition.ObservedGeneration = w.Generation
		}
	}
}

// SetBool sets a condition to True or False.
func (w Writer) SetBool(conditionType string, status bool, reason, message string) {
	value := metav1.ConditionFalse
	if status {
		value = metav1.ConditionTrue
	}
	w.Set(conditionType, value, reason, message)
}

// Be sets the condition named by which (Ready, Reconciling or Stalled) to True and the other two to False. It writes the message to that condition, and
// always to Ready, because printer columns and tools read the message of Ready.
func (w Writer) Be(which, reason, message string) {
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if conditionType == which || conditionType == v1alpha1.ConditionReady {
			w.SetBool(conditionType, conditionType == which, reason, message)
		} else {
			w.SetBool(conditionType, false, reason, "")
		}
	}
}

// Sentence returns text with a capital and a full stop, because most causes in messages are Go errors, which have neither. It does not change a first word that
// is a name: a path, a URL, a field path, a quoted name, or the name of a program that the variable programs lists.
func Sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return text
	}
	if word, _, _ := strings.Cut(text, " "); isWord(strings.TrimRight(word, ".,;")) {
		text = string(text[0]-'a'+'A') + text[1:]
	}
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "…") {
		return text
	}
	return text + "."
}

// programs are names of programs that begin messages. They look like words, but stay in lower case.
var programs = map[string]bool{"berth": true, "tmux": true}

// isWord reports whether the first word of a message can have a capital: it consists of lower-case letters only, and is not the name of a program.
func isWord(word string) bool {
	for _, r := range word {
		if r < 'a' || r > 'z' {
			return false
		}
	}
	return word != "" && !programs[word]
}

// Truncate shortens text to at most limit bytes, ellipsis included, and keeps characters whole.
func Truncate(text string, limit int) string { return printable.Shorten(text, limit) }
