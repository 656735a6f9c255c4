// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package procstat_test

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
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
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
	process, err := procstat.Identify(cmd.Process.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	state := func() string {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(process.PID) + "/stat")
		return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]
	}

	g.Eventually(state).WithTimeout(time.Minute).Should(Equal("Z"))
	g.Expect(procstat.Alive(process)).To(BeTrue(), "only the first thread has exited")
	reused := process
	reused.Ticks--
	g.Expect(procstat.Alive(reused)).To(BeFalse(), "another process")

	g.Expect(end.Close()).To(Succeed())
	g.Eventually(procstat.Alive).WithArguments(process).WithTimeout(time.Minute).Should(BeFalse()) // with -race a program takes a second to end
	g.Expect(state()).To(Equal("Z"), "the process has not been reaped")
	g.Expect(cmd.Wait()).To(Succeed())
	g.Expect(procstat.Alive(process)).To(BeFalse())
}

func TestOpen_RejectsOtherProcesses(t *testing.T) {
	g := NewWithT(t)
	self, err := procstat.Identify(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	fd, err := procstat.Open(self)
	g.Expect(err).NotTo(HaveOccurred())
	ended, _ := procstat.Ended(fd)
	g.Expect(ended).To(BeFalse())
	g.Expect(unix.Close(fd)).To(Succeed())
	for _, other := range []procstat.Process{{}, {PID: self.PID}, {PID: self.PID, Ticks: self.Ticks + 1}, {PID: 1 << 30, Ticks: 1}} {
		_, err := procstat.Open(other)
		g.Expect(err).To(MatchError(procstat.ErrGone))
	}
	g.Expect(procstat.Ancestors(self.PID)).To(ContainElement(os.Getppid()))
}

func TestExitStatus_ReportsSignal(t *testing.T) {
	g := NewWithT(t)
	child := exec.Command("sleep", "600")
	g.Expect(child.Start()).To(Succeed())
	identity, err := procstat.Identify(child.Process.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	fd, err := procstat.Open(identity)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	pidfd, err := procstat.OpenFile(identity)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = pidfd.Close() }()
	other := identity
	other.Ticks++
	g.Expect(procstat.Signal(other, unix.SIGKILL)).To(Succeed(), "a signal to another process is not sent")
	ended, _ := procstat.Ended(fd)
	g.Expect(ended).To(BeFalse())
	g.Expect(procstat.Signal(identity, unix.SIGTERM)).To(Succeed())
	g.Expect(procstat.Wait(pidfd)).To(BeTrue())
	if status, ok := procstat.ZombieStatus(identity); ok {
		g.Expect(status.Signal()).To(Equal(unix.SIGTERM))
	}
	g.Expect(child.Wait()).NotTo(Succeed())
	if status, ok := procstat.ExitStatus(fd); ok {
		g.Expect(status.Signal()).To(Equal(unix.SIGTERM))
	}
	_, ok := procstat.ZombieStatus(identity)
	g.Expect(ok).To(BeFalse(), "the process has been reaped")
	g.Expect(procstat.Signal(identity, unix.SIGTERM)).To(Succeed(), "a signal to an exited process succeeds")
}

func TestWait_EndsWhenTheFileIsClosed(t *testing.T) {
	g := NewWithT(t)
	self, err := procstat.Identify(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	pidfd, err := procstat.OpenFile(self)
	g.Expect(err).NotTo(HaveOccurred())
	ended := make(chan bool)
	go func() { ended <- procstat.Wait(pidfd) }()
	g.Consistently(ended).ShouldNot(Receive())
	g.Expect(pidfd.Close()).To(Succeed())
	g.Eventually(ended).WithTimeout(time.Minute).Should(Receive(BeFalse()))
}
