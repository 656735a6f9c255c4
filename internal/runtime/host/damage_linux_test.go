// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// damages are the ways to damage a file while no manager runs.
var damages = map[string]func(path string) error{
	"emptied":      func(path string) error { return os.Truncate(path, 0) },
	"removed":      os.Remove,
	"garbage":      func(path string) error { return os.WriteFile(path, []byte("\x00\xff}{"), 0o600) },
	"empty object": func(path string) error { return os.WriteFile(path, []byte("{}"), 0o600) },
}

// forDamages runs a test for every kind of damage to the files of one process. After one manager exits and before the next starts, it calls between and damages
// the files.
func forDamages(t *testing.T, between func(*bench), test func(b *bench, before facts.Incarnation, word string), files ...string) {
	for name, damage := range damages {
		t.Run(strings.Join(files, "+")+" "+name, func(t *testing.T) {
			forTiers(t, func(b *bench) {
				word := b.word()
				p := b.beside(`setsid -f sleep "$WORD"; exec sleep "$WORD"`, "WORD="+word)
				p.StopSignal = "SIGTERM"
				b.Expect(b.Start(b.ctx, p)).To(Succeed())
				before := b.await("web", facts.Running)
				b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(2))
				b.Expect(b.Close()).To(Succeed())
				between(b)
				for _, file := range files {
					b.Expect(damage(filepath.Join(b.dir("web"), file))).To(Succeed())
				}
				b.open()
				test(b, before, word)
				b.Eventually(func() error {
					now := b.observe("web")
					if err := b.Kill(b.ctx, "web", max(now.Number, 0)); err != nil {
						return err
					}
					return b.Forget(b.ctx, "web")
				}).WithTimeout(conformance.Timeout).WithPolling(10 * time.Millisecond).Should(Succeed())
				b.Expect(sleepers(word)).To(BeEmpty())
			})
		})
	}
}

func nothing(*bench) {}

// A live shim can restore the content of its files.
func TestDamagedRecords_AreRestoredFromTheShim(t *testing.T) {
	same := func(b *bench, before facts.Incarnation, _ string) {
		b.Eventually(func() facts.Incarnation { return b.observe("web") }).WithTimeout(conformance.Timeout).Should(Equal(before))
		b.Expect(b.Start(b.ctx, b.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		b.reopen()
		b.Expect(b.observe("web")).To(Equal(before), "the files are restored")
		b.Expect(b.Stop(b.ctx, "web", 1)).To(Succeed())
		b.Expect(b.await("web", facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
	}
	forDamages(t, nothing, same, shim.RecordFile)
	forDamages(t, nothing, same, shim.IdentityFile)
	forDamages(t, nothing, same, shim.RecordFile, shim.IdentityFile)
}

// A shim that does not respond cannot restore its files. The message names the damaged file, no second process starts, and Kill ends everything.
func TestDamagedRecords_OfASilentShimAreNamedAndKillable(t *testing.T) {
	forDamages(t, func(b *bench) {
		signal(b, b.identity("web").Shim, unix.SIGSTOP)
	}, func(b *bench, _ facts.Incarnation, word string) {
		now := b.observe("web")
		b.Expect(now.Phase).To(Equal(facts.Unknown))
		b.Expect(now.Killable).To(BeTrue())
		b.Expect(now.Message).To(ContainSubstring(".json"))
		b.Expect(b.Start(b.ctx, b.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		b.Expect(sleepers(word)).To(HaveLen(2))
		b.Expect(b.Kill(b.ctx, "web", 1)).To(Succeed())
		ended := b.await("web", facts.Exited)
		b.Expect(ended.Number).To(Equal(int64(1)))
		b.Expect(ended.Exit.Signal).To(Equal("SIGKILL"))
	}, shim.RecordFile, shim.IdentityFile)
}

// A program of the same user can also remove the lock file of its shim. A free lock then does not mean that the shim has exited.
func TestDamagedRecords_WithoutTheLockAreEnded(t *testing.T) {
	forTiers(t, func(b *bench) {
		word := b.word()
		p := b.beside(`trap '' TERM; setsid -f sleep "$WORD"; exec sleep "$WORD"`, "WORD="+word)
		p.StopSignal = "SIGTERM"
		b.Expect(b.Start(b.ctx, p)).To(Succeed())
		b.await("web", facts.Running)
		b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(2))
		b.Expect(os.Remove(filepath.Join(b.dir("web"), shim.LockFile))).To(Succeed())
		for _, file := range []string{shim.RecordFile, shim.IdentityFile} {
			b.Expect(os.WriteFile(filepath.Join(b.dir("web"), file), []byte("{\x00garbage"), 0o600)).To(Succeed())
		}
		b.Expect(b.Stop(b.ctx, "web", 0)).To(Succeed())
		b.Expect(sleepers(word)).To(HaveLen(2))
		b.Expect(b.Forget(b.ctx, "web")).NotTo(Succeed())
		b.Expect(b.Start(b.ctx, b.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		b.Expect(b.Kill(b.ctx, "web", 0)).To(Succeed())
		b.Eventually(func() error { return b.Forget(b.ctx, "web") }).WithTimeout(conformance.Timeout).WithPolling(10 * time.Millisecond).Should(Succeed())
		b.Expect(sleepers(word)).To(BeEmpty())
	})
}

// Without the shim, the cgroup shows which processes are left; without a cgroup, the undamaged file does.
func TestDamagedRecords_WithoutAShimAreEnded(t *testing.T) {
	gone := func(b *bench) { b.killShim("web") }
	runs := func(b *bench, _ facts.Incarnation, word string) {
		b.Expect(b.Start(b.ctx, b.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		b.Expect(b.observe("web").Phase).To(Equal(facts.Running))
		b.Expect(b.Kill(b.ctx, "web", b.observe("web").Number)).To(Succeed())
		b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(BeEmpty())
	}
	forDamages(t, gone, runs, shim.RecordFile)
	forDamages(t, gone, runs, shim.IdentityFile)
	if tiers(t)[0] == shim.Cgroup {
		t.Run("both", func(t *testing.T) {
			b := newBench(t, shim.Cgroup)
			b.start("web", "sleep")
			b.await("web", facts.Running)
			b.Expect(b.Close()).To(Succeed())
			gone(b)
			for _, file := range []string{shim.RecordFile, shim.IdentityFile} {
				b.Expect(os.Truncate(filepath.Join(b.dir("web"), file), 0)).To(Succeed())
			}
			b.open()
			b.Expect(b.observe("web").Phase).To(Equal(facts.Running))
			b.Expect(b.Kill(b.ctx, "web", 0)).To(Succeed())
			b.Eventually(func() facts.Phase { return b.observe("web").Phase }).WithTimeout(conformance.Timeout).Should(BeEmpty())
			b.Expect(b.Forget(b.ctx, "web")).To(Succeed())
		})
	}
}
