// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// A backup tool that restores an object keeps its name, labels, annotations and spec, but drops the status, and the API server assigns a new UID. The
// record of what was executed is lost, so the annotation AnnotationUID tells the copy from a new object.

// Mark records the UID of an object in AnnotationUID.
func Mark(object client.Object) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationUID] = string(object.GetUID())
	object.SetAnnotations(annotations)
}

// RestoredFrom returns the message of the reason Restored for an object of a kind, such as "plan"; empty if the object is not a copy.
func RestoredFrom(kind string, object client.Object) string {
	served := object.GetAnnotations()[v1alpha1.AnnotationUID]
	if served == "" || served == string(object.GetUID()) {
		return ""
	}
	return fmt.Sprintf("This %[1]s is a copy, for example from a backup, of a %[1]s with the UID %.64[2]q, so it may have been executed already. Delete it or, to execute it, "+
		"remove its annotation %[3]s.", kind, served, v1alpha1.AnnotationUID)
}

// Overwritten passes the updates of copies whose status does not report that: a backup tool may write the old status after the controller has seen the copy.
func Overwritten(conditions func(client.Object) []metav1.Condition) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		if e.ObjectNew == nil || RestoredFrom("", e.ObjectNew) == "" {
			return false
		}
		stalled := meta.FindStatusCondition(conditions(e.ObjectNew), v1alpha1.ConditionStalled)
		return stalled == nil || stalled.Reason != v1alpha1.ReasonRestored
	}}
}
