// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
)

// waitVariable names an environment variable. If it is set, the test binary runs no tests and waits in the way that the value names.
const waitVariable = "BERTH_TEST_WAIT"

func init() {
	way, set := os.LookupEnv(waitVariable)
	if !set {
		return
	}
	fmt.Print("ready")
	if way != "read" {
		_ = makeRaw(0)
	}
	var none [1]byte
	for {
		switch way {
		case "read", "raw read":
			_, _ = unix.Read(0, none[:])
		case "poll":
			_, _ = unix.Poll([]unix.PollFd{{Fd: -1}, {Fd: 0, Events: unix.POLLIN}}, -1)
		case "poll for output":
			_, _ = unix.Poll([]unix.PollFd{{Fd: 0, Events: unix.POLLPRI}}, -1)
		case "select":
			var set unix.FdSet
			set.Set(0)
			_, _ = unix.Select(70, &set, nil, nil, nil)
		case "select of another":
			var set unix.FdSet
			set.Set(silentPipe())
			_, _ = unix.Select(70, &set, nil, nil, nil)
		case "epoll":
			epoll, _ := unix.EpollCreate1(0)
			_ = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, 0, &unix.EpollEvent{Events: unix.EPOLLIN})
			_, _ = unix.EpollWait(epoll, make([]unix.EpollEvent, 1), -1)
		case "epoll of another":
			epoll, _ := unix.EpollCreate1(0)
			_ = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, silentPipe(), &unix.EpollEvent{Events: unix.EPOLLIN})
			_, _ = unix.EpollWait(epoll, make([]unix.EpollEvent, 1), -1)
		case "read of another":
			_, _ = unix.Read(silentPipe(), none[:])
		case "/dev/tty":
			tty, _ := unix.Open("/dev/tty", unix.O_RDWR, 0)
			_, _ = unix.Read(tty, none[:])
		case "computes":
		}
	}
}

// silentPipe returns the read end of a pipe that never gets data, as a descriptor with a high number.
func silentPipe() int {
	var ends [2]int
	_ = unix.Pipe(ends[:])
	_ = unix.Dup3(ends[0], 65, 0)
	return 65
}

// startInTerminal starts a command in a terminal and returns the result of InspectInput.
func startInTerminal(t *testing.T, cmd *exec.Cmd) func() (facts.Input, error) {
	t.Helper()
	master, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, master) }()
	t.Cleanup(func() {
		_ = Tree{Ancestor: cmd.Process.Pid}.Kill() // also kills processes in other sessions
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = master.Close()
	})
	return func() (facts.Input, error) {
		members, err := Tree{Ancestor: os.Getpid()}.Members()
		if err != nil {
			return facts.Input{}, err
		}
		return InspectInput(master, members)
	}
}

func TestInspectInput_ReportsHowProgramWaits(t *testing.T) {
	for way, want := range map[string]facts.Input{
		"read":              {Reader: facts.ReaderRead, Canonical: true, Echo: true},
		"raw read":          {Reader: facts.ReaderRead},
		"/dev/tty":          {Reader: facts.ReaderRead},
		"poll":              {Reader: facts.ReaderPoll},
		"select":            {Reader: facts.ReaderPoll},
		"epoll":             {Reader: facts.ReaderPoll},
		"poll for output":   {Reader: facts.ReaderNone},
		"select of another": {Reader: facts.ReaderNone},
		"epoll of another":  {Reader: facts.ReaderNone},
		"read of another":   {Reader: facts.ReaderNone},
		"computes":          {Reader: facts.ReaderUnknown},
	} {
		t.Run(way, func(t *testing.T) {
			g := NewWithT(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), waitVariable+"="+way)
			inspect := startInTerminal(t, cmd)
			if want.Reader != facts.ReaderNone && want.Reader != facts.ReaderUnknown {
				want.Program = filepath.Base(os.Args[0])
				want.Program = want.Program[:min(15, len(want.Program))]
			}
			g.Eventually(inspect).WithTimeout(20 * time.Second).Should(Equal(want))
		})
	}
}

// TestInspectInput_IgnoresBackgroundProcesses checks that a background process, which cannot read the terminal, is not reported as the reader.
func TestInspectInput_IgnoresBackgroundProcesses(t *testing.T) {
	g := NewWithT(t)
	cmd := exec.Command("/bin/bash", "-c", `set -m; "$0" & exec sleep 60`, os.Args[0])
	cmd.Env = append(os.Environ(), waitVariable+"=poll")
	inspect := startInTerminal(t, cmd)
	g.Eventually(inspect).WithTimeout(20 * time.Second).Should(HaveField("Reader", facts.ReaderNone))
}

// TestInspectInput_FindsReaderInOtherSession checks that a process in another session that reads the terminal is found, as with su -c.
func TestInspectInput_FindsReaderInOtherSession(t *testing.T) {
	g := NewWithT(t)
	cmd := exec.Command("/bin/bash", "-c", `setsid -w "$0"; true`, os.Args[0])
	cmd.Env = append(os.Environ(), waitVariable+"=poll")
	inspect := startInTerminal(t, cmd)
	g.Eventually(inspect).WithTimeout(20 * time.Second).Should(HaveField("Reader", facts.ReaderPoll))
}

// TestInspectInput_ReadsWithinBounds checks that a system call of a program cannot make the shim allocate without bound.
func TestInspectInput_ReadsWithinBounds(t *testing.T) {
	g := NewWithT(t)
	i := inspection{threads: 1}
	const arguments = " 0x0 0x0 0x0 0x0 0x0 0x0"
	for _, call := range []string{"", "running", "-1 0x1 0x2", "x 0x0" + arguments, fmt.Sprint(unix.SYS_PPOLL, " 0x0 0xffffffffffffffff", arguments),
		fmt.Sprint(unix.SYS_PPOLL, " 0x0 0x10", arguments), fmt.Sprint(unix.SYS_PSELECT6, " 0xffffffffffffffff 0x1", arguments), "0 0x1 0x"} {
		g.Expect(i.thread(procstat.Stat{Process: procstat.Process{PID: os.Getpid()}}, []byte(call))).To(Equal(facts.ReaderUnknown), call)
	}
	g.Expect(i.process(procstat.Stat{Process: procstat.Process{PID: os.Getpid()}})).To(Equal(facts.ReaderUnknown), "there are more threads than are inspected")
}

func BenchmarkInspectInput(b *testing.B) {
	cmd := exec.Command("/bin/sh", "-c", "read line")
	master, err := pty.Start(cmd)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = master.Close()
	}()
	for b.Loop() {
		members, _ := Tree{Ancestor: os.Getpid()}.Members()
		if _, err := InspectInput(master, members); err != nil {
			b.Fatal(err)
		}
	}
}
