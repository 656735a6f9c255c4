// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// workload returns a program that does what the workload of the suite does, with its output on stderr, because the standard output of a language server belongs to
// the multiplexer.
func workload(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "workload")
	script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" >&2\n", conformance.Workload(t))
	NewWithT(t).Expect(os.WriteFile(path, []byte(script), 0o700)).To(Succeed())
	return path
}

// notOfServers are the tests of the suite that do not apply.
var notOfServers = map[string]string{
	"lists everything":              "List returns the multiplexers, as the backend of the multiplexers numbers them",
	"lists the processes of a tree": "the backend of the multiplexers lists them",
}

func TestConformance_OnHost(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		f := newFixture(t)
		return conformance.Harness{
			Features: conformance.Features{Processes: true},
			Runtime:  f.Runtime,
			Program:  workload(t),
			Without:  notOfServers,
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
			Features: conformance.Features{Processes: true, Unchecked: true},
			Runtime:  f,
			Program:  workload(t),
			Without:  notOfServers,
			Prepare: func(p *runtime.Process) {
				p.Config, _ = json.Marshal(PodConfig{
					Config: lsp.Config{Language: "test", Folders: []string{f.dir}}, Secret: "lsp-" + string(p.UID), Pod: f.podConfig(p.UID),
				})
			},
			Reopen: func(t *testing.T) runtime.Runtime {
				t.Helper()
				f.Runtime.Close()
				f.startManager()
				return f
			},
		}
	})
}
