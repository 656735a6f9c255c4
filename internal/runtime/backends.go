// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import "github.com/berth-dev/berth/api/v1alpha1"

// Backends is implemented by a runtime that consists of several backends.
type Backends interface {
	// For returns the backend of a type, or the default backend of the manager if the type is empty. For a type without a backend in this manager, it
	// returns a backend that implements Disabled.
	For(v1alpha1.RuntimeType) Runtime
}

// Backend returns the backend of a type. If all is a single backend, it returns all.
func Backend(all Runtime, kind v1alpha1.RuntimeType) Runtime {
	if backends, has := all.(Backends); has {
		return backends.For(kind)
	}
	return all
}

// Runs reports whether there is a backend of that type by name that starts processes.
func Runs(all Runtime, kind v1alpha1.RuntimeType) bool {
	backends, has := all.(Backends)
	if !has {
		return false
	}
	_, off := backends.For(kind).(Disabled)
	return !off
}
