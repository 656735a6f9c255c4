// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// When the reader of the output exits, as tee does at Ctrl-C, berth up continues, and stops its control plane when it is interrupted.
func TestUp_StopsControlPlaneAfterOutputWasClosed(t *testing.T) {
	g := NewWithT(t)
	state := t.TempDir()
	self, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	up := exec.Command(self)
	arguments := []string{"up", "--state-dir", state, "--assets", assets(t), "--shim", buildShim(t), "--lsp", "/bin/true"}
	up.Env = append(os.Environ(), berthVariable+"="+strings.Join(arguments, "\n"))
	reader, writer, err := os.Pipe()
	g.Expect(err).NotTo(HaveOccurred())
	up.Stdout, up.Stderr = writer, writer
	g.Expect(up.Start()).To(Succeed())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = up.Wait()
	}()
	var pids []int
	t.Cleanup(func() { // stop the control plane if the test fails
		_ = up.Process.Kill()
		<-ended
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	g.Expect(writer.Close()).To(Succeed())
	for lines := bufio.NewScanner(reader); lines.Scan() && !strings.HasPrefix(lines.Text(), "export KUBECONFIG="); {
		t.Log(lines.Text())
	}
	g.Expect(reader.Close()).To(Succeed())
	pids = append(pids, pidOfControlPlane(g, state))
	g.Expect(up.Process.Signal(syscall.SIGINT)).To(Succeed())
	g.Eventually(ended, 2*time.Minute).Should(BeClosed())
	for _, pid := range pids {
		g.Expect(syscall.Kill(pid, 0)).To(MatchError(syscall.ESRCH))
	}
	pids = nil
	g.Expect(up.ProcessState.ExitCode()).To(BeZero())
}
