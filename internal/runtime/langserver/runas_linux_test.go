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
	"github.com/berth-dev/berth/test/need"
)

// The server runs as the user of programs. Its multiplexer uses files of the manager, so it runs as the user of the manager.
func TestRunAs_AppliesOnlyToServer(t *testing.T) {
	need.Root(t, "run programs as another user")
	t.Setenv("SECRET_OF_MANAGER", "hidden")
	f := newFixture(t)
	f.Expect(os.Chmod(programs, 0o711)).To(Succeed())
	f.close()
	as := &shim.User{Name: "nobody", UID: 65534, GID: 65534, Home: "/nonexistent"}
	var err error
	f.machine, err = host.New(host.Options{
		StateDir: filepath.Join(f.dir, "host"), ShimPath: filepath.Join(programs, "berth-shim"), RunAs: as, ResultsDir: t.TempDir(),
	})
	f.Expect(err).NotTo(HaveOccurred())
	f.Runtime, err = New(f.machine, Options{Dir: filepath.Join(f.dir, "lsp"), Program: filepath.Join(programs, "berth-lsp"), RunAs: as})
	f.Expect(err).NotTo(HaveOccurred())
	p := f.process(uid, 1)
	p.Dir = "/"
	f.Expect(f.Start(f.Context(), p)).To(Succeed())
	running := f.await(uid, 1, facts.Running)
	held, err := f.machine.Observe(f.Context(), uid)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(userOf(running.PID)).To(BeEquivalentTo(as.UID))
	f.Expect(userOf(held[0].PID)).To(BeZero())
	said := f.connect(uid).hover()
	f.Expect(said).To(ContainElements("ASKED_FOR=this", "HOME=/nonexistent", "USER=nobody"))
	f.Expect(said).NotTo(ContainElement(ContainSubstring("hidden")))
}

// userOf returns the effective UID of a process.
func userOf(pid int64) (uint32, error) {
	var process unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &process)
	return process.Uid, err
}
