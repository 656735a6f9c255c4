// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// TestSelectors_SelectOnlyObjectsThatSetTheField checks that the API server selects objects by each selectable field that is optional. The value Host must not
// select an object without spec.runtime.type, although the manager may run such an object on the host.
func TestSelectors_SelectOnlyObjectsThatSetTheField(t *testing.T) {
	const (
		host  = `{spec: {runtime: {type: Host}}}`
		pod   = `{spec: {runtime: {type: Pod, pod: {image: a}}}}`
		owned = `{spec: {instanceRef: {name: agent}}}`
	)
	for _, tc := range []struct {
		kinds             []string
		selector          string
		selected, ignored []string
	}{
		{kindsWithProgram, "spec.runtime.type=Host", []string{host}, []string{pod, `{}`}},
		{kindsWithProgram, "spec.runtime.type=Pod", []string{pod}, []string{host, `{}`}},
		{kindsWithProgram, "spec.runtime.type=", []string{`{}`}, []string{host, pod}},
		{kindsWithProgram, "spec.runtime.type!=Pod", []string{host, `{}`}, []string{pod}},
		{append([]string{kindPlan}, ownedKinds...), "spec.instanceRef.name=agent", []string{owned}, []string{`{spec: {instanceRef: {name: other}}}`, `{}`}},
	} {
		for _, kind := range tc.kinds {
			t.Run(kind+" with "+tc.selector, func(t *testing.T) {
				g := NewWithT(t)
				var selected, ignored []string
				for _, fragment := range tc.selected {
					selected = append(selected, createObject(t, kind, fragment).GetName())
				}
				for _, fragment := range tc.ignored {
					ignored = append(ignored, createObject(t, kind, fragment).GetName())
				}
				list := &unstructured.UnstructuredList{}
				list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
				selector := client.MatchingFieldsSelector{Selector: fields.ParseSelectorOrDie(tc.selector)}
				g.Expect(k8s.List(t.Context(), list, client.InNamespace("default"), selector)).To(Succeed())
				names := make([]string, 0, len(list.Items))
				for i := range list.Items {
					names = append(names, list.Items[i].GetName())
				}
				g.Expect(names).To(ContainElements(selected))
				for _, name := range ignored {
					g.Expect(names).NotTo(ContainElement(name))
				}
			})
		}
	}
}
