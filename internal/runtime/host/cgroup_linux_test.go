// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/test/need"
)

// If another program kills the process of a trial, the trial does not show whether cgroups work, so tryOut repeats the trial.
func TestTryOut_RetriesAfterKill(t *testing.T) {
	g := NewWithT(t)
	after := func(scripts ...string) (tried int, err error) {
		err = tryOut(func() (int, error) {
			script := scripts[min(tried, len(scripts)-1)]
			tried++
			return syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{})
		})
		return tried, err
	}
	tried, err := after("kill -9 $$", "exit 0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(tried).To(Equal(2))
	tried, err = after("exit 3", "exit 0")
	g.Expect(err).To(MatchError(ContainSubstring("wait status 0x300")), "an exit code is a definite result")
	g.Expect(tried).To(Equal(1))
	tried, err = after("kill -9 $$")
	g.Expect(err).To(HaveOccurred(), "every trial is killed")
	g.Expect(tried).To(Equal(trials))
	cannot := errors.New("cannot")
	g.Expect(tryOut(func() (int, error) { return 0, cannot })).To(MatchError(cannot))
}

// Only the empty cgroups of other installs are removed.
func TestNew_RemovesEmptyCgroupsOfOtherInstalls(t *testing.T) {
	f := newFixture(t, availableTiers(t)[0])
	if f.Containment() != shim.Cgroup {
		need.Machine(t, errNoCgroup)
	}
	sibling := func(name string) string {
		path := filepath.Join(filepath.Dir(f.cgroup), name)
		t.Cleanup(func() { f.Expect(shim.RemoveCgroup(path)).To(Succeed()) })
		f.Expect(os.MkdirAll(filepath.Join(path, "uid", "run"), 0o755)).To(Succeed())
		return path
	}
	empty, foreign, busy := sibling("berth-0123456789ab"), sibling("berth-others"), sibling("berth-0123456789ac")
	dir, err := os.Open(filepath.Join(busy, "uid", "run"))
	f.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = dir.Close() }()
	process := exec.Command("sleep", "1000")
	process.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	f.Expect(process.Start()).To(Succeed())
	defer func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}()
	// A running manager holds the lock of this cgroup, although the cgroup contains no process at this moment.
	locked, err := makeLocked(sibling("berth-0123456789ad"))
	f.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = locked.Close() }()
	f.reopen()
	f.Expect(locked.Name()).To(BeADirectory())
	f.Expect(empty).NotTo(BeADirectory())
	f.Expect(foreign).To(BeADirectory())
	f.Expect(filepath.Join(busy, "uid", "run")).To(BeADirectory())
}
