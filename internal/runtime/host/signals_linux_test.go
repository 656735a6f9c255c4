// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// TestTold_EndsWithItsProcess checks that a shim reports the signals of its own program: also to a new manager, and not those of an earlier incarnation, although
// the log contains them.
func TestTold_EndsWithItsProcess(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	p := f.process("agent", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	p.Command = []string{"/bin/sh", "-c", `printf '\033]0;\342\234\263 agent\a\033]9;It asks\a\a'; seq 30000; exec sleep 60`}
	before := time.Now().Truncate(time.Millisecond)
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await("agent", facts.Running)
	told := func() facts.Signals { told, _ := f.Told(f.ctx, "agent"); return told }
	f.Eventually(told).WithTimeout(conformance.Timeout).Should(HaveField("Bell", BeTemporally(">=", before)))
	first := told()
	f.Expect(first.Title).To(HaveField("Text", "✳ agent"))
	f.Expect(first.Notice).To(HaveField("Text", "It asks"))
	f.reopen()
	f.await("agent", facts.Running)
	f.Expect(told()).To(Equal(first), "a new manager")

	f.Expect(f.Kill(f.ctx, "agent", 1)).To(Succeed())
	f.await("agent", facts.Exited)
	_, err := f.Told(f.ctx, "agent")
	f.Expect(err).To(MatchError(runtime.ErrNotFound))
	p.Incarnation, p.Command = 2, []string{"/bin/sh", "-c", `echo again; exec sleep 60`}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.Eventually(func() error { _, err := f.Told(f.ctx, "agent"); return err }).WithTimeout(conformance.Timeout).Should(Succeed())
	f.Expect(told()).To(Equal(facts.Signals{}), "the next incarnation has told nothing")

	f.start("plain", "sleep")
	f.await("plain", facts.Running)
	_, err = f.Told(f.ctx, "plain")
	f.Expect(err).To(MatchError(runtime.ErrNoTerminal))
}
