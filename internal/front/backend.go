// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package front

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

// backend is one incarnation behind an address. Connections to one are never used for another.
type backend struct {
	incarnation int64
	target      url.URL
	transport   *http.Transport
	wire        *wire // for plain requests; nil if the server speaks TLS
}

const (
	connectTime = 5 * time.Second
	// continueTime is how long the body of a request with "Expect: 100-continue" waits for the server to ask for it or to refuse the request.
	continueTime = time.Second
	// keepTime is shorter than servers keep idle connections (Node's do for five seconds): one that they close just when a request is sent on it
	// would lose that.
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
			DisableCompression:    true,                                  // clients ask for what they want
			TLSClientConfig:       &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a server of this machine, whose certificate is its own
		},
	}
	if target.Scheme == "http" {
		b.wire = &wire{address: target.Host, dialer: *dialer}
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

// atOnce has the reverse proxy send on at once whatever comes of an answer, which it does with one whose length it is not told; its client is
// told by the header. Only what is here as a whole can wait for its end, and is one write.
func atOnce(response *http.Response) {
	switch {
	case response.StatusCode == http.StatusSwitchingProtocols:
		response.ContentLength = 0 // otherwise net/http adds Connection: close
	case response.Body != http.NoBody:
		response.ContentLength = -1
	}
}

// answerFirst is a connection to a server that may answer and close the connection before it has read the body of the request. Its Write hides that the
// connection is closed, because http.Transport would otherwise drop the answer, which can still be read. If there is no answer, the read fails.
type answerFirst struct{ net.Conn }

// Write implements net.Conn.
func (c answerFirst) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(p), nil
	}
	return n, err
}

// rest closes the connections that nothing is asked on.
func (b *backend) rest() {
	b.transport.CloseIdleConnections()
	if b.wire != nil {
		b.wire.CloseIdleConnections()
	}
}

// is says whether this is that incarnation at that address; a nil backend is none.
func (b *backend) is(incarnation int64, target *url.URL) bool {
	return b != nil && b.incarnation == incarnation && b.target == *target
}

// answers says whether the backend takes connections.
func (b *backend) answers(ctx context.Context) bool {
	dialer := net.Dialer{Timeout: connectTime}
	connection, err := dialer.DialContext(ctx, "tcp", b.target.Host)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}
