// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetCondition sets a condition of the object, about its generation. The transition time moves only with the status, so that saying
// the same thing again changes nothing.
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

// longestMessage keeps messages in status and events far below what the API server takes.
const longestMessage = 1000

// truncate shortens a message to whole characters.
func truncate(message string) string {
	if len(message) <= longestMessage {
		return message
	}
	return strings.ToValidUTF8(message[:longestMessage-3], "") + "…"
}
