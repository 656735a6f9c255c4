// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/logfile"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	// detachKeys is a sequence that users do not type. By default an engine reserves Ctrl-P Ctrl-Q, and holds back each Ctrl-P until the next key.
	detachKeys = "ctrl-^,ctrl-_,ctrl-^,ctrl-_,ctrl-^"
	// shownAgain is how much earlier output is replayed on attachment, in bytes.
	shownAgain = 64 << 10
)

// Attach implements runtime.Terminals. The output comes from the local copy, so that a client that does not read cannot block the program. Attach returns nil
// when the process exits, in.Read returns an error, or the context ends. If in.Read is still blocked when the context ends, one goroutine remains until
// in.Read returns.
func (r *Runtime) Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan runtime.Terminal) error {
	c, err := r.running(ctx, uid)
	switch {
	case err != nil:
		return fmt.Errorf("attach to %s: %w", uid, err)
	case !c.terminal:
		return fmt.Errorf("attach to %s: %w", uid, runtime.ErrNoTerminal)
	case c.copier == nil:
		return fmt.Errorf("attach to %s: not running: %w", uid, runtime.ErrNotFound)
	}
	log, err := r.OpenLog(ctx, uid)
	if err != nil {
		return fmt.Errorf("attach to %s: %w", uid, err)
	}
	defer func() { _ = log.Close() }()
	conn, err := r.attach(ctx, c.id, client.ContainerAttachOptions{Stdin: true})
	if err != nil {
		return fmt.Errorf("attach to %s: %w", uid, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn.Conn, in)
		cancel()
	}()
	size := &runtime.Terminal{}
	defer r.resize(context.WithoutCancel(ctx), uid, c.id, func(v *viewers) { v.leave(size) })
	sizes := make(chan struct{})
	defer func() { <-sizes }()
	defer cancel()
	go func() {
		defer close(sizes)
		runtime.EachSize(ctx, resize, func(now runtime.Terminal) {
			r.resize(ctx, uid, c.id, func(v *viewers) { v.resized(size, now) })
		})
	}()
	if err := show(ctx, c.copier, log.(*logfile.File), out); err != nil && ctx.Err() == nil {
		return fmt.Errorf("attach to %s: %w", uid, err)
	}
	return nil
}

// viewers are the sizes of the attached clients with a terminal. The last one belongs to the client that attached or was resized last.
type viewers []*runtime.Terminal

// resized notes a new size of a client.
func (v *viewers) resized(size *runtime.Terminal, now runtime.Terminal) {
	if *size != now {
		v.leave(size)
		*size = now
		*v = append(*v, size)
	}
}

func (v *viewers) leave(size *runtime.Terminal) {
	*v = slices.DeleteFunc(*v, func(other *runtime.Terminal) bool { return other == size })
}

// resize changes the viewers of a container, and sets its terminal to the size of the last one. Without viewers the size remains.
func (r *Runtime) resize(ctx context.Context, uid types.UID, id string, change func(*viewers)) {
	ctx, e, release, err := r.acquireFor(ctx, uid)
	if err != nil {
		return
	}
	defer release()
	change(&e.viewers)
	if len(e.viewers) == 0 || e.record.Container != id {
		return
	}
	size := *e.viewers[len(e.viewers)-1]
	_, err = r.client.ContainerResize(ctx, id, client.ContainerResizeOptions{Width: uint(size.Columns), Height: uint(size.Rows)})
	if err == nil && size != e.record.Size {
		e.record.Size = size
		err = r.save(e)
	}
	if err != nil && ctx.Err() == nil {
		r.log.V(1).Info("Cannot resize the terminal of a container", "err", err.Error())
	}
}

// Size implements runtime.Terminals. The engine does not report the size, so it is the one that Berth has last set.
func (r *Runtime) Size(_ context.Context, uid types.UID) (runtime.Terminal, error) {
	e, err := r.acquire(uid)
	if err != nil {
		return runtime.Terminal{}, err
	}
	defer r.release(e)
	if e.record.Size == (runtime.Terminal{}) {
		return runtime.Terminal{}, fmt.Errorf("size of the terminal of %s: %w", uid, runtime.ErrNotFound)
	}
	return e.record.Size, nil
}

// target is a running container. copier is nil if its output is not copied yet.
type target struct {
	id       string
	terminal bool
	copier   *copier
}

