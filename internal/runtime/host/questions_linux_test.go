// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// Programs that ask their terminal wait for the answers before they show anything.
func TestPrograms_ThatAskTheTerminal(t *testing.T) {
	conformance.Installed(t)
	conformance.RunPrograms(t, func(t *testing.T) conformance.Harness {
		return conformance.Harness{Runtime: newFixture(t, shim.Subreaper).Host, Program: conformance.Workload(t)}
	})
}
