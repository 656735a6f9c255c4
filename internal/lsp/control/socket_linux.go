// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/shim"
)

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

// Connect connects to a socket, whatever the length of its path.
func Connect(ctx context.Context, path string) (conn net.Conn, err error) {
	err = short(path, func(name string) error {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, "unix", name)
		return err
	})
	return conn, err
}

// short calls the function do with a short name for a path, because a socket address is limited to 107 bytes.
func short(path string, do func(string) error) error {
	dir, name := filepath.Split(path)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return do("/proc/self/fd/" + strconv.Itoa(fd) + "/" + name)
}

// allowed reports whether the peer of a connection runs as the same user as this process, or as root.
func allowed(conn net.Conn) bool {
	local, ok := conn.(*net.UnixConn)
	return ok && shim.Allowed(local)
}
