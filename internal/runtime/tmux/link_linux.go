// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
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
	met        []procstat.Process // members of an adopted tree at the last check
	leftovers  shim.Leftovers
	phase      facts.Phase
	lastLogged string    // last logged error
	active     time.Time // last activity in an adopted session
	told       time.Time // the value of active at the last notification

	mu        sync.Mutex
	keep      bool
	following bool
}

// follow requests an immediate check of the session, and starts the goroutine that maintains the session.
func (l *link) follow() {
	l.kick()
	l.followed()
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
func (l *link) wait(ctx context.Context, limit time.Duration, processes []procstat.Process) {
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

// watch sends a value to the given channel when the process exits, or immediately if it cannot be watched. The returned function stops the watch.
func watch(p procstat.Process, ended chan<- struct{}) (stop func()) {
	pidfd, err := procstat.OpenFile(p)
	if err != nil {
		ended <- struct{}{} // the process is gone, or the caller must check it again
		return func() {}
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if procstat.Wait(pidfd) {
			ended <- struct{}{}
		}
	})
	return func() {
		_ = pidfd.Close()
		waiting.Wait()
	}
}
