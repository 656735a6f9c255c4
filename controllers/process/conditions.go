// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/conditions"
)

// SetCondition sets a condition of the object for its current generation.
func SetCondition(object Object, now time.Time, conditionType string, status metav1.ConditionStatus, reason, message string) {
	w := conditions.Writer{Conditions: &object.GetProcessStatus().Conditions, Generation: object.GetGeneration(), Now: now}
	w.Set(conditionType, status, reason, message)
}

// isTrue reports whether a condition is True.
func isTrue(object Object, conditionType string) bool {
	return meta.IsStatusConditionTrue(object.GetProcessStatus().Conditions, conditionType)
}
