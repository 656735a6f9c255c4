// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// usual maps conditions to their usual status. A condition in this map is left out while it has its usual status or the status Unknown, and no message.
// Conditions that are not in the map are never left out.
var usual = map[string]metav1.ConditionStatus{
	v1alpha1.ConditionCircuitOpen:      metav1.ConditionFalse,
	v1alpha1.ConditionConflict:         metav1.ConditionFalse,
	v1alpha1.ConditionDriftDetected:    metav1.ConditionFalse,
	v1alpha1.ConditionContained:        metav1.ConditionTrue,
	v1alpha1.ConditionSucceeded:        metav1.ConditionUnknown,
	v1alpha1.ConditionAdopted:          metav1.ConditionFalse,
	v1alpha1.ConditionURLDetected:      metav1.ConditionFalse,
	v1alpha1.ConditionPortVerified:     metav1.ConditionTrue,
	v1alpha1.ConditionInitialized:      metav1.ConditionTrue,
	v1alpha1.ConditionIndexed:          metav1.ConditionFalse,
	v1alpha1.ConditionHealthy:          metav1.ConditionTrue,
	v1alpha1.ConditionStrategized:      metav1.ConditionFalse,
	v1alpha1.ConditionExecuted:         metav1.ConditionFalse,
	v1alpha1.ConditionApplied:          metav1.ConditionFalse,
	v1alpha1.ConditionAwaitingApproval: metav1.ConditionFalse,
	v1alpha1.ConditionIdle:             metav1.ConditionFalse,
	v1alpha1.ConditionAwaitingInput:    metav1.ConditionFalse,
}

// Status returns the status of a condition. An omitted condition has its usual status, or Unknown if it has none.
func Status(conditions []metav1.Condition, conditionType string) metav1.ConditionStatus {
	if found := meta.FindStatusCondition(conditions, conditionType); found != nil {
		return found.Status
	}
	if expected, omitted := usual[conditionType]; omitted {
		return expected
	}
	return metav1.ConditionUnknown
}

// saysNothing reports whether a condition is left out. A status is smaller and cheaper to write without such conditions, and readers see immediately what is
// unusual.
func saysNothing(conditionType string, status metav1.ConditionStatus, message string) bool {
	expected, omitted := usual[conditionType]
	return omitted && message == "" && (status == expected || status == metav1.ConditionUnknown)
}
