// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/probe"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/weburl"
)

const (
	// output is the kind of the worker that reads the output of an incarnation.
	output probe.Kind = "Output"
	// textLimit is how much of the output of an incarnation is searched, in bytes. Servers print their URL when they start.
	textLimit = 256 << 10
	// textTime is how long the output is still searched for a URL after the server has begun to listen.
	textTime = time.Minute
	// chunk is the size of one read, in bytes.
	chunk = 32 << 10
	// logRetry is how soon to retry when the log does not exist yet, or no longer contains the offset to read.
	logRetry = 500 * time.Millisecond
)

// text reads the output of one incarnation and keeps the URLs in it.
type text struct {
	logs  runtime.Logs
	clock clock.Clock
	uid   types.UID
	// start is the offset where the output of the incarnation begins. If known is false, the whole log is read and the last URL of each port is used.
	start int64
	known bool

	scanner weburl.Scanner
	newest  atomic.Pointer[[]found]
}

// urls returns the URLs found in the output of this incarnation. It starts the worker that reads the output.
func (k *Kind) urls(dev *v1alpha1.DevServer, m *objectCache, incarnation int64) []found {
	key := probe.Key{UID: dev.UID, Incarnation: incarnation, Kind: output}
	if k.logs == nil || inPod(dev) || dev.Spec.URL.Detect == v1alpha1.URLDetectionDisabled {
		k.probes.Stop(key)
		m.text = nil
		return nil
	}
	if m.text == nil {
		m.text = &text{logs: k.logs, clock: k.timers, uid: dev.UID, start: m.logEnd, known: m.logKnown}
		m.text.newest.Store(&[]found{})
		m.text.scanner.Last = !m.logKnown
		k.probes.Go(key, m.text.run)
	}
	return *m.text.newest.Load()
}

// noteLogEnd records the offset where the output of the next incarnation will begin.
func (k *Kind) noteLogEnd(ctx context.Context, uid types.UID, m *objectCache) {
	m.logEnd, m.logKnown = 0, false
	if k.logs == nil {
		return
	}
	log, err := k.logs.OpenLog(ctx, uid)
	if err != nil {
		m.logKnown = errors.Is(err, runtime.ErrNotFound) // no output yet
		return
	}
	defer func() { _ = log.Close() }()
	if _, end, err := log.Bounds(); err == nil {
		m.logEnd, m.logKnown = end, true
	}
}

// run reads the output until the limit is reached, ctx is done or the log ends. It calls changed whenever the set of URLs changes.
func (t *text) run(ctx context.Context, changed func()) {
	log := t.open(ctx)
	if log == nil {
		return
	}
	defer func() { _ = log.Close() }()
	offset, limit, err := t.bounds(log)
	if err != nil {
		return
	}
	buffer := make([]byte, chunk)
	for offset < limit && ctx.Err() == nil {
		n, err := log.ReadAt(buffer[:min(chunk, limit-offset)], offset)
		if n > 0 {
			_, _ = t.scanner.Write(buffer[:n])
			t.publish(changed)
			offset += int64(n)
			continue
		}
		switch {
		case err == nil || errors.Is(err, io.EOF):
			if log.Wait(ctx, offset) != nil {
				return
			}
		case errors.Is(err, io.ErrUnexpectedEOF): // the part at offset was dropped
			beginning, _, err := log.Bounds()
			if err != nil {
				return
			}
			if beginning <= offset && !t.pause(ctx) {
				return
			}
			offset = max(offset, beginning)
		default:
			return
		}
	}
}

// open waits until the log exists. It returns nil if the context ends first.
func (t *text) open(ctx context.Context) runtime.Log {
	for {
		log, err := t.logs.OpenLog(ctx, t.uid)
		if err == nil {
			return log
		}
		if !t.pause(ctx) {
			return nil
		}
	}
}

func (t *text) bounds(log runtime.Log) (offset, limit int64, err error) {
	beginning, end, err := log.Bounds()
	if t.known {
		offset = max(t.start, beginning)
		return offset, t.start + textLimit, err
	}
	return beginning, end + textLimit, err
}

func (t *text) pause(ctx context.Context) bool {
	timer := t.clock.NewTimer(logRetry)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

func (t *text) publish(changed func()) {
	urls := t.scanner.URLs()
	if slices.Equal(urls, *t.newest.Load()) {
		return
	}
	t.newest.Store(&urls)
	changed()
}
