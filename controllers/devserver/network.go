// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// answerTime bounds a connection attempt to this machine, and the resolution of a host name. A connection attempt takes microseconds or is refused.
const answerTime = 100 * time.Millisecond

// bindable reports whether a port can be bound, without SO_REUSEADDR, on the IPv4 loopback address and on all addresses of both families. It tries all of
// these, because some servers check the loopback address before they listen, and others check all addresses. It ignores a family that the machine does not
// support.
func bindable(port int32) bool {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
		})
		return errors.Join(err, failed)
	}}
	for _, where := range []struct{ network, host string }{{"tcp4", "127.0.0.1"}, {"tcp4", "0.0.0.0"}, {"tcp6", "::"}} {
		listener, err := config.Listen(context.Background(), where.network, net.JoinHostPort(where.host, strconv.Itoa(int(port))))
		if err == nil {
			err = listener.Close()
		}
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
			return false
		}
	}
	return true
}

// answers reports whether a program accepts connections at an address of this machine.
func answers(ctx context.Context, address string) bool {
	dialer := net.Dialer{Timeout: answerTime}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// resolve returns the IP addresses of a host; none if the resolver does not know it.
func resolve(ctx context.Context, host string) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // sends no DNS query if host is an IP address
	if err != nil {
		return nil
	}
	for i, ip := range found {
		found[i] = ip.Unmap()
	}
	return found
}
