// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/need"
)

var _ = Describe("Instance", func() {
	It("supports attaching, detaching and attaching again", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		s := instance("shell", "/bin/sh")
		s.GetProcessSpec().Process.Stop.Signal = "SIGHUP"
		s.create(ctx).waitUntilReady(ctx)
		Expect(suiteBerth.kubectl(ctx, "get", "berth", "-A")).To(ContainSubstring("berth attach " + s.path()))
		pid := s.status().Process.PID

		By("typing into the shell")
		window := attach(s, 24, 80)
		window.typeText("kept=$((6*7)); echo answer $kept\n")
		window.waitForText("answer 42")

		By("checking that the terminal has the size of the window")
		window.typeText("stty size\n")
		window.waitForText("24 80")
		window.resize(30, 100)
		Eventually(func() string {
			window.typeText("stty size\n")
			return window.output.String()
		}).Should(ContainSubstring("30 100"))

		By("detaching, and attaching to the same shell again")
		window.typeText("\x1d")
		window.waitForExit(ctx)
		again := attach(s, 24, 80)
		again.typeText("echo still $kept\n")
		again.waitForText("still 42")
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.status().Process.PID).To(Equal(pid))

		By("exiting the shell, which ends the attachment")
		s.patch(ctx, func() { s.GetProcessSpec().RestartPolicy = v1alpha1.RestartNever })
		again.typeText("exit 3\n")
		again.waitForExit(ctx)
		s.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
		Expect(s.status().LastExit.ExitCode).To(HaveValue(BeEquivalentTo(3)))
		Expect(suiteBerth.run(ctx, "logs", s.path())).To(ContainSubstring("still 42"))
	})

	It("receives one answer to each question to its terminal, however many clients attach", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		// The program queries the terminal (device attributes, version, cursor position, colors, a mode, a keyboard protocol), and writes its input to a file.
		typed := filepath.Join(GinkgoT().TempDir(), "typed")
		asks := instance("asks", "/bin/sh", "-c", `stty raw -echo
			printf '\033[c\033[>c\033[>q\033[6n\033]10;?\007\033]11;?\007\033[?2004$p\033[?u\033P+q544e\033\\'
			echo waits; exec cat > `+typed).create(ctx).waitUntilReady(ctx)
		read := func() (string, error) { text, err := os.ReadFile(typed); return string(text), err }
		// Without a client, Berth answers. The answer to the last question is the last one.
		const answers = "\x1b[?62;22c\x1b[>1;0;0c\x1bP>|berth\x1b\\\x1b[1;1R\x1b]10;rgb:e5e5/e5e5/e5e5\a\x1b]11;rgb:0000/0000/0000\a\x1b[?2004;0$y\x1bP0+r\x1b\\"
		Eventually(read).Should(Equal(answers))
		shell := instance("shell", "/bin/bash", "--norc", "-i").create(ctx).waitUntilReady(ctx)
		suiteBerth.run(ctx, "send", shell.path(), `stty raw -echo; printf '\033[c\033[>q\033[6n\033]11;?\007'; read -rst 2 -d ''; stty sane; PS1='waits> '`)
		server := newTmuxServer("attach")
		for _, s := range []*testObject{asks, shell} {
			Eventually(func() string { return suiteBerth.run(ctx, "logs", s.path()) }).Should(ContainSubstring("waits"))
			for range 10 {
				attachInTmux(server, s, "waits")
				for _, terminal := range []string{"xterm-256color", "dumb"} {
					w := attachIn(terminal, s, 24, 80)
					w.waitForText("waits")
					w.typeText("\x1d")
					w.waitForExit(ctx)
				}
			}
		}
		suiteBerth.run(ctx, "send", "--no-enter", asks.path(), "end")
		Eventually(read).Should(HaveSuffix("end"))
		Expect(read()).To(Equal(answers + "end"))
		suiteBerth.run(ctx, "send", shell.path(), "clear; echo sum $((40+2))")
		Eventually(func() string { return suiteBerth.run(ctx, "logs", "--screen", shell.path()) }).Should(HavePrefix("sum 42\n"))
	})

	It("shows its screen as plain text, and accepts input from a pipe", NodeTimeout(3*time.Minute), func(ctx context.Context) {
		for _, runtime := range []*v1alpha1.InstanceRuntime{nil, {Type: v1alpha1.RuntimeTmux}} {
			s := instance("screen", "/bin/sh", "-c", `printf '\033[2J\033[H\033[1mtop\033[0m\033[3;5Hbelow\r\n'; while read -r line; do echo "got <$line>"; done; echo "end <$line>"`)
			s.GetProcessSpec().RestartPolicy = v1alpha1.RestartNever
			s.object.(*v1alpha1.Instance).Spec.Runtime = runtime
			if runtime != nil {
				if err := need.Missing("tmux"); err != nil {
					need.Without(GinkgoT(), err)
					continue
				}
			}
			s.create(ctx).waitUntilReady(ctx)
			screen := func() string { return suiteBerth.run(ctx, "logs", "--screen", s.path()) }
			Eventually(screen).Should(Equal("top\n\n    below\n"))

			By("detaching at the detach key in the piped input")
			pipe := func(input string) string {
				cmd := exec.CommandContext(ctx, suiteBerth.program(), "attach", s.path())
				cmd.Env, cmd.Stdin = suiteBerth.environment(), strings.NewReader(input)
				text, err := cmd.CombinedOutput()
				Expect(err).NotTo(HaveOccurred(), "%s", text)
				return string(text)
			}
			Expect(pipe("piped\n\x1d")).To(ContainSubstring("the process keeps running"))
			Eventually(screen).Should(Equal("top\n\n    below\npiped\ngot <piped>\n"))

			By("passing on the end of the piped input")
			Expect(pipe("again\nrest")).To(And(ContainSubstring("got <again>"), ContainSubstring("end <rest>"), ContainSubstring("the process has ended")))

			By("detaching after the output if the program reads keys")
			keys := instance("keys", "/bin/sh", "-c", `stty -icanon -echo; echo waits; while key=$(dd bs=1 count=1 2>/dev/null); do echo "key <$key>"; done`)
			keys.object.(*v1alpha1.Instance).Spec.Runtime = runtime
			keys.create(ctx).waitUntilReady(ctx)
			Eventually(func() string { return suiteBerth.run(ctx, "logs", keys.path()) }).Should(ContainSubstring("waits"))
			s = keys
			Expect(pipe("ab")).To(And(ContainSubstring("key <a>"), ContainSubstring("key <b>"), Not(ContainSubstring("\x04")), ContainSubstring("the process keeps running")))
		}
	})

	It("stops an interactive shell within seconds, and sends SIGHUP to the programs in it", NodeTimeout(3*time.Minute), func(ctx context.Context) {
		saved := filepath.Join(GinkgoT().TempDir(), "saved")
		s := instance("shell", "/bin/bash", "--norc", "-i").create(ctx).waitUntilReady(ctx)
		suiteBerth.run(ctx, "send", s.path(), `bash -c 'trap "echo HUP > `+saved+`; exit" HUP; echo saves $((1+1)); while :; do sleep 0.1; done'`)
		Eventually(func() string { return suiteBerth.run(ctx, "logs", s.path()) }).Should(ContainSubstring("saves 2"))
		began := time.Now()
		Expect(suiteBerth.client.Delete(ctx, s.object)).To(Succeed())
		Eventually(func() error { return s.read(ctx) }).Should(MatchError(apierrors.IsNotFound, "IsNotFound"))
		Expect(time.Since(began)).To(BeNumerically("<", 2*time.Second), "the default grace period is 10 s")
		Expect(os.ReadFile(saved)).To(BeEquivalentTo("HUP\n"))
	})
})

