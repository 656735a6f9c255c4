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

// Listen creates a socket that only the user of this process can connect to. It replaces a stale socket. On this system the path is limited to about 100 bytes.
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

// Connect connects to a socket.
func Connect(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", path)
}

// allowed accepts every local connection. On this system only the permissions of the socket and its directory restrict access.
func allowed(conn net.Conn) bool {
	_, local := conn.(*net.UnixConn)
	return local
}
