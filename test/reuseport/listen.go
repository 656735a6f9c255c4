// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reuseport listens with SO_REUSEPORT, for tests.
package reuseport

import (
	"context"
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen listens at an address with SO_REUSEPORT, so that other processes of the same user can listen there too. A socket of the network tcp6 accepts IPv4
// connections unless ipv6Only is true.
func Listen(ctx context.Context, network, address string, ipv6Only bool) (net.Listener, error) {
	config := net.ListenConfig{Control: func(network, _ string, raw syscall.RawConn) (failed error) {
		err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			if network == "tcp6" {
				only := 0
				if ipv6Only {
					only = 1
				}
				failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only))
			}
		})
		return errors.Join(err, failed)
	}}
	return config.Listen(ctx, network, address)
}
