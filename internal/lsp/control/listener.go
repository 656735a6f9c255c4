// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import "net"

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
