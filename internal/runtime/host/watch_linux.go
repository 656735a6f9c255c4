// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/shim"
)

// watcher reports the exit of shims. It uses one epoll instance for all of their pidfds instead of a goroutine for each.
type watcher struct {
	epoll int
	wake  int // eventfd that ends the loop
	ended func(types.UID)

	mu    sync.Mutex
	shims map[int32]watched
}

type watched struct {
	uid types.UID // empty for a warm shim
	pid int
}

func newWatcher(ended func(types.UID)) (*watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
	}
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("watch processes: %w", err)
	}
	return &watcher{epoll: epoll, wake: wake, ended: ended, shims: map[int32]watched{}}, nil
}

// watch adds a shim to the watched shims. It takes ownership of the pidfd, and closes the pidfd if it returns an error.
func (w *watcher) watch(pidfd int, uid types.UID, pid int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shims == nil {
		_ = unix.Close(pidfd)
		return errors.New("the host runtime is closed")
	}
	w.shims[int32(pidfd)] = watched{uid: uid, pid: pid}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, pidfd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pidfd)}); err != nil {
		delete(w.shims, int32(pidfd))
		_ = unix.Close(pidfd)
		return fmt.Errorf("watch the shim: %w", err)
	}
	return nil
}

func (w *watcher) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, event := range events[:max(n, 0)] {
			if int(event.Fd) == w.wake {
				return
			}
			if shim, ok := w.collect(event.Fd); ok && shim.uid != "" {
				w.ended(shim.uid)
			}
		}
	}
}

// collect removes a shim that has exited, and reaps it if it is a child of this process.
func (w *watcher) collect(fd int32) (watched, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	shim, ok := w.shims[fd]
	if !ok {
		return watched{}, false
	}
	delete(w.shims, fd)
	_, _ = unix.Wait4(shim.pid, nil, unix.WNOHANG, nil)
	_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, int(fd), nil)
	_ = unix.Close(int(fd))
	return shim, true
}

// assign makes a warm shim the shim of a UID. It returns false if the warm shim has exited.
func (w *watcher) assign(pidfd, pid int, uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shims[int32(pidfd)] != (watched{pid: pid}) {
		return false
	}
	w.shims[int32(pidfd)] = watched{uid: uid, pid: pid}
	return true
}

// kill kills a warm shim if the watcher still watches it. Only then is its pidfd known to be valid.
func (w *watcher) kill(pidfd, pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shims[int32(pidfd)] == (watched{pid: pid}) {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	}
}

func (w *watcher) stop() {
	_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// close closes all descriptors of the watcher. It is called after run has returned.
func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for fd := range w.shims {
		_ = unix.Close(int(fd))
	}
	w.shims = nil
	_ = unix.Close(w.wake)
	_ = unix.Close(w.epoll)
}

const eventsName = "events"

// listenEvents opens the socket to which shims send the UIDs of changed objects.
func listenEvents(stateDir string) (*net.UnixConn, error) {
	_ = os.Remove(filepath.Join(stateDir, eventsName))
	var conn *net.UnixConn
	err := inDirectory(stateDir, eventsName, func(address *net.UnixAddr) (err error) {
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

// inDirectory calls the function do with a short address of a socket, whatever the length of its directory path: a socket path is limited to 107 bytes.
func inDirectory(dir, name string, do func(*net.UnixAddr) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return do(&net.UnixAddr{Net: "unix", Name: "/proc/self/fd/" + strconv.Itoa(fd) + "/" + name})
}

// receive reads the events of shims.
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
		if uid := string(buf[:n]); shim.ValidUID(uid) {
			h.changed(types.UID(uid))
		}
	}
}

// ended reports a shim that has exited: it waits until the lock of the shim is free, and then calls changed. The watcher calls ended.
func (h *Host) ended(uid types.UID) {
	// A child that the manager is forking may hold a copy of the lock until its exec. Wait for that exec for at most 20 ms, because the wait delays other events.
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
