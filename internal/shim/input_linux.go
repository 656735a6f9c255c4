// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
)

// Bounds of one inspection. The reader is unknown if maxThreads or maxDescriptors is exceeded; a descriptor list is read only up to maxEpoll.
const (
	maxThreads     = 1024      // of all inspected processes
	maxDescriptors = 1024      // of one poll or select call
	maxEpoll       = 256 << 10 // of the descriptor list of an epoll instance, in bytes
)

// ttyDevice is the device number of /dev/tty, which stands for the controlling terminal of the process that opened it.
var ttyDevice = unix.Mkdev(5, 0)

// InspectInput returns how the foreground process group of a terminal reads from that terminal. It takes the master of the terminal and the processes that may
// be in that group. It reads /proc/PID/syscall, which requires permission to ptrace. With Yama (ptrace_scope 1) only an ancestor has this permission, so the
// shim calls this function, not the manager. Without the permission the reader is unknown.
func InspectInput(master *os.File, members []procstat.Process) (facts.Input, error) {
	var input facts.Input
	var i inspection
	var group int
	conn, err := master.SyscallConn()
	if err != nil {
		return input, err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		var modes *unix.Termios
		if modes, failed = unix.IoctlGetTermios(int(fd), unix.TCGETS); failed != nil {
			return
		}
		input.Canonical, input.Echo = modes.Lflag&unix.ICANON != 0, modes.Lflag&unix.ECHO != 0
		if group, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP); failed != nil {
			return
		}
		if i.session, failed = unix.IoctlGetInt(int(fd), unix.TIOCGSID); failed != nil {
			return
		}
		i.device, failed = slaveDevice(int(fd))
	})
	if err := errors.Join(err, failed); err != nil {
		return facts.Input{}, fmt.Errorf("read the state of the terminal: %w", err)
	}
	i.threads = maxThreads
	i.group(group, members)
	input.Reader, input.Program = i.reader, i.program
	return input, nil
}

// slaveDevice returns the device number of the terminal that belongs to a master.
func slaveDevice(master int) (uint64, error) {
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return 0, err
	}
	var stat unix.Stat_t
	err = unix.Stat("/dev/pts/"+strconv.Itoa(number), &stat)
	return stat.Rdev, err
}

// inspection finds the process that reads the terminal with the given device number.
type inspection struct {
	device  uint64
	session int // the session that the terminal controls
	threads int // how many more threads may be inspected

	reader, program string
}

// rank orders the results for several processes or threads: the one that comes last in this list takes precedence.
var rank = []string{facts.ReaderNone, facts.ReaderUnknown, facts.ReaderPoll, facts.ReaderRead}

// group inspects the foreground process group, then the processes of other sessions, such as the session of su -c, because job control does not prevent them
// from reading the terminal. A process of another session counts only if it reads or polls the terminal at this moment.
func (i *inspection) group(group int, members []procstat.Process) {
	best := -1
	inspect := func(s procstat.Stat, least int) {
		reader := i.process(s)
		found := slices.Index(rank, reader)
		if found <= best || found < least {
			return
		}
		best, i.reader, i.program = found, reader, ""
		if found >= slices.Index(rank, facts.ReaderPoll) {
			name, _ := os.ReadFile("/proc/" + strconv.Itoa(s.PID) + "/comm")
			i.program = strings.TrimSuffix(string(name), "\n")
		}
	}
	var others []procstat.Stat
	for _, member := range members {
		s, err := procstat.Read(member.PID)
		switch {
		case err != nil || s.Dead():
		case s.Group == group:
			inspect(s, 0)
		case s.Session != i.session:
			others = append(others, s)
		}
	}
	for _, s := range others {
		inspect(s, slices.Index(rank, facts.ReaderPoll))
	}
}

// process inspects the threads of a process.
func (i *inspection) process(s procstat.Stat) string {
	dir := "/proc/" + strconv.Itoa(s.PID) + "/task/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return facts.ReaderUnknown
	}
	best := 0
	for _, entry := range entries {
		if i.threads--; i.threads < 0 {
			return facts.ReaderUnknown
		}
		call, err := os.ReadFile(dir + entry.Name() + "/syscall")
		reader := facts.ReaderUnknown
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
			continue // the thread has ended
		case err == nil:
			reader = i.thread(s, call)
		}
		best = max(best, slices.Index(rank, reader))
	}
	return rank[best]
}

