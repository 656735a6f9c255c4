// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Only a change makes the API server establish a definition that it had accepted before it was killed, and no trace of that change remains.
func TestEstablishStuck_ChangesOnlyStuckDefinitions(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		group, accepted, established string
		since                        time.Duration
		patches                      int
	}{
		"stuck":              {"berth.dev", "True", "False", stuckAfter, 2},
		"about to be served": {"berth.dev", "True", "False", stuckAfter - time.Second, 0},
		"served":             {"berth.dev", "True", "True", time.Hour, 0},
		"refused":            {"berth.dev", "False", "False", time.Hour, 0},
		"of another group":   {"example.com", "True", "False", time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			condition := func(kind, status string) any {
				return map[string]any{"type": kind, "status": status, "lastTransitionTime": now.Add(-test.since).Format(time.RFC3339)}
			}
			crd := &unstructured.Unstructured{Object: map[string]any{
				"metadata": map[string]any{"name": "plans." + test.group},
				"spec":     map[string]any{"group": test.group},
				"status":   map[string]any{"conditions": []any{condition("NamesAccepted", test.accepted), condition("Established", test.established)}},
			}}
			crd.SetGroupVersionKind(crdKind)
			patches := 0
			api := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(crd).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					patches++
					before := object.GetResourceVersion()
					err := api.Patch(ctx, object, patch, options...)
					if err == nil && object.GetResourceVersion() == before {
						err = fmt.Errorf("patch %d changes nothing", patches)
					}
					return err
				},
			}).Build()
			g.Expect(establishStuck(t.Context(), api, now)).To(Succeed())
			g.Expect(patches).To(Equal(test.patches))
			g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(crd), crd)).To(Succeed())
			g.Expect(crd.GetAnnotations()).NotTo(HaveKey(nudgeAnnotation))
		})
	}
}
