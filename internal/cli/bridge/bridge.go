// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridge joins an editor, on its standard input and output, to a language server's multiplexer. The connection may be lost at any
// time (the multiplexer was killed, its object was stopped for a while): the bridge connects again and attaches as the editor would have,
// so that the editor notices nothing but the requests that were under way, which fail with an error that says that they may be tried again.
package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// Options say what is joined to what. Zero times and bounds mean the defaults.
type Options struct {
	// In and Out are the editor's.
	In  io.Reader
	Out io.Writer
	// Dial connects to the multiplexer. It may wait, until the context ends. An error that wraps ErrGone ends the bridge; after any other it
	// is called again, ever more rarely.
	Dial func(ctx context.Context) (net.Conn, error)
	// Say tells people what goes on.
	Say func(format string, args ...any)

	// Wait is how long a request waits for a connection (60 s), WaitBytes how many bytes may wait (32 MiB).
	Wait      time.Duration
	WaitBytes int
	// Slowest is the longest time between two tries to connect (2 s).
	Slowest time.Duration
}

// ErrGone is wrapped by errors of Dial that no waiting mends: the object does not exist.
var ErrGone = errors.New("there is nothing to connect to")

const (
	fastest = 50 * time.Millisecond
	// steady is how long a connection has to have lasted to be counted as a good one.
	steady = 5 * time.Second
	// flushTime is for what the editor has said last, when it is done.
	flushTime = 5 * time.Second
	// sweep is how often requests that wait are looked at.
	sweep = 250 * time.Millisecond

	session   = document.Session(1)
	documents = 1 << 20
	textBytes = 1 << 30
)

// bridge is one run.
type bridge struct {
	Options

	// writing is for Out, which is written to by more than one.
	writing sync.Mutex

	mu      sync.Mutex
	changed *sync.Cond
	docs    *document.Set
	// initialize is the editor's request, and initialized its notification, once they came; answered says that it has the answer to the first.
	initialize, initialized []byte
	initializeID            string
	answered                bool

	// queue is what waits to be sent, oldest first.
	queue      []message
	queueBytes int
	// link is the present connection; nil while there is none.
	link *link
	// sent are the requests of the editor that were sent and have no answer.
	sent map[string]string // their methods, by id
	// asked are requests of the server: the id that the editor was given, and the one that it had on the present connection.
	asked map[string][]byte
	ids   int64
	// exited says that the editor has said exit: it wants no more answers.
	exited bool
}

// message is one that waits to be sent.
type message struct {
	body     []byte
	id       string // of a request; empty otherwise
	method   string // of a request
	document bool   // its content is in the set of documents too
	here     bool   // it is about something of the present connection, and nothing to another one
	since    time.Time
}

// link is one connection.
type link struct {
	conn     net.Conn
	attached bool // what the editor says may be sent: the multiplexer knows what it said before
	reattach string
	lost     bool
	busy     bool // a message is being written
}

// Run joins the two until the editor is done (nil), there is nothing to connect to any more, or the context ends.
func Run(ctx context.Context, opts Options) error {
	if opts.Wait == 0 {
		opts.Wait = time.Minute
	}
	if opts.WaitBytes == 0 {
		opts.WaitBytes = 32 << 20
	}
	if opts.Slowest == 0 {
		opts.Slowest = 2 * time.Second
	}
	b := &bridge{
		Options: opts, docs: document.NewSet(document.Limits{Documents: documents, Bytes: textBytes}),
		sent: map[string]string{}, asked: map[string][]byte{},
	}
	b.changed = sync.NewCond(&b.mu)
	b.docs.Detach()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read := make(chan error, 1)
	// Reading the editor can't be broken off; this ends with the program, or when the editor closes its end.
	go func() { read <- b.readEditor() }()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { b.sweep(ctx) })
	connected := make(chan error, 1)
	all.Go(func() { connected <- b.connect(ctx) })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-connected:
		return err
	case err := <-read:
		b.flush(ctx)
		return err
	}
}

