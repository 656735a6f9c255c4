// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// notice reports that a watched log has grown, or was removed or renamed: at most once for each call of Watch, even if the log grows
// continuously. If events may be lost, because too many logs have grown at once, it reports all watched logs. It uses one inotify instance for all logs.
type notice struct {
	tell    func(types.UID)
	watcher *fsnotify.Watcher
	reading sync.WaitGroup

	mu   sync.Mutex
	uids map[string]types.UID // by path
}

// newNotice returns a notice that calls tell from one goroutine; tell must not block.
func newNotice(tell func(types.UID)) (*notice, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch for output (inotify; see fs.inotify.max_user_instances): %w", err)
	}
	n := &notice{tell: tell, watcher: watcher, uids: map[string]types.UID{}}
	n.reading.Go(n.read)
	return n, nil
}

// Watch requests one notification for the UID when its log is next written to. It returns runtime.ErrNotFound if the log does not exist.
func (n *notice) Watch(uid types.UID, path string) error {
	if n == nil {
		return errors.ErrUnsupported
	}
	n.mu.Lock() // so that fired does not handle the event before uids contains the path
	defer n.mu.Unlock()
	err := n.watcher.Add(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = runtime.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("watch the output: %w", err)
	}
	n.uids[path] = uid
	return nil
}

// Close stops the notifications. No notification is sent after Close returns.
func (n *notice) Close() error {
	if n == nil {
		return nil
	}
	err := n.watcher.Close()
	n.reading.Wait()
	return err
}

func (n *notice) read() {
	for {
		select {
		case event, open := <-n.watcher.Events:
			if !open {
				return
			}
			if uid, watched := n.fired(event); watched {
				n.tell(uid)
			}
		case _, open := <-n.watcher.Errors: // events may be lost, and a program that asks a question writes no more
			if !open {
				return
			}
			for _, uid := range n.doubted() {
				n.tell(uid)
			}
		}
	}
}

// doubted ends all watches and returns their UIDs.
func (n *notice) doubted() []types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	uids := slices.Collect(maps.Values(n.uids))
	for path := range n.uids {
		_ = n.watcher.Remove(path) // fails if the log was removed
	}
	clear(n.uids)
	return uids
}

// fired ends the watch of a log that has grown, or was removed or renamed. It returns the UID, and whether its log was watched. The removal of an earlier log
// with the same path may end the watch of a new one, so fired also reports removals.
func (n *notice) fired(event fsnotify.Event) (uid types.UID, watched bool) {
	if !event.Has(fsnotify.Write) && !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Rename) {
		return "", false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	uid, watched = n.uids[event.Name]
	delete(n.uids, event.Name)
	_ = n.watcher.Remove(event.Name) // fails if the log was removed
	return uid, watched
}
