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
	"github.com/berth-dev/berth/internal/shim"
)

// link is what is kept of a UID in memory: nothing that could not be found again.
type link struct {
	runtime *Runtime
	uid     types.UID
	acting  sync.Mutex    // makes changes of one UID one after another
	kicked  chan struct{} // there is a reason to look

	// Guarded by acting.
	gone    bool // forgotten; get another one
	opened  time.Time
	tries   int
	met     []shim.Process // of an adopted tree, when it was looked at last
	swept   time.Time      // when what was left behind was asked to end
	phase   facts.Phase
	trouble string    // that was logged last
	active  time.Time // when something last happened in an adopted session
	told    time.Time // that of active which somebody was woken for

	mu        sync.Mutex
	keep      bool
	following bool
}

// acquire gives the link of a UID, with acting locked.
func (r *Runtime) acquire(uid types.UID) *link {
	for {
		l := r.link(uid)
		l.acting.Lock()
		if !l.gone {
			return l
		}
		l.acting.Unlock()
	}
}

// drop forgets a link. The caller holds it.
func (l *link) drop() {
	l.gone = true
	l.runtime.mu.Lock()
	defer l.runtime.mu.Unlock()
	if l.runtime.links[l.uid] == l {
		delete(l.runtime.links, l.uid)
	}
}

// follow looks after the session from now on, and has a look at once.
func (l *link) follow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kick()
	if !l.following {
		l.following = l.runtime.spawn(l.run)
	}
}

// followed begins to look after the session unless somebody does already.
func (l *link) followed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.following {
		l.following = l.runtime.spawn(l.run)
	}
}

func (l *link) kick() {
	select {
	case l.kicked <- struct{}{}:
	default:
	}
}

// wait returns when one of the processes has ended, when somebody kicks, or after a time; 0 is for ever.
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

// watch tells the end of a process, without a thread that waits for it. The function that it gives ends the watch.
func watch(p shim.Process, ended chan<- struct{}) (stop func()) {
	fd, err := shim.Open(p)
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that the runtime polls it
	}
	if err != nil {
		ended <- struct{}{} // gone, or to be looked at again
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
