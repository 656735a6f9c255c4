// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kindsWithConditions are the kinds with conditions.
var kindsWithConditions = []string{
	kindInstance, kindDevServer, kindLanguageServer, kindDiscovery, kindPlan, kindStrategy, kindStrategyRun,
}

const twoConditions = `{status: {conditions: [
  {type: Ready, status: "True", reason: Here, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"},
  {type: Stalled, status: "False", reason: Here, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`

// TestConditions_FieldOwnershipPerCondition checks that the API server tracks field ownership per condition, not per field of a condition. This keeps status
// writes cheap. Other field managers can still own additional conditions.
func TestConditions_FieldOwnershipPerCondition(t *testing.T) {
	for _, kind := range kindsWithConditions {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			o := createObject(t, kind, "")
			data, err := json.Marshal(parse(t, twoConditions))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(k8s.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, data), client.FieldOwner("berth"))).To(Succeed())
			g.Expect(ownedConditions(t, o, "berth")).To(Equal(map[string]any{
				".": map[string]any{}, `k:{"type":"Ready"}`: map[string]any{}, `k:{"type":"Stalled"}`: map[string]any{},
			}))

			g.Expect(applyCondition(t, o, "Theirs")).To(Succeed())
			conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(conditions).To(HaveLen(3), "the other manager must add its condition and keep ours")
			g.Expect(apierrors.IsConflict(applyCondition(t, o, "Ready"))).To(BeTrue(), "a change of our condition must be a conflict")
		})
	}
}

// TestConditions_RefusesDuplicateTypes checks that the API server refuses two conditions of the same type.
func TestConditions_RefusesDuplicateTypes(t *testing.T) {
	g := NewWithT(t)
	o := createObject(t, kindInstance, "")
	content := parse(t, twoConditions)
	both, _, err := unstructured.NestedSlice(content, "status", "conditions")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(unstructured.SetNestedSlice(content, append(both, both[0]), "status", "conditions")).To(Succeed())
	data, err := json.Marshal(content)
	g.Expect(err).NotTo(HaveOccurred())
	err = k8s.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, data))
	g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
	g.Expect(err.Error()).To(ContainSubstring("Duplicate value"))
}

// ownedConditions returns the part of metadata.managedFields that lists the conditions of the given field manager.
func ownedConditions(t *testing.T, o *unstructured.Unstructured, manager string) any {
	t.Helper()
	for _, entry := range o.GetManagedFields() {
		if entry.Manager != manager {
			continue
		}
		fields := map[string]any{}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			t.Fatal(err)
		}
		conditions, _, err := unstructured.NestedFieldNoCopy(fields, "f:status", "f:conditions")
		if err != nil {
			t.Fatal(err)
		}
		return conditions
	}
	return nil
}

// applyCondition applies one condition with server-side apply, as the field manager "theirs".
func applyCondition(t *testing.T, o *unstructured.Unstructured, conditionType string) error {
	t.Helper()
	applied := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
		"type": conditionType, "status": string(metav1.ConditionUnknown), "reason": "There", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
	}}}}}
	applied.SetGroupVersionKind(o.GroupVersionKind())
	applied.SetName(o.GetName())
	applied.SetNamespace(o.GetNamespace())
	data, err := json.Marshal(applied)
	if err != nil {
		t.Fatal(err)
	}
	return k8s.Status().Patch(t.Context(), o, client.RawPatch(types.ApplyPatchType, data), client.FieldOwner("theirs"))
}
