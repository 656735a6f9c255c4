// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
)

// maxAncestors bounds how many ancestors of a process are read.
const maxAncestors = 256

// peer is the process at the other end of a connection, as the kernel recorded it when the process connected.
type peer struct {
	pid   int
	user  uint32
	pidfd int // -1 if the kernel is older than Linux 6.5
}

func (p *peer) Close() {
	if p.pidfd >= 0 {
		_ = unix.Close(p.pidfd)
	}
}

// userOf returns the user that the kernel recorded for the process that has connected.
func userOf(conn *net.UnixConn) (user uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	return credentials.Uid, nil
}

// peerOf returns the process that has connected. The caller must close it.
func peerOf(conn *net.UnixConn) (*peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	p, failed := &peer{pidfd: -1}, error(nil)
	err = raw.Control(func(fd uintptr) {
		var credentials *unix.Ucred
		if credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed != nil {
			return
		}
		p.pid, p.user = int(credentials.Pid), credentials.Uid
		pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		switch {
		case err == nil:
			p.pidfd = pidfd
			unix.CloseOnExec(pidfd)
		case !errors.Is(err, unix.ENOPROTOOPT):
			failed = err // the process has exited
		}
	})
	if err := errors.Join(err, failed); err != nil {
		p.Close()
		return nil, fmt.Errorf("identify the process that has connected: %w", err)
	}
	if p.pid <= 0 {
		p.Close()
		return nil, errors.New("the process that has connected is not in the PID namespace of the manager")
	}
	return p, nil
}

// lineage returns the process and its ancestors, the nearest first. It returns an error if the process has exited: its PID may belong to another process then.
func (p *peer) lineage() ([]procstat.Process, error) {
	child, err := procstat.Read(p.pid)
	if err != nil {
		return nil, err
	}
	all := []procstat.Process{child.Process}
	for child.Parent > 1 && len(all) < maxAncestors {
		parent, err := procstat.Read(child.Parent)
		if err != nil {
			return nil, err
		}
		// While the child has this parent, no other process has the PID of the parent.
		if again, err := procstat.Read(child.PID); err != nil || again.Process != child.Process || again.Parent != parent.PID {
			return nil, errors.Join(procstat.ErrGone, err)
		}
		all, child = append(all, parent.Process), parent
	}
	return all, p.check(all[0])
}

// check returns an error unless the process that has connected still exists and is self, the process that has its PID.
func (p *peer) check(self procstat.Process) error {
	if p.pidfd < 0 {
		alive, err := procstat.Alive(self)
		if err == nil && !alive {
			err = procstat.ErrGone
		}
		return err
	}
	if ended, _ := procstat.Ended(p.pidfd); ended {
		return procstat.ErrGone
	}
	return nil
}

// owns returns an error unless a program and the process that has connected run as the same user.
func (p *peer) owns(program procstat.Process) error {
	users, err := procstat.Users(program)
	if err != nil {
		return err
	}
	for _, user := range users {
		if user != p.user {
			return fmt.Errorf("the process that has connected runs as user %d, and the program as user %d", p.user, user)
		}
	}
	return nil
}
