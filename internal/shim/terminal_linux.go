// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/creack/pty"
)

const (
	// ringSize is how much of the last output a client receives when it attaches, in bytes.
	ringSize = 64 << 10
	// backlog is how much output may be queued for a slow client before it is disconnected, in bytes.
	backlog = 256 << 10
	// farewell limits two waits of finish: until the last output is in the log, and then until the clients have received it.
	farewell = time.Second
)

// terminal copies the output of a PTY to the log and to the attached clients.
type terminal struct {
	master *os.File
	log    *os.File
	done   chan struct{} // closed when the output has ended

	mu      sync.Mutex
	ring    []byte
	modes   modes   // in effect at the beginning of ring
	views   []*view // those with a terminal come first; the first one owns the size
	sieve   sieve
	held    int // how many bytes sieve had held back before the current call
	answers *answers
	ended   bool
	gone    sync.WaitGroup // writers to clients
}

// view is one client.
type view struct {
	conn          net.Conn
	columns, rows int32         // the size of its terminal; 0 if it has none, or only looks on
	ready         chan struct{} // signaled when output is pending or the view is closed

	pending []byte
	closed  bool
}

func newTerminal(master, log *os.File, newScreen NewScreen) *terminal {
	t := &terminal{master: master, log: log, done: make(chan struct{}), answers: newAnswers(master, newScreen)}
	t.sieve.removed = t.ask
	return t
}

// resize sets the size of the terminal. The kernel notifies the program only if the size differs.
func (t *terminal) resize(columns, rows int32) {
	if validSize(columns, rows) {
		_ = pty.Setsize(t.master, &pty.Winsize{Cols: uint16(columns), Rows: uint16(rows)})
	}
}

func validSize(columns, rows int32) bool {
	return columns > 0 && rows > 0 && columns <= 0xFFFF && rows <= 0xFFFF
}

// size returns the size of the terminal; 0 if it is unknown.
func (t *terminal) size() (columns, rows int32) {
	width, height := t.answers.size()
	return int32(width), int32(height) //nolint:gosec // at most 65535
}

// owner returns the client that owns the size and answers questions; nil if no client has a terminal. The caller holds mu.
func (t *terminal) owner() *view {
	if len(t.views) > 0 && t.views[0].columns > 0 {
		return t.views[0]
	}
	return nil
}

