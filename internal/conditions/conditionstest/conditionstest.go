// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conditionstest checks conditions in tests.
package conditionstest

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Faulty returns the types of the conditions whose message is empty or not a sentence. Reconciling, Stalled and Restarting may have an empty message while
// they are False, because Ready then has the message.
func Faulty(all []metav1.Condition) []string {
	var faulty []string
	for _, c := range all {
		if !isSentence(c.Message) && (c.Message != "" || !mayBeEmpty(c)) {
			faulty = append(faulty, c.Type)
		}
	}
	return faulty
}

func isSentence(message string) bool {
	return message == strings.TrimSpace(message) && (strings.HasSuffix(message, ".") || strings.HasSuffix(message, "…"))
}

func mayBeEmpty(c metav1.Condition) bool {
	switch c.Type {
	case v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionRestarting:
		return c.Status == metav1.ConditionFalse
	}
	return false
}
