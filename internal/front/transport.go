// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// RoundTrip sends a request to the incarnation that is ready, and waits for one as long as there is none.
//
// What was never sent, for nobody took the connection, is sent to the next one. What was sent and lost without an answer is sent once more if it
// is safe: GET, HEAD or OPTIONS without a body. Everything else has perhaps had its effect, and its client is told that it was lost.
func (a *address) RoundTrip(req *http.Request) (*http.Response, error) {
	w := &wait{until: time.Now().Add(a.options.HoldTime), request: req}
	payload := watchBody(req)
	for {
		s, err := a.admit(req.Context(), w)
		if err != nil {
			return nil, err
		}
		response, err := s.backend.RoundTrip(s.backend.outgoing(req, payload))
		switch {
		case err == nil:
			return response, nil
		case req.Context().Err() != nil:
			return nil, err
		case neverSent(err) && payload.untouched():
			a.suspect(s)
		case safe(req) && !w.retried && a.lost(req.Context(), s):
			w.retried = true
		default:
			return nil, err
		}
		w.after = s.version
	}
}

// wait is what is known of one request.
type wait struct {
	request *http.Request
	// until is when it has waited for long enough.
	until time.Time
	// after is the version that has failed it.
	after   int64
	retried bool
}

// admit gives the state to send a request with, when there is one.
func (a *address) admit(ctx context.Context, w *wait) (*state, error) {
	s := a.state.Load()
	if s.phase == open && w.after == 0 { // nearly always
		return s, nil
	}
	if hopeless(s, w) {
		return nil, refuse(s, "")
	}
	if a.waiting.Add(1) > int64(a.options.HoldRequests) {
		a.waiting.Add(-1)
		waited.WithLabelValues(string(outcomeTooMany)).Inc()
		return nil, refuse(s, "too many requests wait already")
	}
	defer a.waiting.Add(-1)
	bytes := weight(w.request)
	if !a.heldBytes.take(bytes) {
		waited.WithLabelValues(string(outcomeTooMany)).Inc()
		return nil, refuse(s, "the requests that wait already take too much memory")
	}
	defer a.heldBytes.give(bytes)
	waiting.Inc()
	began := time.Now()
	s, became, err := a.await(ctx, w)
	countWait(began, became)
	return s, err
}

// hopeless says that there is no server to wait for, or that it can't be there in time.
func hopeless(s *state, w *wait) bool { return s.phase == refused || s.reason.Until.After(w.until) }

// await waits until there is a state to send a request with, and says what became of that.
func (a *address) await(ctx context.Context, w *wait) (*state, outcome, error) {
	remaining := time.Until(w.until)
	if remaining <= 0 {
		return nil, outcomeTimedOut, refuse(a.state.Load(), "it was not ready in time")
	}
	timer := time.NewTimer(remaining)
	defer timer.Stop()
	for {
		s := a.state.Load()
		switch {
		case s.phase == open && s.version > w.after:
			return s, outcomeServed, nil
		case hopeless(s, w):
			return nil, outcomeRefused, refuse(s, "")
		}
		select {
		case <-s.over:
		case <-timer.C:
			return nil, outcomeTimedOut, refuse(s, "it was not ready in time")
		case <-ctx.Done():
			return nil, outcomeLeft, ctx.Err()
		}
	}
}

// confirmTime is how long a server that dropped a request may live until that counts as its answer.
const confirmTime = 500 * time.Millisecond

// lost says that a request was dropped because the server has ended, or stopped to listen. One that goes on has dropped it on purpose.
func (a *address) lost(ctx context.Context, s *state) bool {
	ticker := time.NewTicker(knockInterval)
	defer ticker.Stop()
	deadline := time.NewTimer(confirmTime)
	defer deadline.Stop()
	for {
		if a.state.Load() != s {
			return true
		}
		if !s.backend.answers(ctx) {
			a.suspect(s)
			return true
		}
		select {
		case <-s.over:
			return true
		case <-ctx.Done():
			return false
		case <-deadline.C:
			return false
		case <-ticker.C:
		}
	}
}

// outgoing makes a request one to this backend. It can be made again as long as the body was not touched.
func (b *backend) outgoing(req *http.Request, payload *body) *http.Request {
	out := *req
	target := *req.URL
	target.Scheme, target.Host = b.target.Scheme, b.target.Host
	out.URL = &target
	if payload != nil {
		out.Body = payload
	}
	return &out
}

// safe says that a request may be sent twice.
func safe(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return req.Body == nil || req.Body == http.NoBody
	}
	return false
}

// neverSent says that nobody took the connection.
func neverSent(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}

// body knows whether it was read. A transport closes the body of a request that it could not send, which is to be sent again here.
type body struct {
	io.Reader
	touched atomic.Bool
}

func watchBody(req *http.Request) *body {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	return &body{Reader: req.Body}
}

func (b *body) untouched() bool { return b == nil || !b.touched.Load() }

func (b *body) Read(p []byte) (int, error) {
	b.touched.Store(true)
	return b.Reader.Read(p)
}

// Close leaves the body to the handler, which closes it in the end.
func (b *body) Close() error { return nil }
