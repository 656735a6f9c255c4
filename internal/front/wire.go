// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package front

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// wire sends requests that may be sent twice and have no body, on connections that it keeps. All of one is done by the goroutine that asks: a
// transport of the standard library has two for each connection, and to hand a request to one and its answer back from the other takes longer
// than all else that the proxy does.
type wire struct {
	address string
	dialer  net.Dialer

	mu    sync.Mutex
	idle  []*line // the one that was used last is the last
	sweep *time.Timer
}

// carries says whether that is a request for a wire.
func (w *wire) carries(req *http.Request) bool {
	return w != nil && safe(req) && req.Header["Upgrade"] == nil && req.Header["Expect"] == nil
}

// RoundTrip implements http.RoundTripper. A kept connection that the server has just closed is no answer: the request goes out on a new one.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if kept := w.take(); kept != nil {
		response, err := kept.exchange(req)
		if err == nil || kept.heard || req.Context().Err() != nil {
			return response, err
		}
	}
	connection, err := w.dialer.DialContext(req.Context(), "tcp", w.address)
	if err != nil {
		return nil, err
	}
	return newLine(w, connection).exchange(req)
}

// take gives a kept connection that can be used.
func (w *wire) take() *line {
	for {
		w.mu.Lock()
		last := len(w.idle) - 1
		if last < 0 {
			w.mu.Unlock()
			return nil
		}
		l := w.idle[last]
		w.idle = slices.Delete(w.idle, last, last+1)
		w.mu.Unlock()
		if time.Since(l.since) < keepTime && quiet(l.connection) {
			return l
		}
		_ = l.connection.Close()
	}
}

// keep has a connection wait for the next request.
func (w *wire) keep(l *line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.idle) == keptPerBackend {
		_ = l.connection.Close()
		return
	}
	l.since = time.Now()
	w.idle = append(w.idle, l)
	if w.sweep == nil {
		w.sweep = time.AfterFunc(keepTime, w.expire)
	}
}

// expire closes what was not used for long enough, and comes again while there is more.
func (w *wire) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweep = nil
	w.idle = slices.DeleteFunc(w.idle, func(l *line) bool {
		old := time.Since(l.since) >= keepTime
		if old {
			_ = l.connection.Close()
		}
		return old
	})
	if len(w.idle) > 0 {
		w.sweep = time.AfterFunc(keepTime-time.Since(w.idle[0].since), w.expire)
	}
}

// CloseIdleConnections closes what waits for a request.
func (w *wire) CloseIdleConnections() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.idle {
		_ = l.connection.Close()
	}
	w.idle = nil
	if w.sweep != nil {
		w.sweep.Stop()
		w.sweep = nil
	}
}
