// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"testing"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// The containers run the programs of this machine, because no image of them is available.
func TestPrograms_ThatAskTheTerminal(t *testing.T) {
	conformance.Installed(t)
	conformance.RunPrograms(t, func(t *testing.T) conformance.Harness {
		f := newFixture(t)
		return conformance.Harness{Features: conformance.Features{Container: true}, Runtime: f.Runtime, Program: conformance.Workload(t),
			Prepare: func(p *runtime.Process) {
				p.Config = config(func(c *containerConfig) {
					for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc", "/var/lib"} {
						c.Mounts = append(c.Mounts, bindMount{Source: dir, Target: dir, ReadOnly: true})
					}
				})
			}}
	})
}
