// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/internal/shim"
)

// Send sends a report to the manager that listens on a socket, and returns an error if the manager does not accept it in time. A listener that belongs to another
// user receives nothing, unless that user is root.
func Send(socket string, report Report, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	return shim.InDirectory(filepath.Dir(socket), filepath.Base(socket), func(address *net.UnixAddr) error {
		conn, err := (&net.Dialer{Deadline: deadline}).Dial("unix", address.Name)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
		return exchange(conn.(*net.UnixConn), report) // the network is unix
	})
}

// exchange sends a report and reads the answer.
func exchange(conn *net.UnixConn, report Report) error {
	listener, err := peerOf(conn)
	if err != nil {
		return err
	}
	listener.Close()
	if listener.user != 0 && int(listener.user) != os.Geteuid() {
		return fmt.Errorf("the socket belongs to user %d", listener.user)
	}
	if err := json.NewEncoder(conn).Encode(report); err != nil {
		return err
	}
	var result answer
	if err := json.NewDecoder(io.LimitReader(conn, maxReport)).Decode(&result); err != nil {
		return fmt.Errorf("read the answer of the manager: %w", err)
	}
	if result.Refused != "" {
		return errors.New("refused: " + result.Refused)
	}
	return nil
}
