// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/signals"
)

const (
	// ringSize is how much of the last output a client receives when it attaches, in bytes.
	ringSize = 64 << 10
	// backlog is how much output may be queued for a slow client before it is disconnected, in bytes.
	backlog = 256 << 10
	// farewell limits two waits at the end: until the last output is in the log, and then until the clients have received it.
	farewell = time.Second
)

// Device is the terminal of a program. Its methods are called concurrently.
type Device interface {
	// Write types into the program. It may block while the program does not read.
	io.Writer
	// Size returns the size; 0 if it is unknown.
	Size() (columns, rows int32)
	// Resize sets a valid size. It does not block.
	Resize(columns, rows int32)
}

// Terminal distributes the output of a program to the attached clients, and decides who answers the questions of the program: one client, or the Terminal itself.
type Terminal struct {
	device Device

	mu      sync.Mutex
	ring    []byte
	modes   modes   // in effect at the beginning of ring
	views   []*View // those with a terminal come first; the first one owns the size
	sieve   sieve
	held    int // how many bytes sieve had held back before the current call
	answers *answers
	told    signals.Tracker
	ended   bool
	gone    sync.WaitGroup // writers to clients
}

// View is one client of a Terminal.
type View struct {
	conn          net.Conn
	columns, rows int32         // the size of its terminal; 0 if it has none, or only looks on
	ready         chan struct{} // signaled when output is pending or the view is closed

	pending []byte
	closed  bool
}

// NewTerminal returns a Terminal without output and clients.
func NewTerminal(device Device, newScreen NewScreen) *Terminal {
	t := &Terminal{device: device, answers: newAnswers(device, newScreen)}
	t.sieve.removed = t.ask
	return t
}

// Answer types the answers of the Terminal into the program until done is closed.
func (t *Terminal) Answer(done <-chan struct{}) { t.answers.run(done) }

func validSize(columns, rows int32) bool {
	return columns > 0 && rows > 0 && columns <= 0xFFFF && rows <= 0xFFFF
}

// owner returns the client that owns the size and answers questions; nil if no client has a terminal. The caller holds mu.
func (t *Terminal) owner() *View {
	if len(t.views) > 0 && t.views[0].columns > 0 {
		return t.views[0]
	}
	return nil
}

// Publish distributes output of the program, and answers its questions if no client can.
func (t *Terminal) Publish(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told.Note(p, time.Now())
	owner, others := t.split(p)
	t.keep(p)
	t.show(p, owner, others)
}

// PublishEarlier distributes output that was written while nothing followed the program. Questions in it get no answer, because the program may read a late answer
// as typed text.
func (t *Terminal) PublishEarlier(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers.screen, t.sieve = nil, sieve{removed: t.ask}
	t.told.Note(p, time.Time{})
	t.keep(p)
	t.show(p, nil, new(sieve).filter(p, false))
}

// keep appends to the last output. The caller holds mu.
func (t *Terminal) keep(p []byte) {
	t.ring = append(t.ring, p...)
	if len(t.ring) > 2*ringSize {
		old := t.old()
		t.modes.pass(t.ring[:old])
		t.ring = append(t.ring[:0], t.ring[old:]...)
	}
}

// show sends output to the owner as it is, and to the other clients what others contains. The caller holds mu.
func (t *Terminal) show(p []byte, owner *View, others []byte) {
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

// Told returns what the program has told its terminal. Signals in earlier output have no time.
func (t *Terminal) Told() facts.Signals {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.told.Signals()
}

// split returns the client that receives the output as it is, and what the others receive: the owner of the size answers questions, and its terminal beeps.
// Without an owner, the questions are answered here. The caller holds mu.
func (t *Terminal) split(p []byte) (owner *View, others []byte) {
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
func (t *Terminal) ask(kept, question []byte) {
	if t.owner() == nil {
		t.answers.give(question, t.before, kept)
	}
}

// before returns the output before the current call, without the sequence that continues in it.
func (t *Terminal) before() []byte {
	last := t.last()
	return last[:len(last)-min(t.held, len(last))]
}

func (v *View) wake() {
	select {
	case v.ready <- struct{}{}:
	default:
	}
}

// drop closes a view; its writer still sends the pending output. If it owned the size, the terminal gets the size of the next owner. Without one, the size
// remains. The caller holds mu.
func (t *Terminal) drop(v *View) {
	if v.closed {
		return
	}
	v.closed = true
	t.views = slices.DeleteFunc(t.views, func(other *View) bool { return other == v })
	if owner := t.owner(); owner != nil {
		t.device.Resize(owner.columns, owner.rows)
	}
	v.wake()
}

// Join adds a client, which first receives the last output, without what must happen once only. Join closes conn when the output ends, or when the client reads
// too slowly.
func (t *Terminal) Join(conn net.Conn) *View {
	v := &View{conn: conn, ready: make(chan struct{}, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		v.closed = true
		_ = conn.Close()
		return v
	}
	v.pending = new(sieve).filter(t.last(), false)
	v.wake()
	t.views = append(t.views, v)
	t.gone.Go(func() { t.write(v) })
	return v
}

// Modes returns the sequences that set the modes in effect before the last output, and the length of that output in bytes. PublishEarlier of both, to another
// Terminal, restores the modes.
func (t *Terminal) Modes() (sequences []byte, last int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.modes.sequences(), len(t.ring)
}

// last returns the bytes that a new client receives first: sequences that set the modes of the terminal, then the last output. The caller holds mu.
func (t *Terminal) last() []byte {
	old := t.old()
	modes := t.modes.clone()
	modes.pass(t.ring[:old])
	return append(modes.sequences(), t.ring[old:]...)
}

// old returns the number of bytes at the beginning of ring that a client does not receive. The rest of ring begins at a line break or an escape sequence, if
// the rest contains one.
func (t *Terminal) old() int {
	old := max(0, len(t.ring)-ringSize)
	if old > 0 {
		old += max(0, bytes.IndexAny(t.ring[old:], "\n\x1b"))
	}
	return old
}

// Resized notes that a client has a terminal of this size. If the client had another size before, it now owns the size of the terminal; behind others, only if
// no other client has a terminal.
func (t *Terminal) Resized(v *View, columns, rows int32, behind bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.closed || !validSize(columns, rows) || v.columns == columns && v.rows == rows {
		return
	}
	v.columns, v.rows = columns, rows
	others := slices.DeleteFunc(t.views, func(other *View) bool { return other == v })
	at := slices.IndexFunc(others, func(other *View) bool { return !behind || other.columns == 0 })
	if at < 0 {
		at = len(others)
	}
	t.views = slices.Insert(others, at, v)
	if at == 0 {
		t.device.Resize(columns, rows)
	}
}

// Leave removes a client.
func (t *Terminal) Leave(v *View) {
	t.mu.Lock()
	t.drop(v)
	t.mu.Unlock()
}

// write sends pending output to one client, and closes the connection at the end.
func (t *Terminal) write(v *View) {
	defer func() { _ = v.conn.Close() }()
	for range v.ready {
		t.mu.Lock()
		p, closed := v.pending, v.closed
		v.pending = nil
		t.mu.Unlock()
		if len(p) > 0 {
			_ = v.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := v.conn.Write(p); err != nil {
				t.Leave(v)
				return
			}
		}
		if closed {
			return
		}
	}
}

// Finish removes all clients after they have received the output. It takes at most the duration farewell.
func (t *Terminal) Finish() {
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
