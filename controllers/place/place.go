// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package place builds the configuration of the Pod of an object, and its Service.
package place

import (
	"github.com/berth-dev/berth/api/v1alpha1"
)

// Type gives the type that a runtime of a spec names; nothing for that of the manager.
func Type(spec *v1alpha1.RuntimeSpec) v1alpha1.RuntimeType {
	if spec == nil {
		return ""
	}
	return spec.Type
}
