// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// shellCommand returns a shell command that runs beside the process "web".
func (f *fixture) shellCommand(script string, env ...string) runtime.Process {
	return runtime.Process{UID: "web", Incarnation: 1, Name: "tests/default/web", Dir: "/", Command: []string{"/bin/sh", "-c", script}, Env: env}
}

// uniqueArgument returns an argument that no other process on this machine has.
func (f *fixture) uniqueArgument() string {
	return strconv.Itoa(os.Getpid()) + strconv.FormatInt(time.Now().UnixNano()%1e9, 10)
}

// processesWithArgument returns the path /proc/PID/cmdline of each process whose last argument is word.
func processesWithArgument(word string) []string {
	var found []string
	entries, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, entry := range entries {
		data, _ := os.ReadFile(entry)
		if strings.HasSuffix(string(data), "\x00"+word+"\x00") {
			found = append(found, entry)
		}
	}
	return found
}

// commandCgroups returns the cgroups of the commands that run beside the process "web".
func (f *fixture) commandCgroups() []string {
	found, _ := filepath.Glob(filepath.Join(f.group("web"), commandGroup+"*"))
	return found
}

func TestExec_ReportsTheExit(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		t.Setenv("KUBECONFIG", "/of/the/manager")
		t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
		_, err := f.Exec(f.ctx, f.shellCommand("true"))
		f.Expect(err).To(MatchError(runtime.ErrNotFound), "no process is running")
		f.start("web", "sleep")
		f.await("web", facts.Running)
		run := func(script string, env ...string) facts.Exit {
			f.Helper()
			exit, err := f.Exec(f.ctx, f.shellCommand(script, env...))
			f.Expect(err).NotTo(HaveOccurred())
			return exit
		}
		f.Expect(run("exit 0").Code).To(BeZero())
		f.Expect(run("exit 7").Code).To(Equal(int32(7)))
		f.Expect(run("kill -9 $$").Signal).To(Equal("SIGKILL"))
		f.Expect(run(`test "$SECRET" = s && test "$PWD" = /`, "SECRET=s").Code).To(BeZero())
		f.Expect(run(`test -z "$KUBECONFIG$KUBERNETES_SERVICE_HOST"`).Code).To(BeZero(), "the command does not inherit the manager's access to its cluster")
		f.Expect(run("head -c 100000000 /dev/zero").Code).To(BeZero(), "output is dropped")

		var failed *facts.StartError
		missing := f.shellCommand("")
		missing.Command = []string{"no-such-program-here"}
		_, err = f.Exec(f.ctx, missing)
		f.Expect(errors.As(err, &failed)).To(BeTrue())
		f.Expect(failed.Reason).To(Equal(shim.ReasonCommandNotFound))
		older := f.shellCommand("true")
		older.Incarnation = 2
		_, err = f.Exec(f.ctx, older)
		f.Expect(err).To(MatchError(runtime.ErrNotFound), "another incarnation is running")
		f.Expect(f.commandCgroups()).To(BeEmpty())
	})
}

// escapeScript is a script that leaves three processes behind: one in a new session, one without an environment, and one orphan.
const escapeScript = `setsid -f sleep "$WORD"; env -i setsid -f sleep "$WORD"; sleep "$WORD" & `

func TestExec_LeavesNoProcessBehind(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		word := f.uniqueArgument()
		exit, err := f.Exec(f.ctx, f.shellCommand(escapeScript+"exit 0", "WORD="+word))
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(exit.Code).To(BeZero())
		f.Expect(processesWithArgument(word)).To(BeEmpty())

		ctx, cancel := context.WithCancel(f.ctx)
		ended := make(chan error)
		go func() {
			_, err := f.Exec(ctx, f.shellCommand(escapeScript+"wait", "WORD="+word))
			ended <- err
		}()
		f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(3))
		cancel()
		f.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive(MatchError(context.Canceled)))
		f.Expect(processesWithArgument(word)).To(BeEmpty())
		f.Expect(f.commandCgroups()).To(BeEmpty())
		f.Expect(f.observe("web").Phase).To(Equal(facts.Running))
	})
}

// A command runs as the same user as its shim, so it can stop and kill the shim.
func TestExec_KillsCommandThatAttacksItsShim(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		word := f.uniqueArgument()
		_, err := f.Exec(f.ctx, f.shellCommand(`setsid -f sleep "$WORD"; kill -9 $PPID; exec sleep "$WORD"`, "WORD="+word))
		f.Expect(err).To(MatchError(ContainSubstring("was killed")))
		f.Expect(processesWithArgument(word)).To(BeEmpty())

		ctx, cancel := context.WithCancel(f.ctx)
		ended := make(chan error)
		go func() {
			_, err := f.Exec(ctx, f.shellCommand(`setsid -f sleep "$WORD"; kill -STOP $PPID; exec sleep "$WORD"`, "WORD="+word))
			ended <- err
		}()
		f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(2))
		cancel()
		f.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive(MatchError(context.Canceled)))
		f.Expect(processesWithArgument(word)).To(BeEmpty())
		f.Expect(f.commandCgroups()).To(BeEmpty())
	})
}

func TestExec_KillsCommandsWithTheProcess(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		word := f.uniqueArgument()
		ended := make(chan error)
		go func() {
			_, err := f.Exec(f.ctx, f.shellCommand(escapeScript+"wait", "WORD="+word))
			ended <- err
		}()
		f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(3))
		f.Expect(f.Kill(f.ctx, "web", 1)).To(Succeed())
		f.await("web", facts.Exited)
		f.Eventually(func() error { return f.Forget(f.ctx, "web") }).WithTimeout(conformance.Timeout).WithPolling(time.Millisecond).Should(Succeed())
		f.Expect(processesWithArgument(word)).To(BeEmpty())
		f.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive())
	})
}

func TestExec_LimitsConcurrentCommands(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		word := f.uniqueArgument()
		ctx, cancel := context.WithCancel(f.ctx)
		ended := make(chan error, maxCommands)
		for range maxCommands {
			go func() {
				_, err := f.Exec(ctx, f.shellCommand(`exec sleep "$WORD"`, "WORD="+word))
				ended <- err
			}()
		}
		f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(maxCommands))
		_, err := f.Exec(f.ctx, f.shellCommand("true"))
		f.Expect(err).To(MatchError(ContainSubstring("8 earlier commands")))
		cancel()
		for range maxCommands {
			f.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive())
		}
		_, err = f.Exec(f.ctx, f.shellCommand("true"))
		f.Expect(err).NotTo(HaveOccurred())
	})
}

// If a manager is killed, the next one finds and kills the processes that the commands of the killed manager left behind, even if the shim of such a command
// was killed as well.
func TestExec_KillsCommandsOfLostManager(t *testing.T) {
	if f := newFixture(t, availableTiers(t)[0]); f.cgroup != "" {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		word := f.uniqueArgument()
		c, err := f.forkCommand(f.shellCommand(`setsid -f sleep "$WORD"; exec sleep "$WORD"`, "WORD="+word))
		f.Expect(err).NotTo(HaveOccurred())
		f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(2))
		f.Expect(f.Close()).To(Succeed())
		f.Expect(unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)).To(Succeed())
		_, err = await(c.pid)
		f.Expect(errors.Join(err, c.caller.Close(), unix.Close(c.pidfd))).To(Succeed())
		f.Expect(processesWithArgument(word)).To(HaveLen(2))
		f.open()
		f.Eventually(func() []string { return processesWithArgument(word) }).WithTimeout(conformance.Timeout).Should(BeEmpty())
		f.Expect(f.observe("web").Phase).To(Equal(facts.Running))
	}
}