// thread inspects the system call that a thread is blocked in, as /proc/PID/task/TID/syscall shows it: the number and six arguments, or "running".
func (i *inspection) thread(s procstat.Stat, call []byte) string {
	fields := strings.Fields(string(call))
	if len(fields) < 7 {
		return facts.ReaderUnknown // the thread is running, or is not in a system call
	}
	number, err := strconv.Atoi(fields[0])
	if err != nil {
		return facts.ReaderUnknown
	}
	var args [6]uint64
	for at := range args {
		if args[at], err = strconv.ParseUint(strings.TrimPrefix(fields[at+1], "0x"), 16, 64); err != nil {
			return facts.ReaderUnknown
		}
	}
	var descriptors []int
	switch calls[number] {
	case callRead:
		if i.terminal(s, int(int32(args[0]))) {
			return facts.ReaderRead
		}
		return facts.ReaderNone
	case callPoll:
		descriptors, err = polled(s.PID, args[0], args[1])
	case callSelect:
		descriptors, err = selected(s.PID, args[0], args[1])
	case callEpoll:
		descriptors, err = watchedBy(s.PID, int(int32(args[0])))
	case callRing:
		return facts.ReaderUnknown // the descriptors that the thread waits for are in a kernel queue
	}
	if err != nil {
		return facts.ReaderUnknown
	}
	if slices.ContainsFunc(descriptors, func(fd int) bool { return i.terminal(s, fd) }) {
		return facts.ReaderPoll
	}
	return facts.ReaderNone
}

// terminal reports whether a descriptor of a process is the terminal.
func (i *inspection) terminal(s procstat.Stat, fd int) bool {
	var file unix.Stat_t
	err := unix.Stat("/proc/"+strconv.Itoa(s.PID)+"/fd/"+strconv.Itoa(fd), &file)
	return err == nil && file.Mode&unix.S_IFMT == unix.S_IFCHR && (file.Rdev == i.device || file.Rdev == ttyDevice && s.Session == i.session)
}

// polled returns the descriptors that a poll call waits to read from. Its argument is an array of struct pollfd.
func polled(pid int, address, count uint64) ([]int, error) {
	const size = 8
	if count > maxDescriptors {
		return nil, unix.E2BIG
	}
	memory := make([]byte, count*size)
	if err := readMemory(pid, address, memory); err != nil {
		return nil, err
	}
	var found []int
	for entry := range slices.Chunk(memory, size) {
		if binary.NativeEndian.Uint16(entry[4:])&unix.POLLIN != 0 {
			found = append(found, int(int32(binary.NativeEndian.Uint32(entry))))
		}
	}
	return found, nil
}

// selected returns the descriptors that a select call waits to read from. Its argument is a bit set of machine words.
func selected(pid int, count, address uint64) ([]int, error) {
	const size, width = 8, 64 // a 32-bit little-endian machine has the same layout
	if count > maxDescriptors {
		return nil, unix.E2BIG
	}
	if address == 0 {
		return nil, nil
	}
	set := make([]byte, (count+width-1)/width*size)
	if err := readMemory(pid, address, set); err != nil {
		return nil, err
	}
	var found []int
	for fd := range int(count) {
		if binary.NativeEndian.Uint64(set[fd/width*size:])>>(fd%width)&1 != 0 {
			found = append(found, fd)
		}
	}
	return found, nil
}

// watchedBy returns the descriptors that an epoll instance watches. The numbers are valid in the process that added them, which is almost always process pid.
func watchedBy(pid, epoll int) ([]int, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/fdinfo/" + strconv.Itoa(epoll))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	list, err := io.ReadAll(io.LimitReader(f, maxEpoll))
	if err != nil {
		return nil, err
	}
	var found []int
	for line := range bytes.Lines(list) {
		var fd int
		var events uint32
		if n, _ := fmt.Sscanf(string(line), "tfd: %d events: %x", &fd, &events); n == 2 && events&unix.EPOLLIN != 0 {
			found = append(found, fd)
		}
	}
	return found, nil
}

// readMemory reads an argument of a system call from the memory of the process that is blocked in that call.
func readMemory(pid int, address uint64, into []byte) error {
	if len(into) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: unsafe.SliceData(into)}}
	local[0].SetLen(len(into))
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(into)}}, 0)
	if err == nil && n < len(into) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
