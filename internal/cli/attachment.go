// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// reconnectFor bounds how long attach tries to reconnect to the manager; reconnectEvery is the interval between two attempts.
	reconnectFor   = 30 * time.Second
	reconnectEvery = 500 * time.Millisecond
	// settledFor is how long the output has to pause after the end of piped input before attach exits; settleLimit bounds that wait.
	settledFor  = time.Second
	settleLimit = 10 * time.Second
)

// attachment is one call of berth attach. It copies between the terminal of the user and the terminal of a process, over successive connections.
type attachment struct {
	*app
	attachOptions
	flags       *connectionFlags
	ref         reference
	window      window
	shown       *terminalModes // the output of the process at the terminal of the user
	patience    time.Duration  // how long to try to reconnect
	input       chan input
	unsent      *input       // taken from input, and not sent yet; used by one call of send at a time
	counted     countedInput // the input, if it is piped and managers count it
	atEnd       bool         // the input has ended
	uid         types.UID    // of the object to which the user attached; empty if unknown
	incarnation int64        // the incarnation to which the user attached; 0 if unknown
}

// input is a piece of what the user types. Its error, if any, comes after its keys: errDetached, io.EOF, or another error of the reader.
type input struct {
	keys []byte
	err  error
}

// detaches reports whether nothing is left to do but to detach.
func (i *input) detaches() bool { return len(i.keys) == 0 && errors.Is(i.err, errDetached) }

var (
	errDetached = errors.New("detached")
	errReplaced = errors.New("the process was restarted")
)

// connect connects to the terminal. It returns errReplaced if the object now has another incarnation than the one to which the user attached.
func (t *attachment) connect(ctx context.Context, to *connection) (line, error) {
	object, err := to.get(ctx, t.ref)
	if err == nil && t.replaced(object) {
		return nil, errReplaced
	}
	var size *runtime.Terminal
	if t.sized() {
		size = t.window.size()
	}
	ref := t.ref
	ref.uid, ref.incarnation = t.uid, t.incarnation // the object may also be replaced after it was read
	conn, err := t.line(ctx, to, ref, size, t.counted.CountedInput)
	if err == nil && t.incarnation == 0 && object != nil {
		// Read the object again: if it was asleep, the connection has started a new incarnation.
		if now, err := to.get(ctx, t.ref); err == nil && now.GetUID() == object.GetUID() {
			t.uid, t.incarnation = now.GetUID(), now.GetProcessStatus().Incarnation
		}
	}
	return conn, err
}

// replaced reports whether the user attached to another object or incarnation. Incarnations of a recreated object begin at 1 again, so both are compared.
func (t *attachment) replaced(object process.Object) bool {
	return t.incarnation != 0 && (object.GetUID() != t.uid || object.GetProcessStatus().Incarnation != t.incarnation)
}

// sized reports whether the process adapts to the terminal of the user, which then also answers the questions of the process. With piped input, the answers would
// not reach the process, but the shell of the user.
func (t *attachment) sized() bool { return t.window.in >= 0 && !t.readOnly }

// stay copies until the process exits, the user detaches, the piped input ends, or the context is done. It reconnects when the manager shuts down or the
// connection is lost. left is true if the user detached or the piped input ended.
func (t *attachment) stay(ctx context.Context, conn line) (left bool, err error) {
	t.input = make(chan input)
	stop := make(chan struct{})
	defer close(stop)
	// A blocked read from the keyboard cannot be interrupted. If the attached process exits meanwhile, this goroutine stays blocked until berth attach exits.
	go t.read(stop)
	for {
		left, err = t.join(ctx, conn)
		if left || err == nil || ctx.Err() != nil || t.atEnd || !managerGone(err) {
			return left, err
		}
		if conn, err = t.again(ctx, err); err != nil {
			switch {
			case errors.Is(err, errDetached):
				return true, nil
			case errors.Is(err, errReplaced):
				return false, nil
			}
			return false, err
		}
		if t.window.in < 0 && !t.readOnly && !t.counted.Resume {
			t.say("input that the manager had received and not typed is lost")
		}
		t.leaveScreen("\x1b[H\x1b[2J") // the manager shows the last output again
	}
}

