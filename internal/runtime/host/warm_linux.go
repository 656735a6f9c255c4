// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/shim"
)

// warmShimDelay is the time from the last start of a process to the start of the next warm shim. It keeps the warm shim from competing with workloads for the CPU.
const warmShimDelay = 20 * time.Millisecond

// warmShim is a warm shim that waits for a workload at the other end of a socket.
type warmShim struct {
	*watched
	socket *os.File
}

// warmShims keeps one warm shim. A warm shim that has exited is not replaced until a start takes it and giveToWarmShim fails, because a replacement would probably
// exit too. Without cgroups there are no warm shims: descendants are then identified by an environment variable of the shim, whose value depends on the start.
type warmShims struct {
	wanted chan struct{}
	mu     sync.Mutex
	ready  *warmShim
}

// take returns the warm shim, or nil, and requests the next.
func (s *warmShims) take() *warmShim {
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

// keepWarmShim starts a warm shim, and another after each one is taken, until the runtime is closed.
func (h *Host) keepWarmShim() {
	if h.cgroup == "" {
		return
	}
	for timer := time.NewTimer(0); ; {
		select {
		case <-h.warm.wanted:
			timer.Reset(warmShimDelay)
		case <-timer.C:
			if err := h.readyWarmShim(); err != nil {
				h.log.V(1).Info("Cannot start a warm shim", "reason", err.Error()) // no error: each start then forks its own shim and reports its failure
			}
		case <-h.closed:
			if last := h.warm.take(); last != nil {
				_ = last.socket.Close()
				h.watcher.kill(last.watched)
				_, _ = await(last.pid)
			}
			return
		}
	}
}

// readyWarmShim starts a warm shim, unless there is one.
func (h *Host) readyWarmShim() error {
	h.warm.mu.Lock()
	defer h.warm.mu.Unlock()
	if h.warm.ready != nil {
		return nil
	}
	ready, err := h.forkWarmShim()
	h.warm.ready = ready
	return err
}

func (h *Host) forkWarmShim() (warm *warmShim, err error) {
	ours, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = theirs.Close()
		if err != nil {
			_ = ours.Close() // makes the warm shim exit
		}
	}()
	// After it becomes the shim of a UID, a warm shim stays in the cgroup of the install, because moving a process takes the kernel longer than starting one.
	pid, pidfd, err := h.execShim(shim.WarmShimArgs(), "", h.cgroup, h.options.StateDir, nil, theirs)
	if err != nil {
		return nil, err
	}
	watched, err := h.watcher.watch(pidfd, "", pid)
	if err != nil {
		_ = ours.Close() // the warm shim exits
		_, _ = await(pid)
		return nil, err
	}
	return &warmShim{watched, ours}, nil
}

// giveToWarmShim passes an incarnation to the warm shim. It returns false if there is no warm shim, if the warm shim has exited, or if the handover fails. If
// giveToWarmShim returns true, the warm shim is now the shim of uid, and the watcher reports its exit.
func (h *Host) giveToWarmShim(uid types.UID, name string, handover *shim.Handover) bool {
	s := h.warm.take()
	if s == nil {
		return false
	}
	defer func() { _ = s.socket.Close() }() // without a message the warm shim exits
	return h.watcher.assign(s.watched, uid) && handover.Hand(int(s.socket.Fd()), name) == nil
}
