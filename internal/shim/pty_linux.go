// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"os"
	"time"

	"github.com/creack/pty"
)

// terminal copies the output of a PTY to the log and to the attached clients.
type terminal struct {
	*Terminal
	master  *os.File
	counted counted
	log     *os.File
	done    chan struct{} // closed when the output has ended
}

func newTerminal(master, log *os.File, newScreen NewScreen) *terminal {
	return &terminal{Terminal: NewTerminal(ptyDevice{master}, newScreen), master: master, log: log, done: make(chan struct{})}
}

// copy runs until no process has the terminal open.
func (t *terminal) copy() {
	defer close(t.done)
	go t.Answer(t.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := t.master.Read(buf)
		if n > 0 {
			// A full disk must not stop the program: output that cannot be written to the log is lost.
			_, _ = t.log.Write(buf[:n])
			t.Publish(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// finish is called when no process of the tree is left. It waits until the last output is in the log, and then until the clients have received it.
func (t *terminal) finish() {
	select {
	case <-t.done:
	case <-time.After(farewell):
	}
	t.Finish()
}

// ptyDevice is the Device of a PTY, by its controlling side.
type ptyDevice struct{ *os.File }

// Size implements Device.
func (d ptyDevice) Size() (columns, rows int32) {
	size, err := pty.GetsizeFull(d.File)
	if err != nil {
		return 0, 0 // selects the default
	}
	return int32(size.Cols), int32(size.Rows)
}

// Resize implements Device. The kernel notifies the program only if the size differs.
func (d ptyDevice) Resize(columns, rows int32) {
	_ = pty.Setsize(d.File, &pty.Winsize{Cols: uint16(columns), Rows: uint16(rows)}) //nolint:gosec // a valid size
}
