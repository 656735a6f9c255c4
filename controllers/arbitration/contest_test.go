// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package arbitration

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestCompetes_OnlyIfNothingElsePreventsStart(t *testing.T) {
	stalled := func(reason string, more ...metav1.Condition) func(*v1alpha1.Instance) {
		return func(i *v1alpha1.Instance) {
			i.Status.Conditions = append(more, metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: reason, ObservedGeneration: 1})
		}
	}
	conflict := metav1.Condition{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionTrue, ObservedGeneration: 1}
	for name, test := range map[string]struct {
		change func(*v1alpha1.Instance)
		want   bool
	}{
		"a new object":                   {func(*v1alpha1.Instance) {}, true},
		"a stopped object":               {func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateStopped }, false},
		"the runtime is not permitted":   {stalled(v1alpha1.ReasonRuntimeForbidden), false},
		"the runtime does not respond":   {stalled(v1alpha1.ReasonRuntimeUnavailable), false},
		"another object holds the thing": {stalled(v1alpha1.ReasonSessionClaimed, conflict), true},
		"the breaker is open":            {stalled(v1alpha1.ReasonCircuitOpen), true},
		"the spec has changed since": {func(i *v1alpha1.Instance) {
			stalled(v1alpha1.ReasonRuntimeForbidden)(i)
			i.Generation = 2
		}, true},
		"the process runs": {func(i *v1alpha1.Instance) {
			stalled(v1alpha1.ReasonRuntimeForbidden)(i)
			i.Status.Incarnation = 1
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
			test.change(instance)
			NewWithT(t).Expect(Competes(instance)).To(Equal(test.want))
		})
	}
}

func TestDescribe_DoesNotNameObjectOfAnotherNamespace(t *testing.T) {
	g := NewWithT(t)
	claim := Claim{Key: types.NamespacedName{Namespace: "team", Name: "web"}}
	g.Expect(claim.Describe("DevServer", "team")).To(Equal("DevServer team/web"))
	g.Expect(claim.Describe("DevServer", "other")).To(Equal("a DevServer in another namespace"))
	g.Expect(claim.Describe("Instance", "other")).To(Equal("an Instance in another namespace"))
}