// connect keeps a connection, until the context ends or there is nothing to connect to.
func (b *bridge) connect(ctx context.Context) error {
	wait, said := fastest, ""
	for {
		began := time.Now()
		conn, err := b.Dial(ctx)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return ctx.Err()
		case errors.Is(err, ErrGone):
			return err
		case err == nil:
			began = time.Now()
			err = b.serve(ctx, conn)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b.Say("the connection was lost (%v); connecting again", err)
		case err.Error() != said:
			said = err.Error()
			b.Say("%s; trying again", said)
		}
		if time.Since(began) > steady {
			wait = fastest
		}
		// Many editors that lost the same multiplexer should not come back at the same moment.
		timer := time.NewTimer(wait/2 + rand.N(wait))
		wait = min(2*wait, b.Slowest)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// serve uses one connection until it is lost, and says why.
func (b *bridge) serve(ctx context.Context, conn net.Conn) error {
	l := &link{conn: conn}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	b.mu.Lock()
	b.link = l
	b.mu.Unlock()
	written := make(chan error, 1)
	go func() {
		err := b.write(l)
		_ = conn.Close()
		written <- err
	}()
	err := b.readServer(l)
	_ = conn.Close()
	b.lose(l)
	if failed := <-written; failed != nil {
		return failed
	}
	return err
}

// lose fails what was under way and keeps what was not sent.
func (b *bridge) lose(l *link) {
	b.mu.Lock()
	l.lost, b.link = true, nil
	clear(b.asked)
	var kept []message
	b.queueBytes = 0
	if _, asked := b.sent[b.initializeID]; asked && !b.answered {
		// The editor knows nothing of the server yet: it is asked anew.
		delete(b.sent, b.initializeID)
		kept = append(kept, message{body: b.initialize, id: b.initializeID, method: "initialize", since: time.Now()})
	}
	for _, m := range b.queue {
		if !m.here && (!m.document || !b.answered) {
			kept = append(kept, m)
		}
	}
	for _, m := range kept {
		b.queueBytes += len(m.body)
	}
	b.queue = kept
	failed := b.sent
	b.sent = map[string]string{}
	b.changed.Broadcast()
	b.mu.Unlock()
	for id, method := range failed {
		b.answer(lostBody(id, method))
	}
}

// sweep fails requests that have waited for too long.
func (b *bridge) sweep(ctx context.Context) {
	tick := time.NewTicker(min(sweep, b.Wait))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b.expire(time.Now())
		}
	}
}

func (b *bridge) expire(now time.Time) {
	b.mu.Lock()
	var kept []message
	var late []string
	for _, m := range b.queue {
		if m.id != "" && m.id != b.initializeID && now.Sub(m.since) > b.Wait {
			late = append(late, m.id)
			b.queueBytes -= len(m.body)
			continue
		}
		kept = append(kept, m)
	}
	b.queue = kept
	b.changed.Broadcast()
	b.mu.Unlock()
	for _, id := range late {
		b.fail(id, fmt.Sprintf("the language server could not be reached for %s; try again", b.Wait))
	}
}

// flush waits until what the editor said last was sent, and answered unless it said exit, if there is somebody to send it to.
func (b *bridge) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.changed.Broadcast()
	})
	defer stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	unsaid := func() bool { return len(b.queue) > 0 || b.link.busy || !b.exited && len(b.sent) > 0 }
	for b.link != nil && unsaid() && ctx.Err() == nil {
		b.changed.Wait()
	}
}

// fail answers a request of the editor with an error that says that it may be made again.
func (b *bridge) fail(id, why string) {
	b.answer(errorBody(id, why))
}

// answer sends a message to the editor.
func (b *bridge) answer(body []byte) {
	b.send(wire.AppendFrame(nil, body))
}

func (b *bridge) send(frame []byte) {
	b.writing.Lock()
	defer b.writing.Unlock()
	// An editor that is gone is noticed by reading.
	_, _ = b.Out.Write(frame)
}

func clone(body []byte) []byte { return bytes.Clone(body) }
