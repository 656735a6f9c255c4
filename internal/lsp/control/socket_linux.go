// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/shim"
)

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
