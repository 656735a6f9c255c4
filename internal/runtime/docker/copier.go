// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/logfile"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 2 * time.Second
	// pastOfAdopted is how much of the output of a container is taken that ran before it was adopted.
	pastOfAdopted = time.Hour
)

// copier copies the output of one container into the log of its UID: an engine gives no offsets that stay valid, forgets when it rotates, and
// removes all with the container.
//
// Without a terminal it reads what the engine has logged (plain.go); a terminal is listened to directly, as an engine logs whole lines only and
// a prompt is none (screen.go).
type copier struct {
	r        *Runtime
	id       string
	number   int64 // of the incarnation
	terminal bool
	live     net.Conn // attached before the container is started; nil otherwise
	log      *logfile.Writer
	path     string // of the progress
	progress progress
	recent   []int64 // see note

	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed when there is more
}

// progress says how far the output of a container was copied.
type progress struct {
	Container   string `json:"container"`
	Incarnation int64  `json:"incarnation"`
	// At, in ns since 1970, Seen and Offset: after the first Seen messages that are not older than At the log ended at Offset.
	At     int64 `json:"at"`
	Seen   int   `json:"seen"`
	Offset int64 `json:"offset"`
	// Done: there is no more.
	Done bool `json:"done,omitempty"`
}

// newCopier makes the copier of the container of the record; nil when all was copied. With live it is attached to the terminal already.
func (r *Runtime) newCopier(ctx context.Context, e *entry, terminal, live bool) (c *copier, err error) {
	d := &e.record
	dir := r.dir(e.uid)
	c = &copier{r: r, id: d.Container, number: d.Incarnation, terminal: terminal, path: filepath.Join(dir, progressFile), done: make(chan struct{}), changed: make(chan struct{})}
	if _, err := shim.ReadFile(c.path, &c.progress); err != nil {
		r.log.Error(err, "How far output was copied is not known; what the engine still has is copied again", "name", d.Name)
		c.progress = progress{}
	}
	same := c.progress.Container == d.Container && c.progress.Incarnation == d.Incarnation
	if same && c.progress.Done {
		return nil, nil
	}
	if c.log, err = logfile.OpenWriter(filepath.Join(dir, logFile), r.options.LogLimit); err != nil {
		return nil, err
	}
	if !same {
		c.progress = progress{Container: d.Container, Incarnation: d.Incarnation, Offset: c.log.Size()}
		switch {
		case d.Adopted && d.Started:
			c.progress.At = time.Now().Add(-pastOfAdopted).UnixNano()
		case d.Adopted: // what it said in the life before was copied then
			c.progress.At = time.Now().UnixNano()
		}
		err = shim.WriteFile(c.path, &c.progress, false)
	}
	if err == nil && live {
		c.live, err = r.attach(ctx, c.id, client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true, DetachKeys: detachKeys})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow the output: %w", err), c.log.Close())
	}
	return c, nil
}

// begin copies in the background from now on.
func (r *Runtime) begin(e *entry, c *copier) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithCancel(r.ctx)
	c.cancel = cancel
	e.copier, e.drainBy = c, time.Time{}
	uid := e.uid
	r.loops.Go(func() {
		defer cancel()
		if c.terminal {
			c.screen(ctx)
		} else {
			c.plain(ctx)
		}
		if err := c.log.Close(); err != nil {
			r.log.Error(err, "Closing the copy of the output of a container")
		}
		close(c.done)
		r.events.Tell(uid)
	})
}

// startCopier goes on with the output of a container that was started, unless that is done already.
func (r *Runtime) startCopier(ctx context.Context, e *entry, terminal bool) error {
	if e.copier != nil && e.copier.id == e.record.Container && e.copier.number == e.record.Incarnation {
		return nil
	}
	r.stopCopier(e)
	c, err := r.newCopier(ctx, e, terminal, false)
	if err != nil {
		return err
	}
	r.begin(e, c)
	return nil
}

// stopCopier stops copying, wherever it stands.
func (r *Runtime) stopCopier(e *entry) {
	if e.copier != nil {
		e.copier.cancel()
		<-e.copier.done
		e.copier = nil
	}
}

// discard gives up a copier that was never begun.
func (c *copier) discard() {
	if c == nil {
		return
	}
	if c.live != nil {
		_ = c.live.Close()
	}
	_ = c.log.Close()
}

func (c *copier) finished() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// write appends to the log and tells whoever reads along.
func (c *copier) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if _, err := c.log.Write(p); err != nil {
		return fmt.Errorf("write the copy of the output: %w", err)
	}
	c.mu.Lock()
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	return nil
}

// more is closed as soon as there is more than there was when it was called.
func (c *copier) more() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// complete records that there is no more.
func (c *copier) complete() {
	c.progress.Done = true
	c.saveProgress()
}

func (c *copier) saveProgress() {
	if err := shim.WriteFile(c.path, &c.progress, false); err != nil && c.r.ctx.Err() == nil {
		c.r.log.Error(err, "Recording how far output was copied")
	}
}

// state looks at the container until the engine answers: nil when it is gone, or when the context has ended.
func (c *copier) state(ctx context.Context) *container.InspectResponse {
	wait := retryFirst
	for ctx.Err() == nil {
		found, err := c.r.inspect(ctx, c.id)
		if err == nil {
			return found
		}
		wait = pause(ctx, wait)
	}
	return nil
}

// pause waits before something is tried again, and gives the next time to wait.
func pause(ctx context.Context, wait time.Duration) time.Duration {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	return min(2*wait, retryMost)
}

// logs reads what the engine has logged. Its reader has to be closed.
func (c *copier) logs(ctx context.Context, options client.ContainerLogsOptions) (io.ReadCloser, error) {
	options.ShowStdout, options.ShowStderr = true, true
	if at := c.progress.At; at > 0 {
		options.Since = fmt.Sprintf("%d.%09d", at/int64(time.Second), at%int64(time.Second))
	}
	return c.r.client.ContainerLogs(ctx, c.id, options)
}

// unreadable says whether the engine will never give the output of this container.
func unreadable(err error) bool {
	return cerrdefs.IsNotFound(err) || cerrdefs.IsNotImplemented(err) || err != nil && strings.Contains(err.Error(), "does not support reading")
}

// OpenLog implements runtime.Logs.
func (r *Runtime) OpenLog(_ context.Context, uid types.UID) (runtime.Log, error) {
	if !shim.ValidUID(string(uid)) {
		return nil, fmt.Errorf("log of %q: %w", uid, runtime.ErrNotFound)
	}
	log, err := logfile.Open(filepath.Join(r.dir(uid), logFile))
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", uid, err)
	}
	return log, nil
}

// tail gives the last output of a UID, a kilobyte at most.
func (r *Runtime) tail(uid types.UID) []byte {
	log, err := logfile.Open(filepath.Join(r.dir(uid), logFile))
	if err != nil {
		return nil
	}
	defer func() { _ = log.Close() }()
	first, end, err := log.Bounds()
	if err != nil {
		return nil
	}
	tail := make([]byte, min(end-first, 1<<10))
	n, _ := log.ReadAt(tail, end-int64(len(tail)))
	return tail[:n]
}
