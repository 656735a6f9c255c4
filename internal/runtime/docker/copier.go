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
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime/logfile"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 2 * time.Second
	// pastOfAdopted is the maximum age of the output that is copied when a running container is adopted.
	pastOfAdopted = time.Hour
)

// copier copies the output of one container to the log of its UID. The copy is necessary because an engine provides no stable offsets, discards output when it
// rotates logs, and deletes all output with the container.
//
// Without a terminal, copier reads the engine's log (plain.go). With a terminal, copier attaches to the container (screen.go), because an engine logs only
// complete lines, and a prompt is not a complete line.
type copier struct {
	r        *Runtime
	id       string
	number   int64 // the number of the incarnation
	terminal bool
	live     net.Conn // connection attached before the container is started, or nil
	log      *logfile.Writer
	path     string // the path of the progress file
	progress progress
	recent   []int64 // timestamps of the messages that progress.Seen counts; see note

	// shared distributes the output of a terminal to clients, and device is that terminal; both are nil without a terminal.
	shared *shim.Terminal
	device *device

	cancel context.CancelFunc
	done   chan struct{}
}

// progress is how far the output of a container has been copied.
type progress struct {
	Container   string `json:"container"`
	Incarnation int64  `json:"incarnation"`
	// At is a time in ns since 1970. Seen is the number of copied messages that are not older than At. Offset is the size of the log after the last copied
	// message.
	At     int64 `json:"at"`
	Seen   int   `json:"seen"`
	Offset int64 `json:"offset"`
	// Modes are the sequences that set the modes of the terminal before the output at offset ModesAt.
	Modes   string `json:"modes,omitempty"`
	ModesAt int64  `json:"modesAt,omitempty"`
	// Done is true if all output has been copied.
	Done bool `json:"done,omitempty"`
}

// newCopier returns the copier for the container of the record, or nil if all output has been copied. If live is true, the copier is attached to the terminal.
func (r *Runtime) newCopier(ctx context.Context, e *entry, terminal, live bool) (c *copier, err error) {
	d := &e.record
	dir := r.dir(e.uid)
	c = &copier{r: r, id: d.Container, number: d.Incarnation, terminal: terminal, path: filepath.Join(dir, progressFile), done: make(chan struct{})}
	if _, err := statedir.ReadJSON(c.path, &c.progress); err != nil {
		r.log.Error(err, "Cannot read how much output was copied; copying again what the engine retains", "name", d.Name)
		c.progress = progress{}
	}
	same := c.progress.Container == d.Container && c.progress.Incarnation == d.Incarnation
	if same && c.progress.Done {
		return nil, nil
	}
	if c.log, err = logfile.OpenWriter(r.logPath(e.uid), r.options.LogLimit); err != nil {
		return nil, err
	}
	if !same {
		c.progress = progress{Container: d.Container, Incarnation: d.Incarnation, Offset: c.log.Size(), ModesAt: c.log.Size()}
		switch {
		case d.Adopted && d.Started:
			c.progress.At = time.Now().Add(-pastOfAdopted).UnixNano()
		case d.Adopted: // not started yet: skip the output of earlier runs
			c.progress.At = time.Now().UnixNano()
		}
		err = statedir.WriteJSON(c.path, &c.progress, false)
	}
	if err == nil && terminal {
		c.shared, c.device = r.newShared(e)
		err = c.restore(r.logPath(e.uid))
	}
	if err == nil && live {
		c.live, err = c.attach(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow the output: %w", err), c.log.Close())
	}
	return c, nil
}

// begin starts copying in the background, unless the runtime is closed.
func (r *Runtime) begin(e *entry, c *copier) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithCancel(r.Lifetime())
	c.cancel = cancel
	uid := e.uid
	begun := r.Go(func() {
		defer cancel()
		if c.terminal {
			c.device.serve(ctx, c.shared, func() { c.screen(ctx) })
			defer c.shared.Finish()
		} else {
			c.plain(ctx)
		}
		if err := c.log.Close(); err != nil {
			r.log.Error(err, "Cannot close the copy of the output of a container")
		}
		close(c.done)
		r.events.Add(uid)
	})
	if !begun {
		cancel()
		c.discard()
		return
	}
	e.copier, e.drainBy = c, time.Time{}
}

