// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/runtime"
)

// detachKeys is a sequence that users do not type. By default an engine reserves Ctrl-P Ctrl-Q, and holds back each Ctrl-P until the next key.
const detachKeys = "ctrl-^,ctrl-_,ctrl-^,ctrl-_,ctrl-^"

// Attach implements runtime.Terminals. The output comes from the copier, so that a client that does not read cannot block the program; such a client is
// disconnected. Attach returns nil when the process exits, in.Read returns an error, or the context ends. If in.Read is still blocked when the context ends, one
// goroutine remains until in.Read returns.
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
	shown, far := net.Pipe()
	defer context.AfterFunc(ctx, func() { _ = shown.Close() })()
	shared := c.copier.shared
	view := shared.Join(far)
	defer shared.Leave(view)
	sizes := make(chan struct{})
	defer func() { <-sizes }()
	defer cancel()
	go func() {
		defer close(sizes)
		runtime.EachSize(ctx, resize, func(now runtime.Terminal) { shared.Resized(view, now.Columns, now.Rows, false) })
	}()
	if _, err := io.Copy(out, shown); err != nil && ctx.Err() == nil {
		return fmt.Errorf("attach to %s: write the output: %w", uid, err)
	}
	return nil
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

// Told implements runtime.Terminals.
func (r *Runtime) Told(_ context.Context, uid types.UID) (facts.Signals, error) {
	e, err := r.acquire(uid)
	if err != nil {
		return facts.Signals{}, err
	}
	defer r.release(e)
	if e.copier == nil || e.copier.shared == nil || e.copier.number != e.record.Incarnation {
		return facts.Signals{}, fmt.Errorf("signals of %s: %w", uid, runtime.ErrNotFound)
	}
	return e.copier.shared.Told(), nil
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
