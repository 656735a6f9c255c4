// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package front

import "net"

// quiet says that a connection may be used again. Where that can't be found out, none is.
func quiet(net.Conn) bool { return false }

// waitClosed does not wait on systems where a connection cannot be checked without reading from it.
func waitClosed(*net.TCPConn) bool { return false }