// attachment is a `berth attach` in a pseudoterminal.
type attachment struct {
	terminal interface {
		io.ReadWriteCloser
	}
	resize func(rows, columns uint16)
	signal func(syscall.Signal)
	output *output
	ended  chan error
}

// attachInTmux attaches in a window of a tmux server, which answers terminal queries, and detaches again.
func attachInTmux(server tmuxServer, s *testObject, shows string) {
	GinkgoHelper()
	_, err := server.run(append([]string{"new-session", "-d", "-s", "attached", "env"}, append(suiteBerth.environment(), suiteBerth.program(), "attach", s.path())...)...)
	Expect(err).NotTo(HaveOccurred())
	server.waitForText("attached", shows)
	_, err = server.run("send-keys", "-t", "=attached:", "C-]")
	Expect(err).NotTo(HaveOccurred())
	Eventually(func() error { _, err := server.run("has-session", "-t", "=attached"); return err }).Should(HaveOccurred())
}

// terminalAnswers maps each terminal query of the tests to the answer of xterm.
var terminalAnswers = map[string]string{
	"\x1b[c": "\x1b[?64;1;2c", "\x1b[>c": "\x1b[>41;380;0c", "\x1b[>q": "\x1bP>|XTerm(380)\x1b\\", "\x1b[6n": "\x1b[1;1R",
	"\x1b]10;?\a": "\x1b]10;rgb:ffff/ffff/ffff\a", "\x1b]11;?\a": "\x1b]11;rgb:0000/0000/0000\a", "\x1b[?2004$p": "\x1b[?2004;1$y",
	"\x1b[?u": "\x1b[?0u", "\x1bP+q544e\x1b\\": "\x1bP1+r544e=787465726d\x1b\\",
}

