// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
)

// If a program forks twice to leave a daemon in the background, its exit names the daemon.
func TestExit_NamesTheDaemonThatAProgramLeft(t *testing.T) {
	forTiers(t, func(b *bench) {
		dir := b.TempDir()
		ready, never := filepath.Join(dir, "ready"), filepath.Join(dir, "never")
		b.Expect(syscall.Mkfifo(ready, 0o600)).To(Succeed())
		b.Expect(syscall.Mkfifo(never, 0o600)).To(Succeed())
		process := b.process("daemon", 1)
		process.Command = []string{"/bin/sh", "-c", `(setsid sh -c 'echo up >"$0"; read word <"$1"' "$0" "$1" &); read word <"$0"`, ready, never}
		b.Expect(b.Start(b.ctx, process)).To(Succeed())
		exit := b.await("daemon", facts.Exited).Exit
		b.Expect(exit.Code).To(BeZero())
		b.Expect(exit.Left).To(Equal("sh"))
	})
}

func TestExit_NamesNothingAfterAStop(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("asked", "sleep")
		b.await("asked", facts.Running)
		b.Expect(b.Stop(b.ctx, "asked", 1)).To(Succeed())
		b.Expect(b.await("asked", facts.Exited).Exit.Left).To(BeEmpty())
	})
}
