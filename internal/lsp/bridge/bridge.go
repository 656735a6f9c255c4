// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridge connects an editor, on its standard input and output, to the multiplexer of a language server. The connection may be lost at any time, for
// example because the multiplexer was killed or its object was stopped. The bridge then reconnects and repeats the messages with which the editor attached. The
// editor notices only that its requests in flight fail, with an error that states whether they may be retried.
package bridge

import (
	"cmp"
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

// Options configure a bridge. Zero durations and limits select the defaults in parentheses.
type Options struct {
	// In and Out are the streams of the editor.
	In  io.Reader
	Out io.Writer
	// Dial connects to the multiplexer. It may block until the context is done. An error that wraps ErrGone ends the bridge; after any other error Run calls
	// Dial again with back-off.
	Dial func(ctx context.Context) (net.Conn, error)
	// Say prints a message for the user.
	Say func(format string, args ...any)

	// Wait is how long a request waits for a connection (60 s). WaitBytes is the maximum size of all messages that wait, in bytes (32 MiB).
	Wait      time.Duration
	WaitBytes int
	// Slowest is the maximum pause between two attempts to connect (2 s).
	Slowest time.Duration
}

// ErrGone is wrapped by errors of Dial that a retry cannot fix, because the object does not exist.
var ErrGone = errors.New("the object does not exist")

const (
	fastest = 50 * time.Millisecond
	// steady is how long a connection must last to reset the back-off.
	steady = 5 * time.Second
	// flushTime bounds how long Run waits to send the last messages of the editor after its input has ended.
	flushTime = 5 * time.Second
	// sweep is the interval between two checks for requests that have waited too long.
	sweep = 250 * time.Millisecond

	session = document.Session(1)
)

// bridge is one call of Run.
type bridge struct {
	Options

	// writing guards Out, which several goroutines write to.
	writing sync.Mutex

	mu      sync.Mutex
	changed *sync.Cond
	docs    *document.Set
	// initialize and initialized are the request and the notification with these names, once the editor has sent them. answered is true once the editor has
	// received a successful response to initialize.
	initialize, initialized []byte
	initializeID            string
	answered                bool

	// queue holds the messages that wait to be sent, oldest first.
	queue      []message
	queueBytes int
	// link is the current connection, or nil.
	link *link
	// sent holds the requests of the editor that were sent and have no response yet.
	sent map[string]string // methods by request ID
	// asked maps the ID that the editor received for a request of the server to the ID of that request on the current connection.
	asked map[string][]byte
	ids   int64
	// exited is true once the editor has sent exit. After exit, the editor expects no more responses.
	exited bool
}

// message is a message that waits to be sent.
type message struct {
	body     []byte
	id       string // the ID of a request; empty for other messages
	method   string // the method of a request
	document bool   // the content of the message is also in docs
	here     bool   // the message applies only to the current connection
	since    time.Time
}

// link is one connection to the multiplexer.
type link struct {
	conn     net.Conn
	attached bool // messages of the editor are queued for this connection; attach sends the earlier messages first
	reattach string
	lost     bool
	busy     bool // a message is being written
}

// Run connects the editor and the multiplexer. It returns nil when the editor is done. It returns an error if reading from the editor fails, if Dial returns an
// error that wraps ErrGone, or if the context is done.
func Run(ctx context.Context, opts Options) error {
	opts.Wait, opts.WaitBytes, opts.Slowest = cmp.Or(opts.Wait, time.Minute), cmp.Or(opts.WaitBytes, 32<<20), cmp.Or(opts.Slowest, 2*time.Second)
	b := &bridge{
		Options: opts, docs: document.NewSet(document.Limits{}),
		sent: map[string]string{}, asked: map[string][]byte{},
	}
	b.changed = sync.NewCond(&b.mu)
	b.docs.Detach()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read := make(chan error, 1)
	// A read from the editor cannot be interrupted. This goroutine ends when the program exits or the editor closes its end of the stream.
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

// connect maintains a connection until the context is done or Dial returns an error that wraps ErrGone.
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
			b.Say("lost the connection (%v); reconnecting", err)
		case err.Error() != said:
			said = err.Error()
			b.Say("%s; retrying", said)
		}
		if time.Since(began) > steady {
			wait = fastest
		}
		// The random jitter keeps many editors that lost the same multiplexer from reconnecting at the same moment.
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

// serve uses one connection until it is lost, and returns the cause.
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

// lose fails the requests in flight on a lost connection and keeps the messages that were not sent.
func (b *bridge) lose(l *link) {
	b.mu.Lock()
	l.lost, b.link = true, nil
	clear(b.asked)
	var kept []message
	b.queueBytes = 0
	if _, asked := b.sent[b.initializeID]; asked && !b.answered {
		// The editor has no response to initialize yet, so initialize is sent again.
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

// sweep fails requests that have waited longer than Wait.
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
		b.fail(id, fmt.Sprintf("the language server has been unreachable for %s; retry the request", b.Wait))
	}
}

// flush waits until the last messages of the editor were sent and, unless the editor sent exit, its requests were answered. It returns early if there is no
// connection, or after flushTime.
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

// fail answers a request of the editor with an error that marks the request as retriable.
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
	// Ignore the error: reading from the editor detects that the editor is gone.
	_, _ = b.Out.Write(frame)
}
