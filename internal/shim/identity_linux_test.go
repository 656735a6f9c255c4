// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/shim"
)

// headlessVariable makes the first thread of this test program exit immediately, while other threads keep the process alive until the end of its input.
const headlessVariable = "BERTH_TEST_HEADLESS"

func init() { // runs in the first thread
	if os.Getenv(headlessVariable) == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

func TestAlive_UntilLastThreadExits(t *testing.T) {
	g := NewWithT(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), headlessVariable+"=yes")
	end, err := cmd.StdinPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmd.Start()).To(Succeed())
	process, err := shim.Identify(cmd.Process.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	state := func() string {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(process.PID) + "/stat")
		return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]
	}

	g.Eventually(state).WithTimeout(time.Minute).Should(Equal("Z"))
	g.Expect(shim.Alive(process)).To(BeTrue(), "only the first thread has exited")
	reused := process
	reused.Ticks--
	g.Expect(shim.Alive(reused)).To(BeFalse(), "another process")

	g.Expect(end.Close()).To(Succeed())
	g.Eventually(shim.Alive).WithArguments(process).WithTimeout(time.Minute).Should(BeFalse()) // with -race a program takes a second to end
	g.Expect(state()).To(Equal("Z"), "the process has not been reaped")
	g.Expect(cmd.Wait()).To(Succeed())
	g.Expect(shim.Alive(process)).To(BeFalse())
}
