// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package place finds where an object runs, and says what its Pod is to be.
package place

import (
	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

// Backends gives the runtime of a type, and that of the manager for no type. In place of one that it does not have it gives a runtime.Disabled.
type Backends interface {
	For(v1alpha1.RuntimeType) runtime.Runtime
}

// Backend gives the runtime of a type: all itself, when that is a single one.
func Backend(all runtime.Runtime, kind v1alpha1.RuntimeType) runtime.Runtime {
	if backends, has := all.(Backends); has {
		return backends.For(kind)
	}
	return all
}

// Runs says whether there is a runtime of that type by name, which starts something.
func Runs(all runtime.Runtime, kind v1alpha1.RuntimeType) bool {
	backends, has := all.(Backends)
	if !has {
		return false
	}
	_, off := backends.For(kind).(runtime.Disabled)
	return !off
}

// Type gives the type that a runtime of a spec names; nothing for that of the manager.
func Type(spec *v1alpha1.RuntimeSpec) v1alpha1.RuntimeType {
	if spec == nil {
		return ""
	}
	return spec.Type
}
