// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Attach implements runtime.Terminals. It returns nil when the process exits, when in.Read returns io.EOF, and when ctx is done. If in.Read is still blocked at
// that time, one goroutine remains until in.Read returns.
func (h *Host) Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan runtime.Terminal) error {
	client, token, err := h.attach(uid)
	if err != nil {
		return fmt.Errorf("attach to %s: %w", uid, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Closing the connection ends the io.Copy below.
	stop := context.AfterFunc(ctx, func() { _ = client.Conn.Close() })
	defer func() {
		stop()
		_ = client.Conn.Close()
	}()
	if input, is := in.(*runtime.CountedInput); is {
		go h.feedCounted(ctx, uid, token, input, client, cancel)
	} else {
		go feed(in, client, cancel)
	}
	go runtime.EachSize(ctx, resize, func(size runtime.Terminal) { _ = client.Resize(size.Columns, size.Rows) })

	_, err = io.Copy(shim.Quiet(out, client.Replay), client.Conn)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, io.EOF) {
		return fmt.Errorf("attach to %s: %w", uid, cause)
	}
	var broken *net.OpError
	if err != nil && !errors.As(err, &broken) {
		return fmt.Errorf("attach to %s: write the output: %w", uid, err)
	}
	return nil
}

// terminalRecord returns the record of the running incarnation of uid. It returns an error unless that incarnation has a terminal and a live shim.
func (h *Host) terminalRecord(uid types.UID) (*shim.Record, error) {
	e, err := h.acquire(uid)
	if err != nil {
		return nil, err
	}
	f := h.inspect(e)
	h.release(e, f.exists || f.recorded)
	switch {
	case !f.recorded || f.incarnation.Phase != facts.Running || f.incarnation.LeaderExit != nil:
		return nil, fmt.Errorf("not running: %w", runtime.ErrNotFound)
	case !f.record.Terminal:
		return nil, runtime.ErrNoTerminal
	case !f.held:
		return nil, fmt.Errorf("the shim of the terminal was killed: %w", runtime.ErrNotFound)
	}
	return &f.record, nil
}

// attach connects to the shim of a UID and attaches to its terminal. It also returns the token of the shim.
func (h *Host) attach(uid types.UID) (*shim.Client, string, error) {
	record, err := h.terminalRecord(uid)
	if err != nil {
		return nil, "", err
	}
	client, err := h.dial(uid, record.Token)
	if err == nil {
		// Size 0 keeps the current size; the first resize sets it.
		if err = client.Attach(0, 0); err != nil {
			_ = client.Conn.Close()
		}
	}
	switch {
	case errors.Is(err, shim.ErrNoTerminal):
		return nil, "", runtime.ErrNoTerminal
	case hungUp(err):
		return nil, "", fmt.Errorf("the process exited in the meantime (%w): %w", err, runtime.ErrNotFound)
	case err != nil:
		return nil, "", err
	}
	return client, record.Token, nil
}

// hungUp reports whether the connection to the shim was refused or closed before the shim answered. The usual cause is that the shim has exited.
func hungUp(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED, fs.ErrNotExist},
		func(hint error) bool { return errors.Is(err, hint) })
}

// Input implements runtime.Terminals. It queries the shim, because the shim holds the terminal and has the permission to inspect the program.
func (h *Host) Input(_ context.Context, uid types.UID) (facts.Input, error) {
	input, err := h.input(uid)
	if err != nil {
		return facts.Input{}, fmt.Errorf("inspect the terminal of %s: %w", uid, err)
	}
	return input, nil
}

func (h *Host) input(uid types.UID) (facts.Input, error) {
	record, err := h.terminalRecord(uid)
	if err != nil {
		return facts.Input{}, err
	}
	client, err := h.dial(uid, record.Token)
	if err != nil {
		return facts.Input{}, err
	}
	defer func() { _ = client.Conn.Close() }()
	return client.Input()
}

// Told implements runtime.Terminals. It queries the shim, which has seen all output of the program.
func (h *Host) Told(_ context.Context, uid types.UID) (facts.Signals, error) {
	told, err := h.told(uid)
	if err != nil {
		return facts.Signals{}, fmt.Errorf("read the signals of %s: %w", uid, err)
	}
	return told, nil
}

