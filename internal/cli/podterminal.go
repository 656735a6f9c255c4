// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// terminalInPod gives the Pod that has the terminal of an object; nil when the object runs elsewhere, or cannot be read, which whoever is asked next says.
func (c *connection) terminalInPod(ctx context.Context, ref reference) (*corev1.Pod, error) {
	object, err := c.get(ctx, ref)
	if err != nil || !inPod(object) {
		return nil, nil //nolint:nilerr,nilnil // see above
	}
	instance, is := object.(*v1alpha1.Instance)
	if !is {
		return nil, fmt.Errorf("%s has no terminal: in Pods only Instances have one; berth logs %s shows what it says", ref, ref)
	}
	newest, err := c.newestPod(ctx, object)
	if err == nil && (newest == nil || instance.Status.AttachCommand == "") {
		err = fmt.Errorf("%s has no terminal in a Pod now: berth status %s says how it is", ref, ref)
	}
	return newest, err
}

// podLine is a terminal in a Pod, taken as kubectl takes it: through the API server, with the rights of the caller.
type podLine struct {
	executor remotecommand.Executor
	ctx      context.Context //nolint:containedctx // it is the life of the connection
	end      context.CancelFunc
	typed    *io.PipeReader
	keys     *io.PipeWriter
	sizes    chan remotecommand.TerminalSize // of which only the last counts
}

// takePod prepares to take the terminal of a Pod; Receive does it.
func takePod(ctx context.Context, config *rest.Config, p *corev1.Pod, size *runtime.Terminal) (*podLine, error) {
	executor, err := pod.Attach(config, p, corev1.PodAttachOptions{Stdin: true, Stdout: true, TTY: true})
	if err != nil {
		return nil, err
	}
	l := &podLine{executor: executor, sizes: make(chan remotecommand.TerminalSize, 1)}
	l.ctx, l.end = context.WithCancel(pod.Unlogged(ctx))
	l.typed, l.keys = io.Pipe()
	if size != nil {
		_ = l.Resize(*size)
	}
	return l, nil
}

// Write types.
func (l *podLine) Write(keys []byte) (int, error) { return l.keys.Write(keys) }

// Resize tells the size of the user's terminal. It is called by one at a time.
func (l *podLine) Resize(size runtime.Terminal) error {
	select {
	case <-l.sizes:
	default:
	}
	l.sizes <- remotecommand.TerminalSize{Width: uint16(size.Columns), Height: uint16(size.Rows)} //nolint:gosec // at most 1000
	return nil
}

// Next implements remotecommand.TerminalSizeQueue.
func (l *podLine) Next() *remotecommand.TerminalSize {
	select {
	case size := <-l.sizes:
		return &size
	case <-l.ctx.Done():
		return nil
	}
}

// Receive copies what the terminal shows until the program ends, which is no error, or the connection.
func (l *podLine) Receive(out io.Writer, _ func(runtime.Terminal)) error {
	return l.executor.StreamWithContext(l.ctx, remotecommand.StreamOptions{Stdin: l.typed, Stdout: out, Tty: true, TerminalSizeQueue: l})
}

// Close leaves; the program goes on.
func (l *podLine) Close() error {
	l.end()
	return l.keys.Close()
}