// copy runs until no process has the terminal open.
func (t *terminal) copy() {
	defer close(t.done)
	go t.answers.run(t.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := t.master.Read(buf)
		if n > 0 {
			// A full disk must not stop the program: output that cannot be written to the log is lost.
			_, _ = t.log.Write(buf[:n])
			t.publish(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func (t *terminal) publish(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	owner, others := t.split(p)
	t.ring = append(t.ring, p...)
	if len(t.ring) > 2*ringSize {
		old := t.old()
		t.modes.pass(t.ring[:old])
		t.ring = append(t.ring[:0], t.ring[old:]...)
	}
	for _, v := range slices.Clone(t.views) {
		shown := others
		if v == owner {
			shown = p
		}
		if len(v.pending)+len(shown) > backlog {
			t.drop(v)
			_ = v.conn.Close()
			continue
		}
		v.pending = append(v.pending, shown...)
		v.wake()
	}
}

// split returns the client that receives the output as it is, and what the others receive: the owner of the size answers questions, and its terminal beeps.
// Without an owner, the questions are answered here. The caller holds mu.
func (t *terminal) split(p []byte) (owner *view, others []byte) {
	if owner = t.owner(); owner != nil {
		t.answers.screen = nil // its size may change now
		if len(t.views) == 1 {
			t.sieve = sieve{removed: t.ask}
			return owner, nil
		}
	}
	t.answers.drawn, t.held = 0, len(t.sieve.held)
	others = t.sieve.filter(p, true)
	t.answers.draw(others)
	return owner, others
}

// ask answers a question if no client can. The caller holds mu.
func (t *terminal) ask(kept, question []byte) {
	if t.owner() == nil {
		t.answers.give(question, t.before, kept)
	}
}

// before returns the output before the current call, without the sequence that continues in it.
func (t *terminal) before() []byte {
	last := t.last()
	return last[:len(last)-min(t.held, len(last))]
}

func (v *view) wake() {
	select {
	case v.ready <- struct{}{}:
	default:
	}
}

// drop closes a view; its writer still sends the pending output. If it owned the size, the terminal gets the size of the next owner. Without one, the size
// remains. The caller holds mu.
func (t *terminal) drop(v *view) {
	if v.closed {
		return
	}
	v.closed = true
	t.views = slices.DeleteFunc(t.views, func(other *view) bool { return other == v })
	if owner := t.owner(); owner != nil {
		t.resize(owner.columns, owner.rows)
	}
	v.wake()
}

// join adds a client, which first receives the last output.
func (t *terminal) join(conn net.Conn) *view {
	v := &view{conn: conn, ready: make(chan struct{}, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		v.closed = true
		_ = conn.Close()
		return v
	}
	v.pending = append(v.pending, t.last()...)
	v.wake()
	t.views = append(t.views, v)
	t.gone.Go(func() { t.write(v) })
	return v
}

// replay returns how many bytes of earlier output a client that joins now receives first.
func (t *terminal) replay() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.last())
}

// last returns the bytes that a new client receives first: sequences that set the modes of the terminal, then the last output. The caller holds mu.
func (t *terminal) last() []byte {
	old := t.old()
	modes := t.modes.clone()
	modes.pass(t.ring[:old])
	return append(modes.sequences(), t.ring[old:]...)
}

// old returns the number of bytes at the beginning of ring that a client does not receive. The rest of ring begins at a line break or an escape sequence, if
// the rest contains one.
func (t *terminal) old() int {
	old := max(0, len(t.ring)-ringSize)
	if old > 0 {
		old += max(0, bytes.IndexAny(t.ring[old:], "\n\x1b"))
	}
	return old
}

// resized notes that a client has a terminal of this size. If the client had another size before, it now owns the size of the terminal; behind others, only if
// no other client has a terminal.
func (t *terminal) resized(v *view, columns, rows int32, behind bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.closed || !validSize(columns, rows) || v.columns == columns && v.rows == rows {
		return
	}
	v.columns, v.rows = columns, rows
	others := slices.DeleteFunc(t.views, func(other *view) bool { return other == v })
	at := slices.IndexFunc(others, func(other *view) bool { return !behind || other.columns == 0 })
	if at < 0 {
		at = len(others)
	}
	t.views = slices.Insert(others, at, v)
	if at == 0 {
		t.resize(columns, rows)
	}
}

func (t *terminal) leave(v *view) {
	t.mu.Lock()
	t.drop(v)
	t.mu.Unlock()
}

// write sends pending output to one client, and closes the connection at the end.
func (t *terminal) write(v *view) {
	defer func() { _ = v.conn.Close() }()
	for range v.ready {
		t.mu.Lock()
		p, closed := v.pending, v.closed
		v.pending = nil
		t.mu.Unlock()
		if len(p) > 0 {
			_ = v.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := v.conn.Write(p); err != nil {
				t.leave(v)
				return
			}
		}
		if closed {
			return
		}
	}
}

// finish is called when no process of the tree is left. It waits until the last output is in the log, and then until the clients have received it. Each wait
// takes at most the duration farewell.
func (t *terminal) finish() {
	select {
	case <-t.done:
	case <-time.After(farewell):
	}
	t.mu.Lock()
	t.ended = true
	for _, v := range slices.Clone(t.views) {
		t.drop(v)
	}
	t.mu.Unlock()
	flushed := make(chan struct{})
	go func() { t.gone.Wait(); close(flushed) }()
	select {
	case <-flushed:
	case <-time.After(farewell):
	}
}
