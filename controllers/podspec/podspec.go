// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podspec builds the Pod configuration and the Service of an object.
package podspec

import (
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Type returns the runtime type that a spec names. It returns "" for the default runtime of the manager.
func Type(spec *v1alpha1.RuntimeSpec) v1alpha1.RuntimeType {
	if spec == nil {
		return ""
	}
	return spec.Type
}

// Template returns the template of the Pods that a spec describes, or nil if there is none.
func Template(spec *v1alpha1.RuntimeSpec) *apiruntime.RawExtension {
	if spec == nil || spec.Pod == nil {
		return nil
	}
	return spec.Pod.Template
}

// TypeOf returns the runtime type of an object with processes. It returns "" for the default runtime of the manager, and for every other object.
func TypeOf(object client.Object) v1alpha1.RuntimeType {
	switch o := object.(type) {
	case *v1alpha1.DevServer:
		return Type(o.Spec.Runtime)
	case *v1alpha1.Instance:
		if o.Spec.Runtime != nil {
			return o.Spec.Runtime.Type
		}
	case *v1alpha1.LanguageServer:
		return Type(o.Spec.Runtime)
	case *v1alpha1.StrategyRun:
		if o.Status.Pinned != nil {
			return Type(o.Status.Pinned.Runtime)
		}
	}
	return ""
}
