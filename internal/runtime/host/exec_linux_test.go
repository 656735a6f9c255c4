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

// beside returns a shell command that runs beside the process "web".
func (b *bench) beside(script string, env ...string) runtime.Process {
	return runtime.Process{UID: "web", Incarnation: 1, Name: "tests/default/web", Dir: "/", Command: []string{"/bin/sh", "-c", script}, Env: env}
}

// word returns an argument that no other process on this machine has.
func (b *bench) word() string {
	return strconv.Itoa(os.Getpid()) + strconv.FormatInt(time.Now().UnixNano()%1e9, 10)
}

// sleepers returns the PIDs of the processes whose last argument is word.
func sleepers(word string) []string {
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

// groups returns the cgroups of commands beside "web".
func (b *bench) groups() []string {
	found, _ := filepath.Glob(filepath.Join(b.group("web"), commandGroup+"*"))
	return found
}

func TestExec_ReportsTheExit(t *testing.T) {
	forTiers(t, func(b *bench) {
		t.Setenv("KUBECONFIG", "/of/the/manager")
		t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
		_, err := b.Exec(b.ctx, b.beside("true"))
		b.Expect(err).To(MatchError(runtime.ErrNotFound), "no process is running")
		b.start("web", "sleep")
		b.await("web", facts.Running)
		run := func(script string, env ...string) facts.Exit {
			b.Helper()
			exit, err := b.Exec(b.ctx, b.beside(script, env...))
			b.Expect(err).NotTo(HaveOccurred())
			return exit
		}
		b.Expect(run("exit 0").Code).To(BeZero())
		b.Expect(run("exit 7").Code).To(Equal(int32(7)))
		b.Expect(run("kill -9 $$").Signal).To(Equal("SIGKILL"))
		b.Expect(run(`test "$SECRET" = s && test "$PWD" = /`, "SECRET=s").Code).To(BeZero())
		b.Expect(run(`test -z "$KUBECONFIG$KUBERNETES_SERVICE_HOST"`).Code).To(BeZero(), "the command does not inherit the manager's access to its cluster")
		b.Expect(run("head -c 100000000 /dev/zero").Code).To(BeZero(), "output is dropped")

		var failed *facts.StartError
		missing := b.beside("")
		missing.Command = []string{"no-such-program-here"}
		_, err = b.Exec(b.ctx, missing)
		b.Expect(errors.As(err, &failed)).To(BeTrue())
		b.Expect(failed.Reason).To(Equal(shim.ReasonCommandNotFound))
		older := b.beside("true")
		older.Incarnation = 2
		_, err = b.Exec(b.ctx, older)
		b.Expect(err).To(MatchError(runtime.ErrNotFound), "another incarnation is running")
		b.Expect(b.groups()).To(BeEmpty())
	})
}

// escape is a script that leaves three processes behind: one in a new session, one without an environment, and one orphan.
const escape = `setsid -f sleep "$WORD"; env -i setsid -f sleep "$WORD"; sleep "$WORD" & `

func TestExec_LeavesNoProcessBehind(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		word := b.word()
		exit, err := b.Exec(b.ctx, b.beside(escape+"exit 0", "WORD="+word))
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(exit.Code).To(BeZero())
		b.Expect(sleepers(word)).To(BeEmpty())

		ctx, cancel := context.WithCancel(b.ctx)
		ended := make(chan error)
		go func() {
			_, err := b.Exec(ctx, b.beside(escape+"wait", "WORD="+word))
			ended <- err
		}()
		b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(3))
		cancel()
		b.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive(MatchError(context.Canceled)))
		b.Expect(sleepers(word)).To(BeEmpty())
		b.Expect(b.groups()).To(BeEmpty())
		b.Expect(b.observe("web").Phase).To(Equal(facts.Running))
	})
}

// A command runs as the same user as its shim, so it can stop and kill the shim.
func TestExec_EndsACommandThatAttacksItsShim(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		word := b.word()
		_, err := b.Exec(b.ctx, b.beside(`setsid -f sleep "$WORD"; kill -9 $PPID; exec sleep "$WORD"`, "WORD="+word))
		b.Expect(err).To(MatchError(ContainSubstring("was killed")))
		b.Expect(sleepers(word)).To(BeEmpty())

		ctx, cancel := context.WithCancel(b.ctx)
		ended := make(chan error)
		go func() {
			_, err := b.Exec(ctx, b.beside(`setsid -f sleep "$WORD"; kill -STOP $PPID; exec sleep "$WORD"`, "WORD="+word))
			ended <- err
		}()
		b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(2))
		cancel()
		b.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive(MatchError(context.Canceled)))
		b.Expect(sleepers(word)).To(BeEmpty())
		b.Expect(b.groups()).To(BeEmpty())
	})
}

func TestExec_CommandsEndWithTheProcess(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		word := b.word()
		ended := make(chan error)
		go func() {
			_, err := b.Exec(b.ctx, b.beside(escape+"wait", "WORD="+word))
			ended <- err
		}()
		b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(3))
		b.Expect(b.Kill(b.ctx, "web", 1)).To(Succeed())
		b.await("web", facts.Exited)
		b.Eventually(func() error { return b.Forget(b.ctx, "web") }).WithTimeout(conformance.Timeout).WithPolling(time.Millisecond).Should(Succeed())
		b.Expect(sleepers(word)).To(BeEmpty())
		b.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive())
	})
}

func TestExec_CommandsBesideOneProcessAreBounded(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		word := b.word()
		ctx, cancel := context.WithCancel(b.ctx)
		ended := make(chan error, maxCommands)
		for range maxCommands {
			go func() {
				_, err := b.Exec(ctx, b.beside(`exec sleep "$WORD"`, "WORD="+word))
				ended <- err
			}()
		}
		b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(maxCommands))
		_, err := b.Exec(b.ctx, b.beside("true"))
		b.Expect(err).To(MatchError(ContainSubstring("8 earlier commands")))
		cancel()
		for range maxCommands {
			b.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive())
		}
		_, err = b.Exec(b.ctx, b.beside("true"))
		b.Expect(err).NotTo(HaveOccurred())
	})
}

// If a manager is killed, the next one finds and kills the processes that the commands of the killed manager left behind, even if the shim of such a command
// was killed as well.
func TestExec_CommandsOfALostManagerAreKilled(t *testing.T) {
	if b := newBench(t, tiers(t)[0]); b.cgroup != "" {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		word := b.word()
		c, err := b.forkCommand(b.beside(`setsid -f sleep "$WORD"; exec sleep "$WORD"`, "WORD="+word))
		b.Expect(err).NotTo(HaveOccurred())
		b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(HaveLen(2))
		b.Expect(b.Close()).To(Succeed())
		b.Expect(unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)).To(Succeed())
		_, err = await(c.pid)
		b.Expect(errors.Join(err, c.caller.Close(), unix.Close(c.pidfd))).To(Succeed())
		b.Expect(sleepers(word)).To(HaveLen(2))
		b.open()
		b.Eventually(func() []string { return sleepers(word) }).WithTimeout(conformance.Timeout).Should(BeEmpty())
		b.Expect(b.observe("web").Phase).To(Equal(facts.Running))
	}
}