// leaveScreen restores the modes that the terminal of the user had before, and then writes the given text to it.
func (t *attachment) leaveScreen(then string) {
	if t.window.out >= 0 {
		t.shown.restore()
		_, _ = io.WriteString(t.raw, then)
	}
}

// managerGone reports whether a connection ended because the manager shut down or the connection was lost.
func managerGone(err error) bool {
	var end *endpoint.EndError
	return errors.Is(err, endpoint.ErrLost) || errors.As(err, &end) && end.ManagerEnds()
}

// read sends the typed keys to t.input, until the detach key or the end of the input. It reads nothing that was typed later.
func (t *attachment) read(stop <-chan struct{}) {
	pieces, more := make(chan input, 1), make(chan struct{}, 1)
	defer close(more)
	go t.readPieces(pieces, more)
	scanner := keyScanner{key: t.leaveKey}
	more <- struct{}{}
	for {
		var rest <-chan time.Time
		if patience := scanner.patience(); patience > 0 {
			rest = t.clock.After(patience)
		}
		var next input
		select {
		case piece := <-pieces:
			if next = scanner.next(piece); next.err == nil {
				more <- struct{}{}
			}
		case <-rest:
			next = input{keys: scanner.take()}
		case <-stop:
			return
		}
		if t.readOnly {
			next.keys = nil
		}
		select {
		case t.input <- next:
		case <-stop:
			return
		}
		if next.err != nil {
			return
		}
	}
}

// next returns what to pass on of a piece of input.
func (s *keyScanner) next(piece input) input {
	keys, detach := s.scan(piece.keys)
	switch {
	case detach:
		return input{keys, errDetached}
	case piece.err != nil:
		return input{append(keys, s.take()...), piece.err}
	}
	return input{keys: keys}
}

// readPieces reads one piece of what the user types for each value from more.
func (t *attachment) readPieces(pieces chan<- input, more <-chan struct{}) {
	for range more {
		buffer := make([]byte, 4096)
		n, err := t.in.Read(buffer)
		pieces <- input{buffer[:n], err}
	}
}

// join copies over one connection until it ends, then closes it.
func (t *attachment) join(ctx context.Context, conn line) (left bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	sent := make(chan struct{})
	defer func() { // the next connection must not send before this one has stopped; each return below closes the connection first
		cancel()
		<-sent
		t.takeLast(conn)
		if t.unsent != nil && t.unsent.detaches() {
			left, err = true, errDetached
		}
	}()
	if t.sized() {
		t.window.onResize(ctx, func(size runtime.Terminal) { _ = conn.Resize(size) })
	}
	shown := make(chan struct{}, 1)
	ended, typed := make(chan error, 1), make(chan error, 1)
	go func() { ended <- conn.Receive(noting{t.shown, shown}, nil) }()
	go func() {
		defer close(sent)
		typed <- t.send(ctx, conn)
	}()
	hangUp := func() {
		_ = conn.Close()
		<-ended //nolint:errcheck // the error does not matter, only that Receive has returned
	}
	var settled, limit <-chan time.Time
	var lost error
	for {
		select {
		case <-ctx.Done():
			hangUp()
			return false, ctx.Err()
		case err := <-ended:
			_ = conn.Close()
			return false, err
		case err := <-typed:
			switch {
			case errors.Is(err, errEndPassed): // the process ends the connection
			case errors.Is(err, endpoint.ErrLost): // Receive also returns, and knows whether the process has ended
				lost, limit = err, t.clock.After(settledFor)
			case errors.Is(err, io.EOF):
				t.atEnd = true
				settled, limit = t.clock.After(settledFor), t.clock.After(settleLimit)
			default:
				hangUp()
				return errors.Is(err, errDetached), err
			}
		case <-shown:
			if t.atEnd {
				settled = t.clock.After(settledFor)
			}
		case <-settled:
			hangUp()
			return true, nil
		case <-limit:
			hangUp()
			return lost == nil, lost
		}
	}
}

