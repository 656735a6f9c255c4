// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/shim"
)

// spareDelay is how long nothing may have been started before the next spare is: what runs needs the processor more.
const spareDelay = 20 * time.Millisecond

// spare is a shim that waits for what to hold, at the other end of a socket. The watcher has its pidfd.
type spare struct{ pid, pidfd, socket int }

// spares keeps one of them. One that has ended stays until it is taken, and then turns out to be none: if it ended by itself, so would another. There are none without cgroups: what a shim forks is then known by an environment that a spare cannot have yet.
type spares struct {
	wanted chan struct{}
	mu     sync.Mutex
	ready  *spare
}

// take gives the spare, if there is one, and asks for the next.
func (s *spares) take() *spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := s.ready
	s.ready = nil
	select {
	case s.wanted <- struct{}{}:
	default:
	}
	return ready
}

// keepSpare starts a spare, and the next when that was taken, until the runtime is closed.
func (h *Host) keepSpare() {
	if h.cgroup == "" {
		return
	}
	for timer := time.NewTimer(0); ; {
		select {
		case <-h.spares.wanted:
			timer.Reset(spareDelay)
		case <-timer.C:
			if err := h.readySpare(); err != nil {
				h.log.V(1).Info("No shim is kept ready", "reason", err.Error()) // each start brings its own, and tells when that fails
			}
		case <-h.closed:
			if last := h.spares.take(); last != nil {
				_ = unix.Close(last.socket)
				h.watcher.kill(last.pidfd, last.pid)
				_, _ = await(last.pid)
			}
			return
		}
	}
}

// readySpare starts a spare, unless there is one.
func (h *Host) readySpare() error {
	h.spares.mu.Lock()
	defer h.spares.mu.Unlock()
	if h.spares.ready != nil {
		return nil
	}
	next, err := h.forkSpare()
	if err != nil {
		return err
	}
	if err := h.watcher.watch(next.pidfd, "", next.pid); err != nil { // which closes the pidfd
		_ = unix.Close(next.socket) // and so it ends
		_, _ = await(next.pid)
		return err
	}
	h.spares.ready = next
	return nil
}

func (h *Host) forkSpare() (*spare, error) {
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
		// It stays in our cgroup when it has become a shim: to move it takes the kernel longer than to start one.
		if s.pid, s.pidfd, err = h.execShim(shim.SpareArgs(), h.cgroup, attributes); err == nil {
			return s, nil
		}
	}
	_ = unix.Close(ends[0])
	return nil, err
}

// giveToSpare has the spare hold an incarnation; false when there is none, or it has ended. From then on its end is that of the shim of the UID.
func (h *Host) giveToSpare(uid types.UID, name string, handover *shim.Handover) bool {
	s := h.spares.take()
	if s == nil {
		return false
	}
	defer func() { _ = unix.Close(s.socket) }() // without a word from here it ends
	return h.watcher.assign(s.pidfd, s.pid, uid) && handover.Hand(s.socket, name) == nil
}
