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

// TestInput checks that a shim reports how its program reads the terminal.
func TestInput(t *testing.T) {
	b := newBench(t, shim.Subreaper)
	for uid, script := range map[types.UID]string{"asks": `printf "Name: "; read name; exec sleep 60`, "sleeps": `exec sleep 60`} {
		p := b.process(uid, 1, "terminal")
		p.Command = []string{"/bin/sh", "-c", script}
		p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
		b.Expect(b.Start(b.ctx, p)).To(Succeed())
		b.await(uid, facts.Running)
	}
	reads := func(uid types.UID, want facts.Input) {
		t.Helper()
		b.Eventually(b.Input).WithArguments(b.ctx, uid).WithTimeout(conformance.Timeout).Should(Equal(want))
	}
	none := facts.Input{Reader: facts.ReaderNone, Canonical: true, Echo: true}
	reads("sleeps", none)
	reads("asks", facts.Input{Reader: facts.ReaderRead, Program: "sh", Canonical: true, Echo: true})
	b.Expect(b.Type(b.ctx, "asks", []byte("x\r"))).To(Succeed())
	reads("asks", none)

	b.start("plain", "sleep")
	b.await("plain", facts.Running)
	_, err := b.Input(b.ctx, "plain")
	b.Expect(err).To(MatchError(runtime.ErrNoTerminal))
	_, err = b.Input(b.ctx, "nobody")
	b.Expect(err).To(MatchError(runtime.ErrNotFound))
}
