// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// InDirectory calls the function do with a short address of a socket, whatever the length of its directory path: a socket path is limited to 107 bytes.
func InDirectory(dir, name string, do func(*net.UnixAddr) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return do(&net.UnixAddr{Net: "unix", Name: "/proc/self/fd/" + strconv.Itoa(fd) + "/" + name})
}

// Dial connects to the shim of a UID, whose directory is dir, and verifies that the shim has this token; an empty token accepts any shim. It returns ErrImpostor
// if the token differs. The timeout limits the connection and each request.
func Dial(dir, token string, timeout time.Duration) (*Client, error) {
	var conn net.Conn
	err := InDirectory(dir, SocketFile, func(address *net.UnixAddr) (err error) {
		conn, err = net.DialTimeout("unix", address.Name, timeout)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the shim at %s: %w", filepath.Join(dir, SocketFile), err)
	}
	return newClient(conn, token, timeout)
}
