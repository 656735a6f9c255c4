// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podspec builds the Pod configuration and the Service of an object.
package podspec

import (
	"github.com/berth-dev/berth/api/v1alpha1"
)

// Type returns the runtime type that a spec names. It returns "" for the default runtime of the manager.
func Type(spec *v1alpha1.RuntimeSpec) v1alpha1.RuntimeType {
	if spec == nil {
		return ""
	}
	return spec.Type
}
