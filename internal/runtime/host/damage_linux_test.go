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

// forEachDamage runs a test for every kind of damage to the files of one process. It closes the Host, calls between, damages the files, and opens the Host
// again before it calls test. program is a shell command that executes sleep twice.
func forEachDamage(t *testing.T, program string, between func(*fixture), test func(f *fixture, before facts.Incarnation, word string), files ...string) {
	for name, damage := range damages {
		t.Run(strings.Join(files, "+")+" "+name, func(t *testing.T) {
			forEachTier(t, func(f *fixture) {
				word := f.uniqueArgument()
				p := f.shellCommand(program, "WORD="+word)
				p.StopSignal = "SIGTERM"
				f.Expect(f.Start(f.ctx, p)).To(Succeed())
				before := f.await("web", facts.Running)
				f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(2))
				f.Expect(f.Close()).To(Succeed())
				between(f)
				for _, file := range files {
					f.Expect(damage(filepath.Join(f.dir("web"), file))).To(Succeed())
				}
				f.open()
				test(f, before, word)
				f.Eventually(func() error {
					now := f.observe("web")
					if err := f.Kill(f.ctx, "web", max(now.Number, 0)); err != nil {
						return err
					}
					return f.Forget(f.ctx, "web")
				}).WithTimeout(conformance.Timeout).WithPolling(10 * time.Millisecond).Should(Succeed())
				f.Expect(processesWithArgument(word)).To(BeEmpty())
			})
		})
	}
}

const twoSleeps = `setsid -f sleep "$WORD"; exec sleep "$WORD"`

func doNothing(*fixture) {}

// A live shim can restore the content of its files.
func TestDamagedRecords_AreRestoredFromTheShim(t *testing.T) {
	same := func(f *fixture, before facts.Incarnation, _ string) {
		f.Eventually(func() facts.Incarnation { return f.observe("web") }).WithTimeout(conformance.Timeout).Should(Equal(before))
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		f.reopen()
		f.Expect(f.observe("web")).To(Equal(before), "the files are restored")
		f.Expect(f.Stop(f.ctx, "web", 1)).To(Succeed())
		f.Expect(f.await("web", facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
	}
	forEachDamage(t, twoSleeps, doNothing, same, shim.RecordFile)
	forEachDamage(t, twoSleeps, doNothing, same, shim.IdentityFile)
	forEachDamage(t, twoSleeps, doNothing, same, shim.RecordFile, shim.IdentityFile)
}

// A shim that does not respond cannot restore its files. The message names the damaged file, no second process starts, and Kill kills every process.
func TestDamagedRecords_KillableWhileShimIsSilent(t *testing.T) {
	forEachDamage(t, twoSleeps, func(f *fixture) {
		conformance.Signal(f.WithT, f.identity("web").Shim, unix.SIGSTOP)
	}, func(f *fixture, _ facts.Incarnation, word string) {
		now := f.observe("web")
		f.Expect(now.Phase).To(Equal(facts.Unknown))
		f.Expect(now.Killable).To(BeTrue())
		f.Expect(now.Message).To(ContainSubstring(".json"))
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		f.Expect(processesWithArgument(word)).To(HaveLen(2))
		f.Expect(f.Kill(f.ctx, "web", 1)).To(Succeed())
		ended := f.await("web", facts.Exited)
		f.Expect(ended.Number).To(Equal(int64(1)))
		f.Expect(ended.Exit.Signal).To(Equal("SIGKILL"))
	}, shim.RecordFile, shim.IdentityFile)
}

// A program of the same user can also remove the lock file of its shim. A free lock then does not mean that the shim has exited.
func TestDamagedRecords_KillableWithoutLockFile(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		word := f.uniqueArgument()
		p := f.shellCommand(`trap '' TERM; setsid -f sleep "$WORD"; exec sleep "$WORD"`, "WORD="+word)
		p.StopSignal = "SIGTERM"
		f.Expect(f.Start(f.ctx, p)).To(Succeed())
		f.await("web", facts.Running)
		f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(2))
		f.Expect(os.Remove(filepath.Join(f.dir("web"), shim.LockFile))).To(Succeed())
		for _, file := range []string{shim.RecordFile, shim.IdentityFile} {
			f.Expect(os.WriteFile(filepath.Join(f.dir("web"), file), []byte("{\x00garbage"), 0o600)).To(Succeed())
		}
		f.Expect(f.Stop(f.ctx, "web", 0)).To(Succeed())
		f.Expect(processesWithArgument(word)).To(HaveLen(2))
		f.Expect(f.Forget(f.ctx, "web")).NotTo(Succeed())
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		f.Expect(f.Kill(f.ctx, "web", 0)).To(Succeed())
		f.Eventually(func() error { return f.Forget(f.ctx, "web") }).WithTimeout(conformance.Timeout).WithPolling(10 * time.Millisecond).Should(Succeed())
		f.Expect(processesWithArgument(word)).To(BeEmpty())
	})
}

// Without the shim, the cgroup shows which processes are left; without a cgroup, the undamaged file does.
func TestDamagedRecords_KillableWithoutShim(t *testing.T) {
	// Without its identity, the program counts as a process that was left behind, which the manager soon ends: with SIGTERM, then after two seconds with SIGKILL.
	const stubborn = "trap '' TERM; " + twoSleeps
	gone := func(f *fixture) { f.killShim("web") }
	runs := func(f *fixture, _ facts.Incarnation, word string) {
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		f.Expect(f.observe("web").Phase).To(Equal(facts.Running))
		f.Expect(f.Kill(f.ctx, "web", f.observe("web").Number)).To(Succeed())
		f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(BeEmpty())
	}
	forEachDamage(t, stubborn, gone, runs, shim.RecordFile)
	forEachDamage(t, stubborn, gone, runs, shim.IdentityFile)
	if availableTiers(t)[0] == shim.Cgroup {
		t.Run("both", func(t *testing.T) {
			f := newFixture(t, shim.Cgroup)
			f.start("web", "sleep")
			f.await("web", facts.Running)
			f.Expect(f.Close()).To(Succeed())
			gone(f)
			for _, file := range []string{shim.RecordFile, shim.IdentityFile} {
				f.Expect(os.Truncate(filepath.Join(f.dir("web"), file), 0)).To(Succeed())
			}
			f.open()
			f.Expect(f.observe("web").Phase).To(Equal(facts.Running))
			f.Expect(f.Kill(f.ctx, "web", 0)).To(Succeed())
			f.Eventually(func() facts.Phase { return f.observe("web").Phase }).WithTimeout(conformance.Timeout).Should(BeEmpty())
			f.Expect(f.Forget(f.ctx, "web")).To(Succeed())
		})
	}
}
