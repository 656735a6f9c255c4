// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = Describe("Instance", func() {
	It("can be attached to, left and found again", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		s := instance("shell", "/bin/sh")
		s.GetProcessSpec().Process.Stop.Signal = "SIGHUP"
		s.create(ctx).ready(ctx)
		Expect(house.kubectl(ctx, "get", "berth", "-A")).To(ContainSubstring("berth attach " + s.path()))
		pid := s.status().Process.PID

		By("typing into the shell")
		window := attach(s, 24, 80)
		window.typed("kept=$((6*7)); echo answer $kept\n")
		window.shows("answer 42")

		By("having the size of the window")
		window.typed("stty size\n")
		window.shows("24 80")
		window.resize(30, 100)
		Eventually(func() string {
			window.typed("stty size\n")
			return window.output.String()
		}).Should(ContainSubstring("30 100"))

		By("leaving, and coming back to the same shell")
		window.typed("\x1d")
		window.ends(ctx)
		again := attach(s, 24, 80)
		again.typed("echo still $kept\n")
		again.shows("still 42")
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.status().Process.PID).To(Equal(pid))

		By("ending with the shell")
		s.change(ctx, func() { s.GetProcessSpec().RestartPolicy = v1alpha1.RestartNever })
		again.typed("exit 3\n")
		again.ends(ctx)
		s.becomes(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
		Expect(s.status().LastExit.ExitCode).To(HaveValue(BeEquivalentTo(3)))
		Expect(house.run(ctx, "logs", s.path())).To(ContainSubstring("still 42"))
	})
})

// window is a `berth attach` in a terminal.
type window struct {
	terminal interface {
		io.ReadWriteCloser
	}
	resize func(rows, columns uint16)
	output *output
	ended  chan error
}

func attach(s *subject, rows, columns uint16) *window {
	GinkgoHelper()
	cmd := exec.Command(house.program(), "attach", s.path())
	cmd.Env = house.environment()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: columns})
	Expect(err).NotTo(HaveOccurred())
	w := &window{terminal: terminal, output: &output{}, ended: make(chan error, 1)}
	w.resize = func(rows, columns uint16) {
		Expect(pty.Setsize(terminal, &pty.Winsize{Rows: rows, Cols: columns})).To(Succeed())
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		// The read ends with an error when the terminal's last user has gone.
		_, _ = io.Copy(w.output, terminal)
	}()
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.ended <- cmd.Wait()
	}()
	DeferCleanup(func() {
		// It is our own child, not waited for yet or gone already.
		_ = cmd.Process.Signal(syscall.SIGKILL)
		<-over
		_ = terminal.Close()
		<-read
	})
	return w
}

func (w *window) typed(text string) {
	GinkgoHelper()
	_, err := io.WriteString(w.terminal, text)
	Expect(err).NotTo(HaveOccurred())
}

func (w *window) shows(text string) {
	GinkgoHelper()
	Eventually(w.output.String).Should(ContainSubstring(text))
}

func (w *window) ends(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, w.ended).WithTimeout(timeout).Should(Receive(BeNil()), "%s", w.output)
}
