// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"
)

// backend is one incarnation behind an address. Its connections are never used for another incarnation.
type backend struct {
	incarnation int64
	target      url.URL
	transport   *http.Transport
	wire        *connPool // for plain requests; nil if the server speaks TLS
}

const (
	connectTime = 5 * time.Second
	// continueTime is the maximum time for which the body of a request with "Expect: 100-continue" is held back while the server sends nothing.
	continueTime = time.Second
	// keepTime is how long an idle connection to a server is kept. It is shorter than the idle timeout of servers (five seconds for Node), because a request
	// could otherwise be lost on a connection that the server closes at that moment.
	keepTime       = 3 * time.Second
	keptPerBackend = 256
)

func newBackend(incarnation int64, target *url.URL) *backend {
	dialer := &net.Dialer{Timeout: connectTime}
	b := &backend{
		incarnation: incarnation,
		target:      *target,
		transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				connection, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return answerFirst{connection}, nil
			},
			MaxIdleConnsPerHost:   keptPerBackend,
			IdleConnTimeout:       keepTime,
			ExpectContinueTimeout: continueTime,
			DisableCompression:    true,                                  // clients negotiate compression themselves
			TLSClientConfig:       &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a server on this machine, which signs its own certificate
		},
	}
	if target.Scheme == "http" {
		b.wire = &connPool{address: target.Host, dialer: *dialer}
	}
	return b
}

// RoundTrip implements http.RoundTripper.
func (b *backend) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.wire.carries(req) {
		return b.wire.RoundTrip(req)
	}
	response, err := b.transport.RoundTrip(req)
	if err == nil {
		atOnce(response)
	}
	return response, err
}

// atOnce makes the reverse proxy forward each part of the response immediately, as it does for a response of unknown length. The client still receives the
// length in the header. A connPool does not call atOnce if the complete body is already in its buffer: that response is sent in one write.
func atOnce(response *http.Response) {
	switch {
	case response.StatusCode == http.StatusSwitchingProtocols:
		response.ContentLength = 0 // otherwise net/http adds Connection: close
	case response.Body != http.NoBody:
		response.ContentLength = -1
	}
}

// answerFirst is a connection to a server that may respond and close the connection before it has read the request body. Its Write hides that the connection is
// closed, because http.Transport would otherwise drop the response, which can still be read. If there is no response, the read fails.
type answerFirst struct{ net.Conn }

// Write implements net.Conn.
func (c answerFirst) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(p), nil
	}
	return n, err
}

// rest closes the idle connections.
func (b *backend) rest() {
	b.transport.CloseIdleConnections()
	if b.wire != nil {
		b.wire.CloseIdleConnections()
	}
}

// is reports whether b is the backend of this incarnation at this URL. It returns false for a nil backend.
func (b *backend) is(incarnation int64, target *url.URL) bool {
	return b != nil && b.incarnation == incarnation && b.target == *target
}

// answers reports whether the backend accepts connections.
func (b *backend) answers(ctx context.Context) bool {
	dialer := net.Dialer{Timeout: connectTime}
	connection, err := dialer.DialContext(ctx, "tcp", b.target.Host)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}
