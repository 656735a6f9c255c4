// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// RoundTrip forwards a request to the ready incarnation. While none is ready, it holds the request.
//
// A request that no server has accepted is sent to the next server. If the connection is lost before a byte of the response has reached the client, RoundTrip
// retries a safe request, that is GET, HEAD or OPTIONS without a body (see lost). It returns an error for other requests, because they may have taken effect.
func (a *address) RoundTrip(req *http.Request) (*http.Response, error) {
	w := &hold{until: time.Now().Add(a.options.HoldTime), request: req}
	payload := watchBody(req)
	for sent := begun(req.Context()); ; sent = nil {
		s, response, err := a.send(req, payload, w, sent)
		switch {
		case err == nil:
			return response, nil
		case s == nil, req.Context().Err() != nil:
			return nil, err
		case neverSent(err) && payload.untouched():
			a.suspect(s)
			w.failedVersion = s.version
		case !safe(req) || !dropped(err) || !a.lost(req.Context(), s, w):
			return nil, err
		}
	}
}

// send waits for a server and sends the request, unless the request was already sent. The returned state is nil if there was no server.
func (a *address) send(req *http.Request, payload *body, w *hold, sent *exchange) (*state, *http.Response, error) {
	if sent != nil {
		response, err := sent.line.receive(req, context.AfterFunc(req.Context(), sent.line.close), nil)
		return sent.state, response, err
	}
	s, err := a.admit(req.Context(), w)
	if err != nil {
		return nil, nil, err
	}
	response, err := s.backend.RoundTrip(s.backend.outgoing(req, payload))
	return s, response, err
}

// hold tracks one request.
type hold struct {
	request *http.Request
	// until is when to stop holding the request.
	until time.Time
	// failedVersion is the version of the last state that the request must not use again; await waits for a newer one. It is 0 if every state may be used.
	failedVersion int64
	// droppedBy is the incarnation that dropped the request, and drops is how often it did.
	droppedBy int64
	drops     int
}

// admit returns the state to send a request with, and waits for one if necessary.
func (a *address) admit(ctx context.Context, w *hold) (*state, error) {
	s := a.state.Load()
	if s.phase == open && w.failedVersion == 0 { // the usual case
		return s, nil
	}
	if hopeless(s, w) {
		return nil, refuse(s, "")
	}
	if a.waiting.Add(1) > int64(a.options.HoldRequests) {
		a.waiting.Add(-1)
		waited.WithLabelValues(string(outcomeTooMany)).Inc()
		return nil, refuse(s, "too many requests are already waiting")
	}
	defer a.waiting.Add(-1)
	bytes := weight(w.request)
	if !a.heldBytes.take(bytes) {
		waited.WithLabelValues(string(outcomeTooMany)).Inc()
		return nil, refuse(s, "the waiting requests use too much memory")
	}
	defer a.heldBytes.give(bytes)
	waiting.Inc()
	began := time.Now()
	s, became, err := a.await(ctx, w)
	countWait(began, became)
	return s, err
}

// hopeless reports whether there is no server to wait for, or none that can be ready in time.
func hopeless(s *state, w *hold) bool { return s.phase == refused || s.reason.Until.After(w.until) }

// await waits until there is a state to send a request with, and returns the outcome.
func (a *address) await(ctx context.Context, w *hold) (*state, outcome, error) {
	remaining := time.Until(w.until)
	if remaining <= 0 {
		return nil, outcomeTimedOut, refuse(a.state.Load(), "the server was not ready in time")
	}
	timer := time.NewTimer(remaining)
	defer timer.Stop()
	for {
		s := a.state.Load()
		switch {
		case s.phase == open && s.version > w.failedVersion:
			return s, outcomeServed, nil
		case hopeless(s, w):
			return nil, outcomeRefused, refuse(s, "")
		}
		select {
		case <-s.over:
		case <-timer.C:
			return nil, outcomeTimedOut, refuse(s, "the server was not ready in time")
		case <-ctx.Done():
			return nil, outcomeLeft, ctx.Err()
		}
	}
}

const (
	// maxDrops is how often one incarnation may drop a request before the request fails. A server that reloads itself (Flask, uvicorn) drops a request at
	// most once for each reload, because its new process inherits the listener and accepts later connections. A server that drops the request each time
	// does so on purpose.
	maxDrops = 5
	// firstPause is how long the proxy waits after the first drop. Each further pause is twice as long, so that the 4 pauses between 5 drops take 1.5 s.
	firstPause = 100 * time.Millisecond
)

// lost waits until a dropped request can be retried, and reports whether a retry is permitted. The same incarnation receives a request up to maxDrops times. If
// another incarnation drops the request as well, the request is not retried, because a request that has terminated two incarnations would terminate the next
// one too.
func (a *address) lost(ctx context.Context, s *state, w *hold) bool {
	incarnation := s.backend.incarnation
	if w.drops > 0 && w.droppedBy != incarnation || w.drops == maxDrops-1 {
		return false
	}
	w.droppedBy = incarnation
	pause := time.NewTimer(firstPause << w.drops)
	defer pause.Stop()
	w.drops++
	ticker := time.NewTicker(knockInterval)
	defer ticker.Stop()
	for {
		if !s.backend.answers(ctx) {
			a.suspect(s)
		}
		if a.state.Load() != s {
			w.failedVersion = s.version
			return true
		}
		select {
		case <-s.over:
		case <-ticker.C:
		case <-pause.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// outgoing returns the request to send to this backend. It can be called again as long as the body was not read.
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

// safe reports whether a request may be sent twice.
func safe(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return req.Body == nil || req.Body == http.NoBody
	}
	return false
}

// dropped reports whether err means that the connection ended before the response, or before the first byte of the response body.
func dropped(err error) bool {
	var failed *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &failed)
}

// neverSent reports whether err means that no connection to the server could be opened, so the request was not sent.
func neverSent(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}

// body is the body of a request; it records whether it was read. A transport closes the body of a request that it could not send, but RoundTrip sends such a
// request again, with the same body.
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

// Close does nothing, because the request may be sent again. The HTTP server closes the original body when the handler returns.
func (b *body) Close() error { return nil }
