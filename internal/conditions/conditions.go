// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conditions sets status conditions in the same way for all kinds.
package conditions

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// MaxMessage is the limit of messages in conditions and events, in bytes. The API server permits more, but longer messages are not read.
const MaxMessage = 1000

// Writer sets the conditions of one object.
type Writer struct {
	Conditions *[]metav1.Condition
	Generation int64
	Now        time.Time
}

// Set sets a condition for the current generation. It removes a condition that has its normal status and no message, because an absent condition means the
// same. The transition time changes only with the status, so setting the same condition again changes nothing.
func (w Writer) Set(conditionType string, status metav1.ConditionStatus, reason, message string) {
	if saysNothing(conditionType, status, message) {
		meta.RemoveStatusCondition(w.Conditions, conditionType)
		return
	}
	meta.SetStatusCondition(w.Conditions, metav1.Condition{
		Type: conditionType, Status: status, ObservedGeneration: w.Generation, LastTransitionTime: metav1.NewTime(w.Now.Truncate(time.Second)),
		Reason: reason, Message: Truncate(message, MaxMessage),
	})
}

// Renew sets the observed generation of all conditions that exist.
func (w Writer) Renew() {
	for i := range *w.Conditions {
		(*w.Conditions)[i].ObservedGeneration = w.Generation
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

// Be sets Ready, Reconciling or Stalled to True and the other two to False. Ready always has the message, because printer columns and tools read it there.
func (w Writer) Be(which, reason, message string) {
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if conditionType == which || conditionType == v1alpha1.ConditionReady {
			w.SetBool(conditionType, conditionType == which, reason, message)
		} else {
			w.SetBool(conditionType, false, reason, "")
		}
	}
}

// Truncate shortens text to at most limit bytes, ellipsis included, and keeps characters whole.
func Truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	cut := limit - len("…")
	for cut > 0 && text[cut]&0xC0 == 0x80 {
		cut--
	}
	return text[:max(cut, 0)] + "…"
}
