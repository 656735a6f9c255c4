// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"testing"

	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// Without another client, the window in tmux answers programs that ask their terminal.
func TestPrograms_ThatAskTheTerminal(t *testing.T) {
	conformance.Installed(t)
	conformance.RunPrograms(t, func(t *testing.T) conformance.Harness {
		return conformance.Harness{Features: conformance.Features{Window: true}, Runtime: newFixture(t).Runtime, Program: conformance.Workload(t)}
	})
}
