// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// watcher reports the exit of shims, and reaps those that are children of the manager.
type watcher struct {
	ended   func(types.UID)
	waiting sync.WaitGroup

	mu     sync.Mutex
	closed bool
	shims  map[*watched]struct{}
}

// watched is a shim that has not exited.
type watched struct {
	pid   int
	pidfd *os.File
	uid   types.UID // empty for a warm shim (see warm_linux.go); guarded by the lock of the watcher
}

func newWatcher(ended func(types.UID)) *watcher {
	return &watcher{ended: ended, shims: map[*watched]struct{}{}}
}

// watch adds a shim to the watched shims. It takes ownership of the pidfd, and closes the pidfd if it returns an error.
func (w *watcher) watch(pidfd int, uid types.UID, pid int) (*watched, error) {
	file, err := procstat.NewFile(pidfd)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errors.Join(errors.New("the host runtime is closed"), file.Close())
	}
	s := &watched{pid: pid, pidfd: file, uid: uid}
	w.shims[s] = struct{}{}
	w.waiting.Go(func() {
		if uid := w.await(s); uid != "" {
			w.ended(uid)
		}
	})
	return s, nil
}

// await waits until a shim has exited, and reaps it if it is a child of this process. It returns the UID of its object; empty if there is nothing to report.
func (w *watcher) await(s *watched) types.UID {
	exited := procstat.Wait(s.pidfd)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !exited {
		return "" // the watcher was closed
	}
	delete(w.shims, s)
	_ = s.pidfd.Close()
	_, _ = unix.Wait4(s.pid, nil, unix.WNOHANG, nil)
	return s.uid
}

// assign makes a warm shim the shim of a UID. It returns false if the warm shim has exited.
func (w *watcher) assign(s *watched, uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, alive := w.shims[s]; !alive {
		return false
	}
	s.uid = uid
	return true
}

// kill kills a warm shim. It does nothing if the watcher has reaped the shim, because the PID may then belong to another process.
func (w *watcher) kill(s *watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, alive := w.shims[s]; alive {
		_ = unix.Kill(s.pid, unix.SIGKILL)
	}
}

// close ends the watch of all shims, which continue to run.
func (w *watcher) close() {
	w.mu.Lock()
	w.closed = true
	for s := range w.shims {
		_ = s.pidfd.Close()
	}
	w.mu.Unlock()
	w.waiting.Wait()
}

const eventsName = "events"

// listenEvents opens the socket to which shims send the UIDs of changed objects.
func listenEvents(stateDir string) (*net.UnixConn, error) {
	_ = os.Remove(filepath.Join(stateDir, eventsName))
	var conn *net.UnixConn
	err := shim.InDirectory(stateDir, eventsName, func(address *net.UnixAddr) (err error) {
		address.Net = "unixgram"
		conn, err = net.ListenUnixgram("unixgram", address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("receive events of the shims: %w", err)
	}
	_ = os.Chmod(filepath.Join(stateDir, eventsName), 0o600)
	return conn, nil
}

// receive reads the UIDs that shims send, and calls changed for each, until the socket is closed.
func (h *Host) receive() {
	buf := make([]byte, 256)
	for {
		n, _, err := h.socket.ReadFromUnix(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		if uid := types.UID(buf[:n]); runtime.ValidUID(uid) {
			h.changed(uid)
		}
	}
}

// ended reports that a shim has exited. The watcher calls it.
func (h *Host) ended(uid types.UID) {
	// A child that the manager is forking may hold a copy of the lock until its exec. Wait for that exec for at most 20 ms, because the wait delays the event.
	for range 20 {
		if held, _ := lockHeld(filepath.Join(h.dir(uid), shim.LockFile)); !held {
			break
		}
		time.Sleep(time.Millisecond)
	}
	h.changed(uid)
}

// changed emits an event for a UID and inspects the UID. The inspection opens the pidfds that the host needs to observe later changes.
func (h *Host) changed(uid types.UID) {
	h.events.Add(uid) // first, so that receivers can start while the state is read
	e, err := h.acquire(uid)
	if err != nil {
		return
	}
	found := h.inspect(e)
	h.release(e, found.exists)
}
