// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetCondition sets a condition of the object for its current generation. The transition time changes only with the status, so setting the same
// condition again changes nothing.
func SetCondition(object Object, now time.Time, conditionType string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&object.GetProcessStatus().Conditions, metav1.Condition{
		Type:               conditionType,
		Status:             status,
		ObservedGeneration: object.GetGeneration(),
		LastTransitionTime: metav1.NewTime(now),
		Reason:             reason,
		Message:            truncate(message),
	})
}

// longestMessage keeps messages in status and events far below the limit of the API server, in bytes.
const longestMessage = 1000

// truncate shortens a message without splitting a character.
func truncate(message string) string {
	if len(message) <= longestMessage {
		return message
	}
	return strings.ToValidUTF8(message[:longestMessage-3], "") + "…"
}
