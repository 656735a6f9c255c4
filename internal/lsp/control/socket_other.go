// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

// Listen makes a socket that only our user can reach, in the place of a stale one. The path may have about a hundred bytes on this system.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return ownUser{listener}, nil
}

// Connect reaches a socket.
func Connect(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", path)
}

// allowed leaves it to the permissions of the socket and its directory who may connect: on this system the peer is not asked.
func allowed(conn net.Conn) bool {
	_, local := conn.(*net.UnixConn)
	return local
}
