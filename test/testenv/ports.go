// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"net"
	"os"
	"strconv"
	"sync/atomic"
)

// The range of FreePort is below the ports that Berth allocates and those that systems use for outgoing connections, one of which could take a port of that
// range between FreePort and its use.
const (
	firstPort = 12000
	portCount = 8000
)

var nextPort atomic.Int32

// FreePort returns a TCP port on which no process listens. It does not return the same port twice, and processes that run at the same time start at different
// ports.
func FreePort() (int32, error) {
	for range portCount {
		port := firstPort + (int32(os.Getpid()%portCount)+nextPort.Add(1))%portCount
		//nolint:noctx // the listener is closed at once
		if listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(port)))); err == nil {
			return port, listener.Close()
		}
	}
	return 0, errors.New("no port from " + strconv.Itoa(firstPort) + " to " + strconv.Itoa(firstPort+portCount-1) + " is free")
}
