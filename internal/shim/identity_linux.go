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

// ErrGone is the error for a process that no longer exists. Its PID may belong to another process.
var ErrGone = errors.New("the process no longer exists")

// BootID returns the ID of the current boot of the machine, from /proc/sys/kernel/random/boot_id.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// stat holds the fields of /proc/PID/stat that this package uses.
type stat struct {
	Process
	state   byte
	parent  int
	group   int
	session int
	threads int
	status  int // wait status of a zombie; the kernel shows 0 without permission
}

// dead reports whether only the entry in the process table is left.
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

// parseStat parses the contents of /proc/PID/stat.
func parseStat(pid int, data []byte) (stat, error) {
	// The second field is the name in parentheses, which may itself contain parentheses and spaces.
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

// Identify returns the identity of the process that has this PID now. It returns ErrGone if there is none.
func Identify(pid int) (Process, error) {
	s, err := readStat(pid)
	return s.Process, err
}

// Alive reports whether exactly this process still exists. A process whose main thread has exited is alive until its last thread exits: until then it keeps its
// sockets and locks. A zombie that its parent has not reaped is not alive.
func Alive(p Process) (bool, error) {
	s, err := readStat(p.PID)
	if errors.Is(err, ErrGone) {
		return false, nil
	}
	return err == nil && s.Process == p && !s.dead(), err
}

// Open returns a pidfd for exactly this process. It returns ErrGone if the process does not exist or its PID belongs to another process. After any other error,
// the process may still exist.
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
	// The identity is compared after the pidfd is open, so that there is no gap between check and use.
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

// Ended reports whether the process of a pidfd has exited, and whether its parent has reaped it. ExitStatus works only for a reaped process.
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

// pidfdInfo is the first published version of struct pidfd_info, 64 bytes.
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

// ExitStatus returns the wait status of a reaped process, even if it was not a child of the caller. It requires Linux 6.15 and returns false otherwise.
func ExitStatus(pidfd int) (unix.WaitStatus, bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return unix.WaitStatus(info.exitCode), true
}

// ZombieStatus returns the wait status of a process that has exited and that its parent has not reaped. It returns false if the status is not readable.
func ZombieStatus(p Process) (unix.WaitStatus, bool) {
	dir := "/proc/" + strconv.Itoa(p.PID)
	// Without permission the kernel shows 0 as the status. The same permission is required to read this file, so the read detects that case.
	if _, err := os.ReadFile(dir + "/io"); err != nil {
		return 0, false
	}
	s, err := readStat(p.PID)
	if err != nil || s.Process != p || s.state != 'Z' || s.threads > 1 {
		return 0, false
	}
	return unix.WaitStatus(s.status), true
}

// ExitOf converts a wait status to an Exit.
func ExitOf(status unix.WaitStatus, at time.Time) *facts.Exit {
	exit := &facts.Exit{Known: true, FinishedAt: at.UTC().Round(0)}
	if status.Signaled() {
		exit.Signal = SignalName(int(status.Signal()))
		return exit
	}
	exit.Code = int32(status.ExitStatus())
	return exit
}

// SignalName returns the name of a signal, such as SIGTERM.
func SignalName(number int) string {
	if name := unix.SignalName(syscall.Signal(number)); name != "" {
		return name
	}
	return "SIG" + strconv.Itoa(number)
}

// SignalNumber returns the number of a signal such as SIGTERM or TERM. It returns false for an unknown name.
func SignalNumber(name string) (syscall.Signal, bool) {
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	number := unix.SignalNum(name)
	return number, number != 0
}
