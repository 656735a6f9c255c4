// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"os/exec"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
)

// The process that has connected has exited, and its PID belongs to another process: this one.
func TestPeer_RefusesAPIDThatWasReused(t *testing.T) {
	g := NewWithT(t)
	child := exec.Command("sleep", "600")
	g.Expect(child.Start()).To(Succeed())
	pidfd, err := unix.PidfdOpen(child.Process.Pid, 0)
	g.Expect(err).NotTo(HaveOccurred())
	from := &peer{pid: os.Getpid(), pidfd: pidfd}
	defer from.Close()
	lineage, err := from.lineage()
	g.Expect(err).NotTo(HaveOccurred())
	parent, err := procstat.Identify(os.Getppid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(lineage[1]).To(Equal(parent))

	g.Expect(child.Process.Kill()).To(Succeed())
	_ = child.Wait()
	_, err = from.lineage()
	g.Expect(err).To(MatchError(procstat.ErrGone))
}
