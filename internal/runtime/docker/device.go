// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/terminal"
)

// device is the terminal of a container, for the answers to the questions of its program and for the sizes of clients.
type device struct {
	r   *Runtime
	uid types.UID
	id  string
	// silent is true if another client may answer: the one that created an adopted container.
	silent bool

	mu    sync.Mutex
	size  runtime.Terminal
	sizes chan runtime.Terminal // the last size that is not set yet
	ctx   context.Context       //nolint:containedctx // of the copier
	input net.Conn              // nil until the first answer
}

var _ shim.Device = (*device)(nil)

// newShared returns the Terminal of the container of a record. The entry is locked.
func (r *Runtime) newShared(e *entry) (*shim.Terminal, *device) {
	d := &device{r: r, uid: e.uid, id: e.record.Container, size: e.record.Size, sizes: make(chan runtime.Terminal, 1)}
	return shim.NewTerminal(d, func(columns, rows int) shim.Screen { return terminal.New(columns, rows) }), d
}

// Size implements shim.Device. It is the size that was last requested.
func (d *device) Size() (columns, rows int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.size.Columns, d.size.Rows
}

// Resize implements shim.Device. The method setSizes sets the size, because the engine may take long.
func (d *device) Resize(columns, rows int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.size = runtime.Terminal{Columns: columns, Rows: rows}
	select {
	case <-d.sizes:
	default:
	}
	d.sizes <- d.size
}

// serve answers questions and sets sizes while the function copies runs.
func (d *device) serve(ctx context.Context, shared *shim.Terminal, copies func()) {
	ctx, cancel := context.WithCancel(ctx)
	d.ctx = ctx
	var serving sync.WaitGroup
	serving.Go(func() { shared.Answer(ctx.Done()) })
	d.r.Go(func() { d.setSizes(ctx) }) // not waited for: it locks the entry, whose holder may wait for the copier
	copies()
	cancel()
	serving.Wait()
	if d.input != nil {
		_ = d.input.Close()
	}
}

// setSizes sets the sizes that Resize requests, until the context ends.
func (d *device) setSizes(ctx context.Context) {
	for {
		select {
		case size := <-d.sizes:
			if err := d.r.resize(ctx, d.uid, d.id, size); err != nil && ctx.Err() == nil {
				d.r.log.V(1).Info("Cannot resize the terminal of a container", "err", err.Error())
			}
		case <-ctx.Done():
			return
		}
	}
}

// Write implements shim.Device. It types an answer into the program through a connection that remains open, so that the answers arrive in order. If the
// connection is lost, the answer is lost too: part of it may have arrived.
func (d *device) Write(answer []byte) (int, error) {
	if d.silent {
		return len(answer), nil
	}
	if d.input == nil {
		answered, err := d.r.attach(d.ctx, d.id, client.ContainerAttachOptions{Stdin: true})
		if err != nil {
			return 0, err
		}
		d.input = answered.Conn
	}
	stop := context.AfterFunc(d.ctx, func() { _ = d.input.Close() }) // the program may not read
	defer stop()
	n, err := d.input.Write(answer)
	if err != nil {
		_ = d.input.Close()
		d.input = nil
	}
	return n, err
}

// resize sets the size of the terminal of a container, and records it.
func (r *Runtime) resize(ctx context.Context, uid types.UID, id string, size runtime.Terminal) error {
	ctx, e, release, err := r.acquireFor(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	if e.record.Container != id {
		return errors.New("the container was replaced")
	}
	if _, err = r.client.ContainerResize(ctx, id, client.ContainerResizeOptions{Width: uint(size.Columns), Height: uint(size.Rows)}); err != nil { //nolint:gosec // valid
		return err
	}
	e.record.Size = size
	return r.save(e)
}
