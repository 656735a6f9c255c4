// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// mostLog is how much output one reader buffers, in bytes. Older output is dropped.
	mostLog = 1 << 20
	// perIncarnation is the difference between the first offsets of successive incarnations, in bytes. No output is that long, so an offset means the same
	// position for every reader.
	perIncarnation = 1 << 40
	// logRetry is the delay before a failed read of the log is retried.
	logRetry = time.Second
)

// OpenLog implements runtime.Logs. The node stores the output; the Runtime reads it through the API server while the log is open. The log contains only the
// output of the newest incarnation, beginning with the oldest output that the node still has. The output of incarnation n begins at offset n << 40.
func (r *Runtime) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	newest, err := r.newest(ctx, uid)
	if err != nil {
		return nil, fmt.Errorf("open the output of %s: %w", uid, err)
	}
	l := &podLog{runtime: r, uid: uid, grown: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(r.tasks.Lifetime())
	// The existing output is readable as soon as the log is open.
	text, err := r.output(ctx, newest)
	if err != nil {
		l.cancel()
		return nil, fmt.Errorf("read the output of %s: %w", uid, err)
	}
	l.begin(newest)
	l.add(text)
	l.follower.Go(l.follow)
	return l, nil
}

// output reads the existing output.
func (r *Runtime) output(ctx context.Context, p *corev1.Pod) ([]byte, error) {
	if !hasOutput(p) {
		return nil, nil
	}
	stream, err := r.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: Container}).Stream(ctx)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(stream)
	return text, errors.Join(err, stream.Close())
}

// hasOutput reports whether a node has started the program's container. Before that, the output cannot be requested.
func hasOutput(p *corev1.Pod) bool {
	main := mainStatus(p)
	return main != nil && main.ContainerID != "" && (main.State.Running != nil || main.State.Terminated != nil)
}

// podLog is an open log.
type podLog struct {
	runtime  *Runtime
	uid      types.UID
	ctx      context.Context
	cancel   context.CancelFunc
	follower sync.WaitGroup

	mu    sync.Mutex
	pod   types.UID // the Pod that wrote text
	first int64     // offset of text
	text  []byte
	grown chan struct{} // closed on the next change
}

// begin switches to the output of p, unless p is already the current Pod. It returns how many bytes of that output were already read.
func (l *podLog) begin(p *corev1.Pod) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if base := number(p) * perIncarnation; l.pod != p.UID {
		l.pod, l.first, l.text = p.UID, base, nil
		l.tell()
	}
	return l.first + int64(len(l.text)) - number(p)*perIncarnation
}

func (l *podLog) add(text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, text...)
	if over := len(l.text) - mostLog; over > mostLog/4 { // not on every write, because the copy would be slow
		l.text = append([]byte(nil), l.text[over:]...)
		l.first += int64(over)
	}
	l.tell()
}

// tell wakes the waiting readers. The caller holds the lock.
func (l *podLog) tell() {
	close(l.grown)
	l.grown = make(chan struct{})
}

// follow reads the output of the newest incarnation, then of its successors.
func (l *podLog) follow() {
	var read types.UID // the Pod whose output was read to its end
	for l.ctx.Err() == nil {
		change := l.runtime.store.change(l.uid)
		newest := l.runtime.store.newest(l.uid)
		var again <-chan time.Time
		switch {
		case newest == nil:
			l.cancel() // no more output follows
			return
		case newest.UID != read && hasOutput(newest):
			done, err := l.copy(newest)
			if err == nil && done {
				read = newest.UID
				continue
			}
			again = time.After(logRetry)
		}
		select {
		case <-change:
		case <-again:
		case <-l.ctx.Done():
		}
	}
}

// copy adds the unread output of a Pod, and follows the output until the stream ends. done is false if more output may follow.
func (l *podLog) copy(p *corev1.Pod) (done bool, err error) {
	skip := l.begin(p)
	stream, err := l.runtime.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: Container, Follow: true}).Stream(l.ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = stream.Close() }()
	if _, err := io.CopyN(io.Discard, stream, skip); err != nil {
		return errors.Is(err, io.EOF) && over(p), err
	}
	block := make([]byte, 32<<10)
	for {
		n, err := stream.Read(block)
		if n > 0 {
			l.add(block[:n])
		}
		if errors.Is(err, io.EOF) {
			return over(p), nil
		}
		if err != nil {
			return false, err
		}
	}
}

// over reports whether the program is no longer running according to p. The caller must have obtained p before it read the output: then the output that was
// read is complete if over returns true.
func over(p *corev1.Pod) bool {
	main := mainStatus(p)
	return main == nil || main.State.Running == nil
}

// Bounds implements runtime.Log.
func (l *podLog) Bounds() (first, end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.first + int64(len(l.text)), nil
}

// ReadAt implements io.ReaderAt as runtime.Log requires.
func (l *podLog) ReadAt(p []byte, offset int64) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < l.first {
		return 0, fmt.Errorf("the output before offset %d is no longer available: %w", l.first, io.ErrUnexpectedEOF)
	}
	var n int
	if at := offset - l.first; at < int64(len(l.text)) {
		n = copy(p, l.text[at:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Wait implements runtime.Log.
func (l *podLog) Wait(ctx context.Context, offset int64) error {
	for {
		l.mu.Lock()
		end, grown, ended := l.first+int64(len(l.text)), l.grown, l.ctx.Err() != nil // ended is read under the lock, so that the last output is not missed
		l.mu.Unlock()
		switch {
		case end > offset:
			return nil
		case ended:
			return fmt.Errorf("wait for output of %s: %w", l.uid, runtime.ErrNotFound)
		}
		select {
		case <-grown:
		case <-l.ctx.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close implements io.Closer.
func (l *podLog) Close() error {
	l.cancel()
	l.follower.Wait()
	return nil
}