// terminalEmulator reads the output of a terminal and answers its queries.
type terminalEmulator struct {
	terminal io.Writer
	shown    string
}

func (a *terminalEmulator) Write(output []byte) (int, error) {
	a.shown += string(output)
	for query, answer := range terminalAnswers {
		for range strings.Count(a.shown, query) {
			_, _ = io.WriteString(a.terminal, answer) // fails after berth attach has exited
		}
		a.shown = strings.ReplaceAll(a.shown, query, "")
	}
	return len(output), nil
}

func attach(s *testObject, rows, columns uint16) *attachment {
	GinkgoHelper()
	return attachIn("dumb", s, rows, columns)
}

// attachIn attaches in a terminal of the given type. Every terminal except a dumb one answers terminal queries.
func attachIn(kind string, s *testObject, rows, columns uint16) *attachment {
	GinkgoHelper()
	cmd := exec.Command(suiteBerth.program(), "attach", s.path())
	cmd.Env = append(suiteBerth.environment(), "TERM="+kind)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: columns})
	Expect(err).NotTo(HaveOccurred())
	w := &attachment{terminal: terminal, output: &output{}, ended: make(chan error, 1)}
	w.resize = func(rows, columns uint16) {
		Expect(pty.Setsize(terminal, &pty.Winsize{Rows: rows, Cols: columns})).To(Succeed())
	}
	w.signal = func(s syscall.Signal) { Expect(cmd.Process.Signal(s)).To(Succeed()) }
	read := make(chan struct{})
	go func() {
		defer close(read)
		// io.Copy returns an error when the last process that uses the terminal has closed it.
		var shown io.Writer = w.output
		if kind != "dumb" {
			shown = io.MultiWriter(w.output, &terminalEmulator{terminal: terminal})
		}
		_, _ = io.Copy(shown, terminal)
	}()
	over := make(chan struct{})
	go func() {
		defer close(over)
		err := cmd.Wait()
		<-read // the output is complete
		w.ended <- err
	}()
	DeferCleanup(func() {
		// Signal cannot reach another process with the same PID: after Wait it returns an error.
		_ = cmd.Process.Signal(syscall.SIGKILL)
		<-over
		_ = terminal.Close()
	})
	return w
}

func (w *attachment) typeText(text string) {
	GinkgoHelper()
	_, err := io.WriteString(w.terminal, text)
	Expect(err).NotTo(HaveOccurred())
}

func (w *attachment) waitForText(text string) {
	GinkgoHelper()
	Eventually(w.output.String).Should(ContainSubstring(text))
}

func (w *attachment) waitForExit(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, w.ended).WithTimeout(timeout).Should(Receive(BeNil()), "%s", w.output)
}

// waitForCode waits until berth attach has exited with a code.
func (w *attachment) waitForCode(ctx context.Context, code int) {
	GinkgoHelper()
	var err error
	Eventually(ctx, w.ended).WithTimeout(timeout).Should(Receive(&err), "%s", w.output)
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = nil
		Expect(failed.ExitCode()).To(Equal(code), "%s", w.output)
	} else {
		Expect(code).To(BeZero(), "%s", w.output)
	}
	Expect(err).NotTo(HaveOccurred())
}
