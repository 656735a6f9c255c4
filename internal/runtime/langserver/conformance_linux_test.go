// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"encoding/json"
	"testing"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

func TestConformance_OnHost(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		f := newFixture(t)
		return conformance.Harness{
			Features: conformance.Features{Processes: true, Logs: true},
			Runtime:  f.Runtime,
			Program:  conformance.Workload(t),
			Prepare: func(p *runtime.Process) {
				p.Config, _ = json.Marshal(lsp.Config{Language: "test", Folders: []string{f.dir}})
			},
			Reopen: func(t *testing.T) runtime.Runtime {
				t.Helper()
				f.close()
				f.open()
				return f.Runtime
			},
		}
	})
}

func TestConformance_InPods(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		f := newPodFixture(t)
		return conformance.Harness{
			Features: conformance.Features{Processes: true, Logs: true},
			Runtime:  f.Runtime,
			Program:  conformance.Workload(t),
			Prepare: func(p *runtime.Process) {
				p.Config, _ = json.Marshal(PodConfig{
					Config: lsp.Config{Language: "test", Folders: []string{f.dir}}, Secret: "lsp-" + string(p.UID), Pod: pod.Config{Namespace: "team", Image: "gopls:1"},
				})
			},
			Reopen: func(t *testing.T) runtime.Runtime {
				t.Helper()
				f.Runtime.Close()
				f.startManager()
				return f.Runtime
			},
		}
	})
}
