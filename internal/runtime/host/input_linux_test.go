// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// TestInput_ReportsHowProgramReadsTerminal checks that a shim reports how its program reads the terminal.
func TestInput_ReportsHowProgramReadsTerminal(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	for uid, script := range map[types.UID]string{"asks": `printf "Name: "; read name; exec sleep 60`, "sleeps": `exec sleep 60`} {
		p := f.process(uid, 1, "terminal")
		p.Command = []string{"/bin/sh", "-c", script}
		p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
		f.Expect(f.Start(f.ctx, p)).To(Succeed())
		f.await(uid, facts.Running)
	}
	reads := func(uid types.UID, want facts.Input) {
		t.Helper()
		f.Eventually(f.Input).WithArguments(f.ctx, uid).WithTimeout(conformance.Timeout).Should(Equal(want))
	}
	none := facts.Input{Reader: facts.ReaderNone, Canonical: true, Echo: true}
	reads("sleeps", none)
	reads("asks", facts.Input{Reader: facts.ReaderRead, Program: "sh", Canonical: true, Echo: true})
	f.Expect(f.Type(f.ctx, "asks", runtime.Line("x"))).To(Succeed())
	reads("asks", none)

	f.start("plain", "sleep")
	f.await("plain", facts.Running)
	_, err := f.Input(f.ctx, "plain")
	f.Expect(err).To(MatchError(runtime.ErrNoTerminal))
	_, err = f.Input(f.ctx, "nobody")
	f.Expect(err).To(MatchError(runtime.ErrNotFound))
}