// running returns the running container of a UID. It returns runtime.ErrNotFound if no container is running.
func (r *Runtime) running(ctx context.Context, uid types.UID) (target, error) {
	found, err := r.Observe(ctx, uid)
	if err != nil {
		return target{}, err
	}
	if len(found) == 0 || found[0].Phase != facts.Running || found[0].LeaderExit != nil {
		return target{}, fmt.Errorf("not running: %w", runtime.ErrNotFound)
	}
	c, err := r.inspect(ctx, found[0].ContainerID)
	if err != nil {
		return target{}, err
	}
	if c == nil {
		return target{}, fmt.Errorf("not running: %w", runtime.ErrNotFound)
	}
	e, err := r.acquire(uid)
	if err != nil {
		return target{}, err
	}
	defer r.release(e)
	if e.record.Adopted { // checked again, because an earlier version of Berth may have adopted the container
		if why := r.privileged(c); why != "" {
			return target{}, fmt.Errorf("cannot control container %s, because %s", e.record.ContainerName, why)
		}
	}
	return target{id: c.ID, terminal: c.Config.Tty, copier: e.copier}, nil
}

// attach connects to the streams of a container.
func (r *Runtime) attach(ctx context.Context, id string, options client.ContainerAttachOptions) (client.HijackedResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	options.Stream, options.DetachKeys = true, detachKeys
	answer, err := r.client.ContainerAttach(ctx, id, options)
	if err != nil {
		return client.HijackedResponse{}, r.explain("attach to the container", err)
	}
	return answer.HijackedResponse, nil
}

// show writes the last output of the terminal and follows it until the container or the context ends.
func show(ctx context.Context, c *copier, log *logfile.File, out io.Writer) error {
	first, end, err := log.Bounds()
	if err != nil {
		return err
	}
	offset := max(first, end-shownAgain)
	out = shim.Quiet(out, int(end-offset))
	buf := make([]byte, 32<<10)
	for ctx.Err() == nil {
		more, over := c.more(), c.finished() // queried before the read, so that no output is missed
		n, err := log.ReadAt(buf, offset)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF): // the reader is too slow: the output at this offset is no longer available
			if offset, _, err = log.Bounds(); err != nil {
				return err
			}
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return err
		}
		if n > 0 {
			if _, err := out.Write(buf[:n]); err != nil {
				return fmt.Errorf("write the output: %w", err)
			}
			offset += int64(n)
			continue
		}
		if over {
			return nil
		}
		select {
		case <-more:
		case <-c.done:
		case <-ctx.Done():
		}
	}
	return nil
}

// Type implements runtime.Terminals. A process without a terminal receives the input on stdin, except that a single Ctrl-C is sent as SIGINT.
func (r *Runtime) Type(ctx context.Context, uid types.UID, strokes runtime.Keystrokes) error {
	c, err := r.running(ctx, uid)
	if err == nil {
		if c.terminal || !strokes.Interrupt || strokes.Text != "" || len(strokes.Keys) > 0 {
			err = r.typeInto(ctx, c.id, strokes)
		} else if _, err = r.client.ContainerKill(ctx, c.id, client.ContainerKillOptions{Signal: "SIGINT"}); err != nil {
			err = r.explain("send SIGINT", err)
		}
	}
	if err != nil {
		return fmt.Errorf("type into %s: %w", uid, err)
	}
	return nil
}

// typeInto types into a container, and leaves its input open. It returns when the engine has forwarded everything.
func (r *Runtime) typeInto(ctx context.Context, id string, strokes runtime.Keystrokes) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	answer, err := r.attach(ctx, id, client.ContainerAttachOptions{Stdin: true})
	if err != nil {
		return err
	}
	defer answer.Close()
	defer context.AfterFunc(ctx, answer.Close)()
	err = runtime.NewTypist().Type(ctx, answer.Conn, strokes)
	var withheld *runtime.WithheldError
	if errors.As(err, &withheld) {
		err = nil // what was typed before still has to arrive
	}
	if err == nil {
		err = answer.CloseWrite()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Reader) // returns when the engine has forwarded all input
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the program does not read its input: %w", ctx.Err())
	}
	if err == nil && withheld != nil {
		err = withheld
	}
	return err
}

// AttachCommand returns a shell command that attaches to the terminal of a UID, or "" if the UID has no container.
func (r *Runtime) AttachCommand(uid types.UID) string {
	e, err := r.acquire(uid)
	if err != nil {
		return ""
	}
	defer r.release(e)
	if e.record.ContainerName == "" {
		return ""
	}
	words := []string{"docker"}
	if host := r.client.DaemonHost(); host != client.DefaultDockerHost && host != os.Getenv(client.EnvOverrideHost) {
		words = append(words, "--host", printable.Quote(host))
	}
	return strings.Join(append(words, "attach", "--sig-proxy=false", printable.Quote(e.record.ContainerName)), " ")
}
