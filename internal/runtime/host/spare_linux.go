// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/shim"
)

// spareDelay is how long nothing may have been started before the next spare is: what runs needs the processor more.
const spareDelay = 20 * time.Millisecond

// spare is a shim that waits for what to hold, at the other end of a socket.
type spare struct{ pid, pidfd, socket int }

// spares keeps one of them. There are none without cgroups: what a shim forks is then known by an environment that a spare cannot have yet.
type spares struct {
	wanted chan struct{}
	mu     sync.Mutex
	ready  *spare
}

// take gives the spare, if there is one, and asks for the next.
func (s *spares) take() *spare {
	s.mu.Lock()
	ready := s.ready
	s.ready = nil
	s.mu.Unlock()
	s.want()
	return ready
}

func (s *spares) want() {
	select {
	case s.wanted <- struct{}{}:
	default:
	}
}

// sparesDir is the cgroup of spares, also when they have become shims: to move them would take longer than to start one.
func (h *Host) sparesDir() string { return filepath.Join(h.cgroup, ".spares") } // no UID begins with a dot

// keepSpare starts the next spare when the last was taken, until the runtime is closed.
func (h *Host) keepSpare() {
	if h.cgroup == "" {
		return
	}
	for timer := time.NewTimer(0); ; {
		select {
		case <-h.spares.wanted:
			timer.Reset(spareDelay)
		case <-timer.C:
			h.spares.mu.Lock()
			have := h.spares.ready != nil
			h.spares.mu.Unlock()
			if have {
				continue
			}
			next, err := h.forkSpare()
			if err != nil {
				h.log.V(1).Info("No shim is kept ready", "reason", err.Error()) // each start brings its own, and tells when that fails
				continue
			}
			h.spares.mu.Lock()
			h.spares.ready = next
			h.spares.mu.Unlock()
		case <-h.closed:
			if last := h.spares.take(); last != nil {
				last.end()
			}
			return
		}
	}
}

func (h *Host) forkSpare() (*spare, error) {
	if err := os.Mkdir(h.sparesDir(), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	defer func() { _ = unix.Close(ends[1]) }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		defer func() { _ = null.Close() }()
		s := &spare{socket: ends[0]}
		attributes := &syscall.ProcAttr{Dir: h.options.StateDir, Env: shimEnv(), Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), uintptr(ends[1])}}
		if s.pid, s.pidfd, err = h.execShim(shim.SpareArgs(), h.sparesDir(), attributes); err == nil {
			return s, nil
		}
	}
	_ = unix.Close(ends[0])
	return nil, err
}

// hand makes the spare the shim of an incarnation. With an error it is gone, and was none.
func (s *spare) hand(handover *shim.Handover, name string) (pid, pidfd int, err error) {
	if err := handover.Hand(s.socket, name); err != nil {
		s.end()
		return 0, -1, err
	}
	_ = unix.Close(s.socket)
	return s.pid, s.pidfd, nil
}

// end ends a spare that holds nothing, and waits for that.
func (s *spare) end() {
	_ = unix.Close(s.socket)
	_ = unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0)
	_ = await(s.pid)
	_ = unix.Close(s.pidfd)
}
