// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package procstat

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BootID returns the ID of the current boot of the machine, from /proc/sys/kernel/random/boot_id.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// Identify returns the identity of the process that has this PID now. It returns ErrGone if there is none.
func Identify(pid int) (Process, error) {
	s, err := Read(pid)
	return s.Process, err
}

// Alive reports whether exactly this process still exists. A process whose main thread has exited is alive until its last thread exits: until then it keeps its
// sockets and locks. A zombie that its parent has not reaped is not alive.
func Alive(p Process) (bool, error) {
	s, err := Read(p.PID)
	if errors.Is(err, ErrGone) {
		return false, nil
	}
	return err == nil && s.Process == p && !s.Dead(), err
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
	s, err := Read(p.PID)
	if err == nil && s.Ticks != p.Ticks {
		err = ErrGone
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// OpenFile is Open, but returns the pidfd as a file for Wait.
func OpenFile(p Process) (*os.File, error) {
	fd, err := Open(p)
	if err != nil {
		return nil, err
	}
	return NewFile(fd)
}

// NewFile returns a pidfd as a file for Wait. It takes ownership of the pidfd, and closes the pidfd if it returns an error.
func NewFile(pidfd int) (*os.File, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil { // so that the Go runtime polls the descriptor
		_ = unix.Close(pidfd)
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	file := os.NewFile(uintptr(pidfd), "process")
	// os.NewFile reports no error if the runtime cannot poll the descriptor, for example because fs.epoll.max_user_watches is reached.
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	return file, nil
}

// Wait blocks until the process of a pidfd has exited, and then returns true. It returns false when the file is closed. No thread blocks meanwhile, because
// the Go runtime polls the pidfd.
func Wait(pidfd *os.File) (ended bool) {
	raw, err := pidfd.SyscallConn()
	if err == nil {
		_ = raw.Read(func(fd uintptr) bool {
			ended, _ = Ended(int(fd))
			return ended
		})
	}
	return ended
}

// Signal sends a signal to exactly this process. It returns nil if the process no longer exists.
func Signal(p Process, signal unix.Signal) error {
	fd, err := Open(p)
	if err == nil {
		err = unix.PidfdSendSignal(fd, signal, nil, 0)
		_ = unix.Close(fd)
	}
	if errors.Is(err, ErrGone) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
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
	// Without permission the kernel shows 0 as the status. Reading /proc/PID/io requires the same permission, so a failed read detects that case.
	if _, err := os.ReadFile(dir + "/io"); err != nil {
		return 0, false
	}
	s, err := Read(p.PID)
	if err != nil || s.Process != p || s.State != 'Z' || s.Threads > 1 {
		return 0, false
	}
	return unix.WaitStatus(s.status), true
}
