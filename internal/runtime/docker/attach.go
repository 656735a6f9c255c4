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
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/logfile"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	// detachKeys is what nobody types: by default an engine takes Ctrl-P Ctrl-Q for itself, and holds back each Ctrl-P until the next key.
	detachKeys = "ctrl-^,ctrl-_,ctrl-^,ctrl-_,ctrl-^"
	// shownAgain is how much of what was said before is shown to whoever attaches, in bytes.
	shownAgain = 64 << 10
)

// Attach implements runtime.Terminals. What is shown comes from our copy of the output, so that one who doesn't read holds up nobody. It returns
// nil when the process ends, when in does, and when the context ends; a reader that ignores the end of the context keeps one goroutine until
// its Read returns.
func (r *Runtime) Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan runtime.Terminal) error {
	c, err := r.screenOf(ctx, uid)
	if err != nil {
		return fmt.Errorf("attach to %s: %w", uid, err)
	}
	log, err := r.OpenLog(ctx, uid)
	if err != nil {
		return fmt.Errorf("attach to %s: %w", uid, err)
	}
	defer func() { _ = log.Close() }()
	conn, err := r.attach(ctx, c.id, client.ContainerAttachOptions{Stream: true, Stdin: true, DetachKeys: detachKeys})
	if err != nil {
		return fmt.Errorf("attach to %s: %w", uid, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() {
		_, _ = io.Copy(conn, in)
		cancel()
	}()
	go r.resize(ctx, c.id, resize)
	if err := show(ctx, c, log.(*logfile.File), out); err != nil && ctx.Err() == nil {
		return fmt.Errorf("attach to %s: %w", uid, err)
	}
	return nil
}

// screenOf gives who copies the terminal of what runs.
func (r *Runtime) screenOf(ctx context.Context, uid types.UID) (*copier, error) {
	e, c, err := r.running(ctx, uid)
	if err != nil {
		return nil, err
	}
	defer r.release(e)
	if !c.terminal {
		return nil, runtime.ErrNoTerminal
	}
	if e.copier == nil {
		return nil, fmt.Errorf("nothing runs: %w", runtime.ErrNotFound)
	}
	return e.copier, nil
}

// target is a container that runs.
type target struct {
	id       string
	terminal bool
}

// running gives the locked entry of a UID whose container runs.
func (r *Runtime) running(ctx context.Context, uid types.UID) (*entry, target, error) {
	found, err := r.Observe(ctx, uid)
	if err != nil {
		return nil, target{}, err
	}
	if len(found) == 0 || found[0].Phase != facts.Running || found[0].LeaderExit != nil {
		return nil, target{}, fmt.Errorf("nothing runs: %w", runtime.ErrNotFound)
	}
	c, err := r.inspect(ctx, found[0].ContainerID)
	if err != nil {
		return nil, target{}, err
	}
	if c == nil || c.Config == nil {
		return nil, target{}, fmt.Errorf("nothing runs: %w", runtime.ErrNotFound)
	}
	e, err := r.acquire(uid)
	return e, target{id: c.ID, terminal: c.Config.Tty}, err
}

// attach connects to the streams of a container.
func (r *Runtime) attach(ctx context.Context, id string, options client.ContainerAttachOptions) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	answer, err := r.client.ContainerAttach(ctx, id, options)
	if err != nil {
		return nil, r.explain("attach to the container", err)
	}
	return answer.Conn, nil
}

// resize passes sizes on until the attachment ends.
func (r *Runtime) resize(ctx context.Context, id string, sizes <-chan runtime.Terminal) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			_, err := r.client.ContainerResize(ctx, id, client.ContainerResizeOptions{Width: uint(size.Columns), Height: uint(size.Rows)})
			if err != nil && ctx.Err() == nil {
				r.log.V(1).Info("The terminal of a container was not resized", "err", err.Error())
			}
		case <-ctx.Done():
			return
		}
	}
}

// show writes what the terminal has shown last and goes on until the container or the context ends.
func show(ctx context.Context, c *copier, log *logfile.File, out io.Writer) error {
	first, end, err := log.Bounds()
	if err != nil {
		return err
	}
	offset := max(first, end-shownAgain)
	out = shim.Quiet(out, int(end-offset))
	buf := make([]byte, 32<<10)
	for ctx.Err() == nil {
		more, over := c.more(), c.finished() // asked before reading
		n, err := log.ReadAt(buf, offset)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF): // too slow: the old part is gone
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

// Type implements runtime.Terminals. What has no terminal is given the input all the same, and SIGINT for a Ctrl-C alone.
func (r *Runtime) Type(ctx context.Context, uid types.UID, input []byte) error {
	e, c, err := r.running(ctx, uid)
	if err == nil {
		r.release(e)
		if c.terminal || string(input) != interruptKey {
			err = r.typeInto(ctx, c.id, string(input))
		} else if _, err = r.client.ContainerKill(ctx, c.id, client.ContainerKillOptions{Signal: "SIGINT"}); err != nil {
			err = r.explain("send SIGINT", err)
		}
	}
	if err != nil {
		return fmt.Errorf("type into %s: %w", uid, err)
	}
	return nil
}

// interruptKey is Ctrl-C.
const interruptKey = "\x03"

// typeInto writes to the input of a container, and leaves it open. It returns when the engine has taken all.
func (r *Runtime) typeInto(ctx context.Context, id, text string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	answer, err := r.client.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, DetachKeys: detachKeys})
	if err != nil {
		return r.explain("attach to the container", err)
	}
	defer answer.Close()
	defer context.AfterFunc(ctx, answer.Close)()
	err = runtime.NewTypist().Type(ctx, answer.Conn, []byte(text))
	if err == nil {
		err = answer.CloseWrite()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Reader) // ends when the engine has passed everything on
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the program does not read its input: %w", ctx.Err())
	}
	return err
}

// AttachCommand is what attaches to the terminal of a UID when it is pasted into a shell; empty when it has no container.
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
		words = append(words, "--host", quote(host))
	}
	return strings.Join(append(words, "attach", "--sig-proxy=false", quote(e.record.ContainerName)), " ")
}

// quote quotes a word for a shell, when it has to be.
func quote(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
