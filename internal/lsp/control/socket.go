// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

// ownUser is a listener on a local socket that accepts only the user of this process and root.
type ownUser struct{ net.Listener }

// Accept implements net.Listener.
func (l ownUser) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || allowed(conn) {
			return conn, err
		}
		_ = conn.Close()
	}
}

// Listen creates a socket that only the user of this process (or root) can connect to. It replaces a stale socket.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var listener *net.UnixListener
	err := short(path, func(name string) (err error) {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	// Close must not unlink the socket by its name, because that name contains the number of a descriptor that short has closed. The next multiplexer removes
	// the stale socket.
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return ownUser{listener}, nil
}

// Connect connects to a socket.
func Connect(ctx context.Context, path string) (conn net.Conn, err error) {
	err = short(path, func(name string) error {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, "unix", name)
		return err
	})
	return conn, err
}