// startCopier continues copying the output of a container that was started, unless a copier is already running.
func (r *Runtime) startCopier(ctx context.Context, e *entry, found *container.InspectResponse) error {
	if e.copier != nil && e.copier.id == e.record.Container && e.copier.number == e.record.Incarnation {
		return nil
	}
	terminal := found.Config.Tty
	r.stopCopier(e)
	c, err := r.newCopier(ctx, e, terminal, false)
	if err != nil {
		return err
	}
	if c != nil && terminal {
		// The program that created an adopted container and runs since then may still be attached to it, and answer.
		c.device.silent = e.record.Adopted && e.record.Before == "" && found.Config.AttachStdin
	}
	r.begin(e, c)
	return nil
}

// stopCopier stops copying at its current position.
func (r *Runtime) stopCopier(e *entry) {
	if e.copier != nil {
		e.copier.cancel()
		<-e.copier.done
		e.copier = nil
	}
}

// discard closes a copier that was never started.
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

// write appends output to the log, and distributes that of a terminal.
func (c *copier) write(p []byte) error { return c.append(p, (*shim.Terminal).Publish) }

// append appends output to the log, and distributes that of a terminal with a method of its Terminal.
func (c *copier) append(p []byte, distribute func(*shim.Terminal, []byte)) error {
	if len(p) == 0 {
		return nil
	}
	if _, err := c.log.Write(p); err != nil {
		return fmt.Errorf("write the copy of the output: %w", err)
	}
	if c.shared != nil {
		distribute(c.shared, p)
		c.noteModes()
	}
	return nil
}

// noteModes records the modes of the terminal before the log loses the output that has set them.
func (c *copier) noteModes() {
	const leastCopied = 128 << 10
	if c.log.Size()-c.progress.ModesAt < max(c.r.options.LogLimit/4, leastCopied) {
		return
	}
	modes, last := c.shared.Modes()
	c.progress.Modes, c.progress.ModesAt = string(modes), c.log.Size()-int64(last)
	c.saveProgress()
}

// restore reads the output that an earlier manager has copied, for the modes and the last output of the terminal.
func (c *copier) restore(path string) error {
	log, err := logfile.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	first, end, err := log.Bounds()
	if err != nil {
		return err
	}
	c.shared.PublishEarlier([]byte(c.progress.Modes))
	buf := make([]byte, 32<<10)
	for at := max(first, c.progress.Offset, c.progress.ModesAt); at < end; {
		n, err := log.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
		if err != nil && !errors.Is(err, io.EOF) || n == 0 {
			return err
		}
		c.shared.PublishEarlier(buf[:n])
		at += int64(n)
	}
	return nil
}

// complete records that all output has been copied.
func (c *copier) complete() {
	c.progress.Done = true
	c.saveProgress()
}

func (c *copier) saveProgress() {
	if err := statedir.WriteJSON(c.path, &c.progress, false); err != nil && c.r.Lifetime().Err() == nil {
		c.r.log.Error(err, "Cannot record how much output was copied")
	}
}

// state inspects the container, and retries until the engine answers. It returns nil if the container does not exist, or if the context has ended.
func (c *copier) state(ctx context.Context) *container.InspectResponse {
	wait := retryFirst
	for ctx.Err() == nil {
		found, err := c.r.inspect(ctx, c.id)
		if err == nil {
			return found
		}
		wait = pause(ctx, wait, retryMost)
	}
	return nil
}

// pause waits before a retry, and returns the next delay, at most most.
func pause(ctx context.Context, wait, most time.Duration) time.Duration {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	return min(2*wait, most)
}

// attach connects to the output of the container.
func (c *copier) attach(ctx context.Context) (net.Conn, error) {
	answer, err := c.r.attach(ctx, c.id, client.ContainerAttachOptions{Stdout: true, Stderr: true})
	return answer.Conn, err
}

// logs reads the engine's log. The caller closes the reader.
func (c *copier) logs(ctx context.Context, options client.ContainerLogsOptions) (io.ReadCloser, error) {
	options.ShowStdout, options.ShowStderr = true, true
	if at := c.progress.At; at > 0 {
		options.Since = fmt.Sprintf("%d.%09d", at/int64(time.Second), at%int64(time.Second))
	}
	return c.r.client.ContainerLogs(ctx, c.id, options)
}

// unreadable reports whether the engine will never return the output of this container.
func unreadable(err error) bool {
	return cerrdefs.IsNotFound(err) || cerrdefs.IsNotImplemented(err) || err != nil && strings.Contains(err.Error(), "does not support reading")
}

// tail returns the last output of a UID, at most 1 KiB.
func (r *Runtime) tail(uid types.UID) []byte {
	log, err := logfile.Open(r.logPath(uid))
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
