// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/background"
	"github.com/berth-dev/berth/internal/shim"
)

// link is the in-memory state of a UID. All of it can be rebuilt after a restart of the manager.
type link struct {
	background.Entry

	runtime *Runtime
	uid     types.UID
	kicked  chan struct{} // requests an immediate check

	// Guarded by the lock of the entry.
	opened     time.Time
	tries      int
	met        []shim.Process // members of an adopted tree at the last check
	leftovers  shim.Leftovers
	phase      facts.Phase
	lastLogged string    // last logged error
	active     time.Time // last activity in an adopted session
	told       time.Time // the value of active at the last notification

	mu        sync.Mutex
	keep      bool
	following bool
}

// follow requests an immediate check of the session. It starts the goroutine that maintains the session, unless that goroutine is already running.
func (l *link) follow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kick()
	if !l.following {
		l.following = l.runtime.Go(l.run)
	}
}

// followed starts the goroutine that maintains the session, unless that goroutine is already running.
func (l *link) followed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.following {
		l.following = l.runtime.Go(l.run)
	}
}

func (l *link) kick() {
	select {
	case l.kicked <- struct{}{}:
	default:
	}
}

// wait returns when one of the processes has exited, when the method kick is called, when the time limit has passed (0 means no limit), or when ctx is done.
func (l *link) wait(ctx context.Context, limit time.Duration, processes []shim.Process) {
	ended := make(chan struct{}, len(processes))
	for _, p := range processes {
		if p.PID != 0 {
			defer watch(p, ended)()
		}
	}
	var expired <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-ctx.Done():
	case <-l.kicked:
	case <-expired:
	case <-ended:
	}
}

// watch sends a value to the given channel when the process exits. No thread blocks meanwhile, because the Go runtime polls the pidfd. The returned function
// stops the watch.
func watch(p shim.Process, ended chan<- struct{}) (stop func()) {
	fd, err := shim.Open(p)
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that the Go runtime polls the descriptor
	}
	if err != nil {
		ended <- struct{}{} // the process is gone, or the caller must check it again
		return func() {}
	}
	file := os.NewFile(uintptr(fd), "process")
	raw, err := file.SyscallConn()
	if err != nil {
		ended <- struct{}{}
		return func() { _ = file.Close() }
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		over := false
		_ = raw.Read(func(fd uintptr) bool {
			over, _ = shim.Ended(int(fd))
			return over
		})
		if over {
			ended <- struct{}{}
		}
	})
	return func() {
		_ = file.Close()
		waiting.Wait()
	}
}
