// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestUsageTable_ShowsTheDifference(t *testing.T) {
	g := NewWithT(t)
	references := []reference{{kind: kinds[0], name: "small"}, {kind: kinds[0], name: "large"}, {kind: kinds[0], name: "gone"}, {kind: kinds[0], name: "shrunk"}}
	before := []usage{{cpu: time.Second, known: true}, {}, {cpu: 1, known: true}, {cpu: time.Second, known: true}}
	now := []usage{
		sum([]runtime.Member{{Memory: 1 << 20, CPU: time.Second}, {Memory: 3 << 20, CPU: time.Second}}),
		{memory: 5 << 30, processes: 1, known: true}, {}, {cpu: 0, known: true},
	}
	g.Expect(usageTable(references, before, now, 2*time.Second)).To(Equal([]string{
		"NAME               CPU         MEMORY      PROCESSES",
		"devserver/large    <unknown>   5Gi         1",
		"devserver/small    500m        4Mi         2",
		"devserver/gone     <unknown>   <unknown>   <unknown>",
		"devserver/shrunk   0m          0           0",
	}))
}

func TestTop_NeedsAProcessOnAMachine(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web(func(server *v1alpha1.DevServer) { server.Status.Process = nil }))
	g.Expect(f.run(t.Context(), "top")).To(Equal(0), f.err.String())
	g.Expect(f.err.String()).To(Equal("no object in namespace default has a process on a machine\n"))
}
