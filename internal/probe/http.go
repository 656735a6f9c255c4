// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// bodyLimit and bodyTime bound how much of a response body is read. Reading the body avoids resetting the connection of the server.
	bodyLimit = 256 << 10
	bodyTime  = 250 * time.Millisecond
	// headerLimit bounds the headers of a response, in bytes.
	headerLimit = 64 << 10
)

// run sends one request over a new connection. A reused connection would not show whether the server accepts new ones.
func (h *HTTP) run(ctx context.Context, timeout time.Duration) outcome {
	transport := &http.Transport{
		Proxy:                  nil, // the server is on this machine
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: headerLimit,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a dev server signs its own certificate
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				connected.Store(true)
			}
		},
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL, nil)
	if err != nil {
		return failed("invalid URL: " + h.URL)
	}
	request.Header.Set("User-Agent", "berth-probe")
	request.Header.Set("Accept", "*/*")
	response, err := client.Do(request)
	if err != nil {
		return h.classify(err, connected.Load(), timeout)
	}
	drain(response.Body, cancel)
	return h.judge(response.StatusCode)
}

func (h *HTTP) judge(status int) outcome {
	limit, from := 400, 200
	if h.Serving {
		limit, from = 500, 100
	}
	if status >= from && status < limit {
		return outcome{ok: true}
	}
	return failed(fmt.Sprintf("GET %s returned status %d", h.URL, status))
}

// classify returns the outcome of a request without a response.
func (h *HTTP) classify(err error, connected bool, timeout time.Duration) outcome {
	answer := failed(fmt.Sprintf("GET %s: %s", h.URL, describe(err, timeout)))
	if !h.Serving || !connected {
		return answer
	}
	// The server accepted the connection. If it then sends something other than HTTP, or waits for more data from the client, it uses another protocol.
	if isTimeout(err) || !isClosed(err) {
		return outcome{ok: true}
	}
	answer.mute = true
	return answer
}

// drain reads and discards the part of the body that arrives within the limits.
func drain(body io.ReadCloser, cancel context.CancelFunc) {
	stop := time.AfterFunc(bodyTime, cancel)
	defer stop.Stop()
	_, _ = io.CopyN(io.Discard, body, bodyLimit)
	_ = body.Close()
}

// run opens and closes a connection.
func (t *TCP) run(ctx context.Context, timeout time.Duration) outcome {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return failed(fmt.Sprintf("connecting to %s: %s", t.Address, describe(err, timeout)))
	}
	_ = connection.Close()
	return outcome{ok: true}
}

// describe returns a text for an error. The text is the same for a repeated failure, so that the result does not change. The text of a network error itself
// differs each time, because it contains the local port.
func describe(err error, timeout time.Duration) string {
	switch {
	case isTimeout(err):
		return fmt.Sprintf("no response within %s", timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case isClosed(err):
		return "the connection was closed without a response"
	}
	var record tls.RecordHeaderError
	if errors.As(err, &record) {
		return "the server does not speak TLS"
	}
	var system syscall.Errno
	if errors.As(err, &system) {
		return system.Error()
	}
	return "the response is not valid HTTP"
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &network) && network.Timeout())
}

func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
