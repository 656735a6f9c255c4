// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// stuckAfter is how long a CustomResourceDefinition may be accepted without being served. Usually both happen within milliseconds.
	stuckAfter = 2 * time.Second
	// nudgeAnnotation is set on a stuck CustomResourceDefinition for a moment.
	nudgeAnnotation = "berth.dev/establish"
)

// crdKind is the kind of the objects that define kinds.
var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// establishStuck changes the CustomResourceDefinitions of Berth that the API server has accepted long ago and still does not serve, and takes the change back.
// An API server that is killed between the two steps carries out the second one only after the object was changed, or after five minutes.
func establishStuck(ctx context.Context, api client.Client, now time.Time) error {
	crds := &unstructured.UnstructuredList{}
	crds.SetGroupVersionKind(crdKind)
	if err := api.List(ctx, crds); err != nil {
		return fmt.Errorf("list the CRDs: %w", err)
	}
	var failures []error
	for i := range crds.Items {
		if crd := &crds.Items[i]; isStuck(crd, now) {
			for _, value := range []string{`"now"`, `null`} {
				change := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, nudgeAnnotation, value)
				failures = append(failures, api.Patch(ctx, crd, client.RawPatch(types.MergePatchType, []byte(change))))
			}
		}
	}
	return errors.Join(failures...)
}

// isStuck reports whether a definition of a kind of Berth is accepted but not served since stuckAfter.
func isStuck(crd *unstructured.Unstructured, now time.Time) bool {
	if group, _, _ := unstructured.NestedString(crd.Object, "spec", "group"); group != v1alpha1.GroupVersion.Group {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	accepted, waits := false, false
	for _, each := range conditions {
		condition, _ := each.(map[string]any)
		since, err := time.Parse(time.RFC3339, fmt.Sprint(condition["lastTransitionTime"]))
		switch condition["type"] {
		case "NamesAccepted":
			accepted = condition["status"] == "True"
		case "Established":
			waits = condition["status"] != "True" && err == nil && now.Sub(since) >= stuckAfter
		}
	}
	return accepted && waits
}
