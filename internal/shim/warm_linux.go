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

// A warm shim is started before it is needed and waits for a workload, so that a start costs a message instead of an exec. While it waits, its process
// name is WarmShimName, and lockFD is a socket to the manager. It exits when the manager closes that socket or exits.

// WarmShimName is the process name of a warm shim. When it receives a workload, it takes the name and argument of a regular shim.
const WarmShimName = "berth-warm-shim"

// titleRoom is the number of bytes available for the later name and argument.
const titleRoom = 300

// WarmShimArgs returns the arguments with which a warm shim is started.
func WarmShimArgs() []string {
	return []string{WarmShimName + strings.Repeat(" ", titleRoom-len(WarmShimName))}
}

// Handover holds the open descriptors passed to a warm shim: the directory of the UID, the diagnostics file, and the files that become lockFD and launchFD.
type Handover struct{ Dir, Diagnostics, Lock, Launch int }

// Hand passes the descriptors to the warm shim at the other end of a socket. The warm shim becomes a regular shim; ps then shows name as its argument.
func (h *Handover) Hand(socket int, name string) error {
	// The flags avoid a signal if the peer has exited, and avoid blocking: the socket buffer has space for one message.
	return unix.Sendmsg(socket, []byte("berth-shim\x00"+name), unix.UnixRights(h.Dir, h.Diagnostics, h.Lock, h.Launch), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// await blocks until the warm shim receives a workload, and sets up the working directory and the descriptors that a regular shim has at its start. It returns
// false if the manager has closed the socket.
func await(title string) (bool, error) {
	text, control := make([]byte, titleRoom), make([]byte, unix.CmsgSpace(4*4))
	var n, controlled int
	for {
		var err error
		if n, controlled, _, _, err = unix.Recvmsg(lockFD, text, control, unix.MSG_CMSG_CLOEXEC); err == nil {
			break
		} else if !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("receive the workload: %w", err)
		}
	}
	if n == 0 {
		return false, nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlled])
	if err != nil || len(messages) != 1 {
		return false, errors.Join(errors.New("receive the workload: the message does not have exactly one set of file descriptors"), err)
	}
	given, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(given) != 4 {
		return false, errors.Join(fmt.Errorf("receive the workload: got %d file descriptors instead of 4", len(given)), err)
	}
	handover := Handover{given[0], given[1], given[2], given[3]}
	if err := handover.settle(); err != nil {
		return false, err
	}
	rename(title, text[:n])
	return true, nil
}

// settle moves each descriptor to the number that a shim expects. Each number is free by the time it is used.
func (h *Handover) settle() error {
	err := errors.Join(unix.Fchdir(h.Dir), unix.Close(h.Dir), unix.Dup3(h.Diagnostics, unix.Stderr, 0), unix.Close(h.Diagnostics),
		unix.Dup3(h.Lock, lockFD, unix.O_CLOEXEC), unix.Close(h.Lock))
	if h.Launch != launchFD {
		err = errors.Join(err, unix.Dup3(h.Launch, launchFD, unix.O_CLOEXEC), unix.Close(h.Launch))
	}
	return err
}

// rename changes what ps shows, by overwriting the arguments in memory: the kernel reads them from there, and Go does not copy them.
func rename(title string, to []byte) {
	memory := unsafe.Slice(unsafe.StringData(title), len(title))
	clear(memory[copy(memory, to):])
}
