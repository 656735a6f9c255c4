// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// errRefused is the error if the multiplexer rejects the token.
var errRefused = errors.New("the multiplexer rejects the token")

// mostSaid is how much of an unexpected response is included in the error, in bytes.
const mostSaid = 512

// Dial connects to the multiplexer at an address as a manager. The multiplexer must present the certificate of its Secret.
func Dial(ctx context.Context, address string, keys map[string][]byte) (net.Conn, error) {
	dialer := tls.Dialer{Config: Trust(keys[Certificate]), NetDialer: &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	passed, err := knock(ctx, conn, address, managerPath, string(keys[ManagerToken]))
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return passed, nil
}

// Trust returns a configuration that accepts exactly one certificate, in PEM, regardless of its issuer and name.
func Trust(certificate []byte) *tls.Config {
	block, _ := pem.Decode(certificate)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: true, //nolint:gosec // the self-signed certificate is compared instead
		VerifyConnection: func(state tls.ConnectionState) error {
			switch {
			case block == nil:
				return errors.New("the Secret of the multiplexer has no certificate in " + Certificate + "; delete the Secret, and Berth creates it again")
			case !bytes.Equal(state.PeerCertificates[0].Raw, block.Bytes):
				return errors.New("the certificate of the multiplexer differs from the one in its Secret")
			}
			return nil
		},
	}
}

// knock sends the upgrade request and returns the stream that follows a successful response.
func knock(ctx context.Context, conn net.Conn, host, path, token string) (net.Conn, error) {
	request, err := request(ctx, "https://"+host+path, token)
	if err != nil {
		return nil, err
	}
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		return nil, err
	}
	if err := refusal(response); err != nil {
		return nil, err
	}
	return &stream{Conn: conn, read: reader}, nil
}

func request(ctx context.Context, address, token string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", protocol)
	request.Header.Set(tokenHeader, token)
	return request, nil
}

// refusal returns why a request was rejected, or nil if it was accepted.
func refusal(response *http.Response) error {
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	said, _ := io.ReadAll(io.LimitReader(response.Body, mostSaid))
	_ = response.Body.Close()
	text := strings.TrimSpace(string(said))
	if response.StatusCode == http.StatusUnauthorized {
		return fmt.Errorf("%w: %s", errRefused, text)
	}
	return fmt.Errorf("unexpected response %s: %s", response.Status, text)
}

// Through connects to a multiplexer as a client through a proxy, such as an API server. The transport must use HTTP/1.1. Deadlines of the connection have no
// effect.
func Through(ctx context.Context, transport http.RoundTripper, address *url.URL, token string) (net.Conn, error) {
	request, err := request(ctx, address.String(), token)
	if err != nil {
		return nil, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if err := refusal(response); err != nil {
		return nil, err
	}
	both, is := response.Body.(io.ReadWriteCloser)
	if !is {
		return nil, errors.Join(errors.New("the proxy that forwards the request does not use HTTP/1.1"), response.Body.Close())
	}
	return passage{both, address.Host}, nil
}

// passage is a stream through a proxy.
type passage struct {
	io.ReadWriteCloser
	host string
}

var _ net.Conn = passage{}

func (p passage) LocalAddr() net.Addr  { return place("") }
func (p passage) RemoteAddr() net.Addr { return place(p.host) }

func (passage) SetDeadline(time.Time) error      { return nil }
func (passage) SetReadDeadline(time.Time) error  { return nil }
func (passage) SetWriteDeadline(time.Time) error { return nil }

type place string

func (place) Network() string  { return "tcp" }
func (p place) String() string { return string(p) }
