// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Notice reports that a watched log has grown: once for each call of Watch, even if the log grows continuously. It uses one inotify instance for all logs.
type Notice struct {
	tell   func(types.UID)
	file   *os.File
	raised chan struct{} // closed when the reader has returned

	mu      sync.Mutex
	watches map[int32]types.UID
}

// NewNotice starts listening. It calls tell from one goroutine; tell must not block.
func NewNotice(tell func(types.UID)) (*Notice, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch for output (inotify; see fs.inotify.max_user_instances): %w", err)
	}
	n := &Notice{tell: tell, file: os.NewFile(uintptr(fd), "inotify"), raised: make(chan struct{}), watches: map[int32]types.UID{}}
	go n.read()
	return n, nil
}

// Watch requests one notification for the UID when its log is next written to. It returns runtime.ErrNotFound if the log does not exist.
func (n *Notice) Watch(uid types.UID, path string) error {
	if n == nil {
		return errors.ErrUnsupported
	}
	raw, err := n.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch the output: %w", err)
	}
	n.mu.Lock() // so that fired does not handle the event before watches contains the UID
	defer n.mu.Unlock()
	var failed error
	err = raw.Control(func(fd uintptr) {
		var watch int
		if watch, failed = unix.InotifyAddWatch(int(fd), path, unix.IN_MODIFY|unix.IN_ONESHOT); failed == nil {
			n.watches[int32(watch)] = uid
		}
	})
	if errors.Is(failed, unix.ENOENT) {
		failed = runtime.ErrNotFound
	}
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("watch the output: %w", err)
	}
	return nil
}

// Close stops the notifications. No notification is sent after Close returns.
func (n *Notice) Close() error {
	if n == nil {
		return nil
	}
	err := n.file.Close()
	<-n.raised
	return err
}

func (n *Notice) read() {
	defer close(n.raised)
	buffer := make([]byte, 16<<10)
	for {
		size, err := n.file.Read(buffer)
		if err != nil {
			return // closed
		}
		for _, uid := range n.fired(buffer[:size]) {
			n.tell(uid)
		}
	}
}

// fired returns the UIDs of the events, and removes the watches that have ended.
func (n *Notice) fired(events []byte) []types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	var uids []types.UID
	for in := bytes.NewReader(events); in.Len() >= unix.SizeofInotifyEvent; {
		var event unix.InotifyEvent
		if binary.Read(in, binary.NativeEndian, &event) != nil {
			break
		}
		_, _ = in.Seek(int64(event.Len), 1)
		if uid, known := n.watches[event.Wd]; known {
			delete(n.watches, event.Wd)
			if event.Mask&unix.IN_MODIFY != 0 { // otherwise the log was removed
				uids = append(uids, uid)
			}
		}
	}
	return uids
}
