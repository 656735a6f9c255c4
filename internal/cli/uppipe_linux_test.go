// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/controlplane"
)

// When the reader of the output exits, as tee does at Ctrl-C, berth up continues, and stops its control plane when it is interrupted.
func TestUp_StopsControlPlaneAfterOutputWasClosed(t *testing.T) {
	g := NewWithT(t)
	reader, writer, err := os.Pipe()
	g.Expect(err).NotTo(HaveOccurred())
	up := startUpTo(t, writer)
	for lines := bufio.NewScanner(reader); lines.Scan() && !strings.HasPrefix(lines.Text(), "export KUBECONFIG="); {
		t.Log(lines.Text())
	}
	g.Expect(reader.Close()).To(Succeed())
	up.expectInterruptEndsAll(g)
}

// A terminal that accepts no text, as one whose connection is lost, delays neither the start nor the shutdown.
func TestUp_StartsAndStopsBesideBlockedTerminal(t *testing.T) {
	g := NewWithT(t)
	reader, writer, err := os.Pipe()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = reader.Close() })
	fill(g, writer)
	up := startUpTo(t, writer)
	g.Eventually(func() (string, error) {
		log, err := os.ReadFile(controlplane.ManagerLogPath(up.state))
		return string(log), err
	}, 2*time.Minute).Should(ContainSubstring("Starting workers"))
	up.expectInterruptEndsAll(g)
}

// fill writes to a pipe until it accepts nothing more. Writers of the same pipe then wait.
func fill(g Gomega, pipe *os.File) {
	again, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", pipe.Fd()), syscall.O_WRONLY|syscall.O_NONBLOCK, 0) // only this descriptor does not wait
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = syscall.Close(again) }()
	for err == nil {
		_, err = syscall.Write(again, []byte{'.'})
	}
	g.Expect(err).To(MatchError(syscall.EAGAIN))
}

// runningUp is a berth up that runs in a process of its own.
type runningUp struct {
	command *exec.Cmd
	state   string
	ended   chan struct{}
	plane   int // PID of its control plane once known
}

func startUpTo(t *testing.T, output *os.File) *runningUp {
	g := NewWithT(t)
	self, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	up := &runningUp{command: exec.Command(self), state: t.TempDir(), ended: make(chan struct{})}
	arguments := []string{"up", "--state-dir", up.state, "--assets", assets(t), "--shim", buildShim(t), "--lsp", "/bin/true"}
	up.command.Env = append(os.Environ(), berthVariable+"="+strings.Join(arguments, "\n"))
	up.command.Stdout, up.command.Stderr = output, output
	g.Expect(up.command.Start()).To(Succeed())
	g.Expect(output.Close()).To(Succeed())
	go func() {
		defer close(up.ended)
		_ = up.command.Wait()
	}()
	t.Cleanup(func() { // stop the control plane if the test fails
		_ = up.command.Process.Kill()
		<-up.ended
		if up.plane != 0 {
			_ = syscall.Kill(up.plane, syscall.SIGKILL)
		}
	})
	return up
}

// expectInterruptEndsAll expects that an interrupt ends berth up with success, and its control plane.
func (up *runningUp) expectInterruptEndsAll(g Gomega) {
	up.plane = pidOfControlPlane(g, up.state)
	g.Expect(up.command.Process.Signal(syscall.SIGINT)).To(Succeed())
	g.Eventually(up.ended, 2*time.Minute).Should(BeClosed())
	g.Expect(syscall.Kill(up.plane, 0)).To(MatchError(syscall.ESRCH))
	up.plane = 0
	g.Expect(up.command.ProcessState.ExitCode()).To(BeZero())
}
