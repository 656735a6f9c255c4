// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// connPool is a pool of connections to a server. It is used for plain requests (see client), and for requests of the reverse proxy that have no body and may
// be sent twice. It is faster than http.Transport, because it runs in the goroutine of the caller. http.Transport uses two more goroutines for each
// connection, and switching between them takes longer than the rest of the work.
type connPool struct {
	address string
	dialer  net.Dialer

	mu    sync.Mutex
	idle  []*pooledConn // the most recently used connection is the last
	sweep *time.Timer
}

// carries reports whether the pool can send the request.
func (w *connPool) carries(req *http.Request) bool {
	return w != nil && safe(req) && req.Header["Upgrade"] == nil && req.Header["Expect"] == nil
}

// RoundTrip implements http.RoundTripper. If the server has closed a pooled connection before responding, RoundTrip sends the request on a new one.
func (w *connPool) RoundTrip(req *http.Request) (*http.Response, error) {
	l, kept, err := w.line(req.Context())
	if err != nil {
		return nil, err
	}
	response, err := l.exchange(req)
	if err == nil || !kept || l.heard || req.Context().Err() != nil {
		return response, err
	}
	if l, err = w.dial(req.Context()); err != nil {
		return nil, err
	}
	return l.exchange(req)
}

// line returns an idle connection, or a new one if none is idle.
func (w *connPool) line(ctx context.Context) (l *pooledConn, kept bool, err error) {
	if l = w.take(); l != nil {
		return l, true, nil
	}
	l, err = w.dial(ctx)
	return l, false, err
}

func (w *connPool) dial(ctx context.Context) (*pooledConn, error) {
	connection, err := w.dialer.DialContext(ctx, "tcp", w.address)
	if err != nil {
		return nil, err
	}
	return newLine(w, connection), nil
}

// take returns a usable connection from the pool, or nil.
func (w *connPool) take() *pooledConn {
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

// keep returns a connection to the pool.
func (w *connPool) keep(l *pooledConn) {
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

// expire closes connections that were idle for keepTime, and schedules itself again while others remain.
func (w *connPool) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweep = nil
	w.idle = slices.DeleteFunc(w.idle, func(l *pooledConn) bool {
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

// CloseIdleConnections closes the connections in the pool.
func (w *connPool) CloseIdleConnections() {
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
