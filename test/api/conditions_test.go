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

// withStatus are the kinds that have conditions.
var withStatus = []string{
	kindInstance, kindDevServer, kindLanguageServer, kindDiscovery, kindPlan, kindStrategy, kindStrategyRun,
}

const twoConditions = `{status: {conditions: [
  {type: Ready, status: "True", reason: Here, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"},
  {type: Stalled, status: "False", reason: Here, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`

// TestConditionsHaveOneOwnerEach guards what makes a write of a status cheap: the API server does not keep an owner of every field of every
// condition. Others can still own conditions of their own beside ours.
func TestConditionsHaveOneOwnerEach(t *testing.T) {
	for _, kind := range withStatus {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			o := stored(t, kind, "")
			data, err := json.Marshal(parse(t, twoConditions))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(k8s.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, data), client.FieldOwner("berth"))).To(Succeed())
			g.Expect(ownedConditions(t, o, "berth")).To(Equal(map[string]any{
				".": map[string]any{}, `k:{"type":"Ready"}`: map[string]any{}, `k:{"type":"Stalled"}`: map[string]any{},
			}))

			g.Expect(applyCondition(t, o, "Theirs")).To(Succeed())
			conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(conditions).To(HaveLen(3), "they have added theirs and left ours")
			g.Expect(apierrors.IsConflict(applyCondition(t, o, "Ready"))).To(BeTrue(), "ours is not theirs to change")
		})
	}
}

// TestConditionsOnce: the list still has a key.
func TestConditionsOnce(t *testing.T) {
	g := NewWithT(t)
	o := stored(t, kindInstance, "")
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

// ownedConditions gives what the API server says that somebody owns of the conditions.
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

// applyCondition applies one condition as somebody else, by server-side apply.
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
