// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
)

// ErrGone means: the process is not there any more; its PID may be another process's by now.
var ErrGone = errors.New("the process is gone")

// BootID identifies this boot of the machine.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// stat is what is needed of /proc/PID/stat.
type stat struct {
	Process
	state   byte
	parent  int
	group   int
	session int
	threads int
	status  int // of a zombie, to those who may know it
}

// dead says that only the entry in the process table is left.
func (s stat) dead() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return stat{}, ErrGone
	}
	if err != nil {
		return stat{}, err
	}
	return parseStat(pid, data)
}

// parseStat reads the text of /proc/PID/stat.
func parseStat(pid int, data []byte) (stat, error) {
	// The second field is the name, in parentheses, and may itself hold parentheses and spaces.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("/proc/%d/stat is shorter than expected", pid)
	}
	number := func(i int) uint64 { n, _ := strconv.ParseUint(string(fields[i]), 10, 64); return n }
	s := stat{
		Process: Process{PID: pid, Ticks: number(19)},
		state:   fields[0][0], parent: int(number(1)), group: int(number(2)), session: int(number(3)), threads: int(number(17)),
	}
	if len(fields) > 49 {
		s.status = int(number(49))
	}
	return s, nil
}

// Identify gives the identity of the process that has this PID now.
func Identify(pid int) (Process, error) {
	s, err := readStat(pid)
	return s.Process, err
}

// Alive says whether this very process is still there. One of which only threads are left is: its sockets and locks are its own until the last of
// them has ended. One that has ended and that its parent has not taken note of is not.
func Alive(p Process) (bool, error) {
	s, err := readStat(p.PID)
	if errors.Is(err, ErrGone) {
		return false, nil
	}
	return err == nil && s.Process == p && !s.dead(), err
}

// Open gives a pidfd that refers to exactly this process. ErrGone when it is not there or the PID is another's; any other error means that it cannot be told.
func Open(p Process) (int, error) {
	if p.PID <= 0 || p.Ticks == 0 {
		return -1, ErrGone
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	// Only after it was opened it is compared, so that there is no gap between check and use.
	s, err := readStat(p.PID)
	if err == nil && s.Ticks != p.Ticks {
		err = ErrGone
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Ended says whether the process of a pidfd has ended, and whether its parent has taken note, after which ExitStatus can be asked.
func Ended(pidfd int) (ended, reaped bool) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			break
		}
	}
	return fds[0].Revents&(unix.POLLIN|unix.POLLHUP) != 0, fds[0].Revents&unix.POLLHUP != 0
}

// pidfdInfo is the first published form of struct pidfd_info, 64 bytes.
type pidfdInfo struct {
	mask     uint64
	_        uint64 // cgroupid
	_        [11]uint32
	exitCode int32
}

const (
	pidfdInfoExit = 1 << 3
	pidfdGetInfo  = 3<<30 | 64<<16 | 0xFF<<8 | 11 // _IOWR(0xFF, 11, 64 bytes)
)

// ExitStatus gives the status of a process that has ended, even if it was not our child: Linux 6.15 and later.
func ExitStatus(pidfd int) (unix.WaitStatus, bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return unix.WaitStatus(info.exitCode), true
}

// ZombieStatus gives the status of a process that has ended and that its parent has not taken note of yet.
func ZombieStatus(p Process) (unix.WaitStatus, bool) {
	dir := "/proc/" + strconv.Itoa(p.PID)
	// The kernel shows 0 as the status to those who may not know it. They may not read this file either, which says so.
	if _, err := os.ReadFile(dir + "/io"); err != nil {
		return 0, false
	}
	s, err := readStat(p.PID)
	if err != nil || s.Process != p || s.state != 'Z' || s.threads > 1 {
		return 0, false
	}
	return unix.WaitStatus(s.status), true
}

// ExitOf turns a wait status into an Exit.
func ExitOf(status unix.WaitStatus, at time.Time) *facts.Exit {
	exit := &facts.Exit{Known: true, FinishedAt: at.UTC().Round(0)}
	if status.Signaled() {
		exit.Signal = SignalName(int(status.Signal()))
		return exit
	}
	exit.Code = int32(status.ExitStatus())
	return exit
}

// SignalName gives the name of a signal, such as SIGTERM.
func SignalName(number int) string {
	if name := unix.SignalName(syscall.Signal(number)); name != "" {
		return name
	}
	return "SIG" + strconv.Itoa(number)
}

// SignalNumber gives the number of a signal such as SIGTERM or TERM; false when there is none of that name.
func SignalNumber(name string) (syscall.Signal, bool) {
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	number := unix.SignalNum(name)
	return number, number != 0
}