// send sends the keys from t.input over one connection, until the input or the connection ends.
func (t *attachment) send(ctx context.Context, conn line) error {
	if counting, is := conn.(countingLine); is && t.counted.Stream != "" {
		return t.sendCounted(ctx, counting)
	}
	if t.counted.Resume {
		return errUnknownInput
	}
	return t.sendUncounted(ctx, conn)
}

// sendUncounted sends piped input that the connection did not accept over the next one. Keys that a user has typed are not: the user does not see where they go.
func (t *attachment) sendUncounted(ctx context.Context, conn line) error {
	for {
		if t.unsent == nil {
			select {
			case next := <-t.input:
				t.unsent = &next
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		next, failed := t.unsent, error(nil)
		if len(next.keys) > 0 {
			var n int
			n, failed = conn.Write(next.keys)
			next.keys = next.keys[n:]
		}
		if failed != nil && t.window.in >= 0 {
			next.keys = nil
		}
		switch {
		case failed != nil && !next.detaches():
			return fmt.Errorf("%w: %w", endpoint.ErrLost, failed)
		case next.err != nil:
			return next.err // stays in t.unsent: if the connection ends now, the next one still has to learn of the end of the input
		}
		t.unsent = nil
	}
}

// again reconnects. Keys that the user types at a terminal in the meantime are dropped, except the detach key; piped input is sent after the reconnection.
func (t *attachment) again(ctx context.Context, lost error) (line, error) {
	t.status("reconnecting…")
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	type result struct {
		conn line
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, err := t.retry(ctx)
		done <- result{conn, err}
	}()
	var keys chan input
	if t.window.in >= 0 {
		keys = t.input
	}
	for {
		select {
		case found := <-done:
			if found.err != nil && !errors.Is(found.err, errReplaced) {
				return nil, fmt.Errorf("%w, and reconnecting failed for %s: %w", lost, t.patience, found.err)
			}
			return found.conn, found.err
		case next := <-keys:
			if next.err == nil {
				continue
			}
			cancel()
			if found := <-done; found.conn != nil {
				_ = found.conn.Close()
			}
			return nil, next.err
		}
	}
}

// retry tries to connect until it succeeds or the context is done. It reads the kubeconfig at each attempt, because berth up may have another address after a
// restart.
func (t *attachment) retry(ctx context.Context) (conn line, err error) {
	_ = wait.PollUntilContextCancel(ctx, reconnectEvery, true, func(ctx context.Context) (bool, error) {
		var to *connection
		if _, to, err = t.reach(ctx, t.flags, t.ref.String()); err == nil {
			conn, err = t.connect(ctx, to)
		}
		return err == nil || errors.Is(err, errReplaced), nil
	}) // the last error of an attempt says more than that of the context
	return conn, err
}

// status prints a line to stderr. It also works while the terminal is raw, where a line feed does not return the carriage.
func (t *attachment) status(text string) {
	if t.window.in >= 0 && t.window.out >= 0 {
		_, _ = io.WriteString(t.raw, "\r\n")
	}
	t.say("%s", text)
	if t.window.in >= 0 && t.window.out >= 0 {
		_, _ = io.WriteString(t.raw, "\r")
	}
}

// noting is a writer that sends a value to its channel, used, before each write, unless the channel is full.
type noting struct {
	io.Writer
	used chan<- struct{}
}

func (n noting) Write(p []byte) (int, error) {
	select {
	case n.used <- struct{}{}:
	default:
	}
	return n.Writer.Write(p)
}
