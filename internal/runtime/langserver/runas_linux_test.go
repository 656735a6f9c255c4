// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/shim"
)

// The server runs as the user of programs. Its multiplexer uses files of the manager, so it runs as the user of the manager.
func TestRunAsIsForTheServerOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as another user")
	}
	t.Setenv("SECRET_OF_MANAGER", "hidden")
	b := newBench(t)
	b.Expect(os.Chmod(programs, 0o711)).To(Succeed())
	b.close()
	as := &shim.User{Name: "nobody", UID: 65534, GID: 65534, Home: "/nonexistent"}
	var err error
	b.machine, err = host.New(host.Options{
		StateDir: filepath.Join(b.dir, "host"), ShimPath: filepath.Join(programs, "berth-shim"), RunAs: as, ResultsDir: t.TempDir(),
	})
	b.Expect(err).NotTo(HaveOccurred())
	b.Runtime, err = New(b.machine, Options{Dir: filepath.Join(b.dir, "lsp"), Program: filepath.Join(programs, "berth-lsp"), RunAs: as})
	b.Expect(err).NotTo(HaveOccurred())
	p := b.process(uid, 1)
	p.Dir = "/"
	b.Expect(b.Start(b.Context(), p)).To(Succeed())
	running := b.await(uid, 1, facts.Running)
	held, err := b.machine.Observe(b.Context(), uid)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(userOf(running.PID)).To(BeEquivalentTo(as.UID))
	b.Expect(userOf(held[0].PID)).To(BeZero())
	said := b.connect(uid).hover()
	b.Expect(said).To(ContainElements("ASKED_FOR=this", "HOME=/nonexistent", "USER=nobody"))
	b.Expect(said).NotTo(ContainElement(ContainSubstring("hidden")))
}

// userOf returns the effective UID of a process.
func userOf(pid int64) (uint32, error) {
	var process unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &process)
	return process.Uid, err
}
