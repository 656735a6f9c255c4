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

// Listen makes a socket that only our user can reach, in the place of a stale one.
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
	// Its name holds a descriptor that is closed by now. Who follows removes what is stale.
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return ownUser{listener}, nil
}

// Connect reaches a socket, however long its path.
func Connect(ctx context.Context, path string) (conn net.Conn, err error) {
	err = short(path, func(name string) error {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, "unix", name)
		return err
	})
	return conn, err
}

// short calls do with another name of a path: that of a socket may have 107 bytes only.
func short(path string, do func(string) error) error {
	dir, name := filepath.Split(path)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return do("/proc/self/fd/" + strconv.Itoa(fd) + "/" + name)
}

// allowed says whether the peer of a connection is our own user or root.
func allowed(conn net.Conn) bool {
	local, ok := conn.(*net.UnixConn)
	return ok && shim.Allowed(local)
}
