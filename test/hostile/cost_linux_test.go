// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// TestRulesAreCheapEnough sends objects that are as large as the schemas allow, field by field. The API server limits what the CEL rules of one object may
// cost; an object of legal size must never be refused because of that.
func TestRulesAreCheapEnough(t *testing.T) {
	w := newPlane(t)
	g, err := newGenerator(root, 1)
	w.must(err, "read the schemas")
	g.legal = true
	for _, kind := range g.names {
		accepted, sent := 0, 0
		for _, at := range g.places[kind] {
			size := totalBytes
			for i, value := range g.extremes(at.schema, deepest, &size) {
				o := &unstructured.Unstructured{Object: map[string]any{"spec": smallest(kind)}}
				o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
				o.SetNamespace(hostileNamespace)
				o.SetName(fmt.Sprintf("cost-%d", i))
				put(o.Object["spec"], at.path, value)
				sent++
				err := w.api.Create(t.Context(), o, client.DryRunAll)
				switch {
				case err == nil:
					accepted++
				case tooCostly(err.Error()):
					t.Errorf("%s spec.%s: the rules cost too much for a legal value: %.500s", kind, strings.Join(at.path, "."), err)
				}
			}
		}
		t.Logf("%s: %d of %d objects accepted", kind, accepted, sent)
		if accepted == 0 {
			t.Errorf("%s: no object was accepted", kind)
		}
	}
}
