// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package devproxy

import "net"

// quiet reports whether an idle connection may be reused. It returns false on systems where this cannot be checked.
func quiet(net.Conn) bool { return false }

// waitClosed does not wait on systems where a connection cannot be checked without reading from it.
func waitClosed(*net.TCPConn) bool { return false }