func (h *Host) told(uid types.UID) (facts.Signals, error) {
	record, err := h.terminalRecord(uid)
	if err != nil {
		return facts.Signals{}, err
	}
	client, err := h.dial(uid, record.Token)
	if err != nil {
		return facts.Signals{}, err
	}
	defer func() { _ = client.Conn.Close() }()
	return client.Told()
}

// Size implements runtime.Terminals. The shim holds the terminal; when it exits, it records the last size.
func (h *Host) Size(_ context.Context, uid types.UID) (runtime.Terminal, error) {
	size, err := h.size(uid)
	if err != nil {
		return runtime.Terminal{}, fmt.Errorf("read the size of the terminal of %s: %w", uid, err)
	}
	return size, nil
}

func (h *Host) size(uid types.UID) (runtime.Terminal, error) {
	e, err := h.acquire(uid)
	if err != nil {
		return runtime.Terminal{}, err
	}
	f := h.inspect(e)
	h.release(e, f.exists || f.recorded)
	switch {
	case f.end != nil && f.end.Columns > 0 && f.end.Rows > 0:
		return runtime.Terminal{Columns: f.end.Columns, Rows: f.end.Rows}, nil
	case !f.recorded || !f.record.Terminal || !f.held:
		return runtime.Terminal{}, runtime.ErrNotFound
	}
	client, err := h.dial(uid, f.record.Token)
	if err != nil {
		return runtime.Terminal{}, err
	}
	defer func() { _ = client.Conn.Close() }()
	columns, rows, err := client.Size()
	return runtime.Terminal{Columns: columns, Rows: rows}, err
}

// feed copies the input to the terminal until the input ends, which ends the attachment, or the connection is closed.
func feed(in io.Reader, client *shim.Client, end context.CancelCauseFunc) {
	buf := make([]byte, 8<<10)
	for {
		n, err := in.Read(buf)
		if _, failed := client.Write(buf[:n]); failed != nil {
			return
		}
		if err != nil {
			end(err)
			return
		}
	}
}

// feedCounted does the same as feed for counted input, over another connection to the shim with this token, which counts what the terminal has received. A shim of
// an earlier version does not count; then it calls feed.
func (h *Host) feedCounted(ctx context.Context, uid types.UID, token string, in *runtime.CountedInput, attached *shim.Client, end context.CancelCauseFunc) {
	client, err := h.dial(uid, token)
	if err != nil {
		return // the process has exited, which ends the attachment
	}
	defer func() { _ = client.Conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = client.Conn.Close() })()
	receipt, err := client.Type(shim.Keys{Stream: in.Stream, Resume: in.Resume})
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		feed(in, attached, end)
		return
	case errors.Is(err, shim.ErrUnknownStream):
		end(runtime.ErrUnknownInput)
		return
	}
	buf := make([]byte, shim.MaxKeys)
	for err == nil {
		in.Received(receipt)
		n, failed := in.Read(buf)
		ended := errors.Is(failed, runtime.ErrInputEnd)
		if failed != nil && !ended {
			end(failed)
			return
		}
		if receipt, err = client.Type(shim.Keys{Stream: in.Stream, Offset: receipt.Total, Data: buf[:n], End: ended}); ended {
			break
		}
	}
	if err == nil {
		in.Received(receipt)
	}
}

// Type implements runtime.Terminals. It returns after all input is written to the terminal.
func (h *Host) Type(ctx context.Context, uid types.UID, strokes runtime.Keystrokes) error {
	client, _, err := h.attach(uid)
	if err != nil {
		return fmt.Errorf("type into %s: %w", uid, err)
	}
	defer func() { _ = client.Conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = client.Conn.Close() })
	defer stop()
	sent := make(chan error, 1)
	typist := runtime.NewTypist()
	go func() {
		err := typist.Type(ctx, client, strokes)
		if half, ok := client.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // fails if the process just exited, possibly because of this input
		}
		sent <- err
	}()
	// The shim closes the connection after it has forwarded all input. Until then, this side must read the output that the shim sends.
	_, _ = io.Copy(typist, client.Conn)
	_ = client.Conn.Close()
	err = <-sent
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("type into %s: %w", uid, err)
	}
	return nil
}
