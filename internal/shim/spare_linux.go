// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A spare is a shim that was started before it is needed, and waits for what to hold: a start then costs a message instead of a program. It is called
// SpareName until then, has a socket in place of LockFD, and ends when its manager is gone.

// SpareName is what a spare is called; as a shim it gets the name and the argument of any other.
const SpareName = "berth-spare"

// spareRoom is how many bytes its name and argument may have as a shim.
const spareRoom = 300

// SpareArgs are the arguments with which a spare is started.
func SpareArgs() []string { return []string{SpareName + strings.Repeat(" ", spareRoom-len(SpareName))} }

// Handover is what a spare is given, all of it open: the directory of the UID, the file of its diagnostics, and what LockFD and LaunchFD are.
type Handover struct{ Dir, Diagnostics, Lock, Launch int }

// Hand makes a shim of the spare at the other end of a socket: as one that holds what is called name.
func (h *Handover) Hand(socket int, name string) error {
	// No signal when nobody is there any more, and no wait: there is room for one message.
	return unix.Sendmsg(socket, []byte("berth-shim\x00"+name), unix.UnixRights(h.Dir, h.Diagnostics, h.Lock, h.Launch), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// await is the life of a spare: it returns when there is something to hold, with all that a shim finds at its start; false when there will not be.
func await(title string) (bool, error) {
	text, control := make([]byte, spareRoom), make([]byte, unix.CmsgSpace(4*4))
	var n, controlled int
	for {
		var err error
		if n, controlled, _, _, err = unix.Recvmsg(LockFD, text, control, unix.MSG_CMSG_CLOEXEC); err == nil {
			break
		} else if !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for what to hold: %w", err)
		}
	}
	if n == 0 {
		return false, nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlled])
	if err != nil || len(messages) != 1 {
		return false, errors.Join(errors.New("what to hold did not come in one piece"), err)
	}
	given, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(given) != 4 {
		return false, errors.Join(fmt.Errorf("of what to hold %d files of 4 came", len(given)), err)
	}
	handover := Handover{given[0], given[1], given[2], given[3]}
	if err := handover.settle(); err != nil {
		return false, err
	}
	rename(title, text[:n])
	return true, nil
}

// settle puts everything where a shim has it. Each number is free by the time that it is taken.
func (h *Handover) settle() error {
	err := errors.Join(unix.Fchdir(h.Dir), unix.Close(h.Dir), unix.Dup3(h.Diagnostics, unix.Stderr, 0), unix.Close(h.Diagnostics),
		unix.Dup3(h.Lock, LockFD, unix.O_CLOEXEC), unix.Close(h.Lock))
	if h.Launch != LaunchFD {
		err = errors.Join(err, unix.Dup3(h.Launch, LaunchFD, unix.O_CLOEXEC), unix.Close(h.Launch))
	}
	return err
}

// rename changes what ps shows, which is where the arguments are in memory: the system has them from there, and Go does not copy them.
func rename(title string, to []byte) {
	memory := unsafe.Slice(unsafe.StringData(title), len(title))
	clear(memory[copy(memory, to):])
}
