// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
)

const (
	// typingTime is how long TypeInto waits for a node to forward the input. Some nodes do not report that they have forwarded all of it.
	typingTime = 2 * time.Second
	// typeTimeout bounds a call of Type.
	typeTimeout = 15 * time.Second
)

// Attach prepares an attachment to the program of a Pod through the API server, as kubectl attach does.
func Attach(config *rest.Config, p *corev1.Pod, options corev1.PodAttachOptions) (remotecommand.Executor, error) {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server %s: %w", config.Host, err)
	}
	options.Container = Container
	request := api.CoreV1().RESTClient().Get().Resource("pods").Namespace(p.Namespace).Name(p.Name).SubResource("attach").VersionedParams(&options, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, request.URL().String())
	if err != nil {
		return nil, fmt.Errorf("connect to the API server %s: %w", config.Host, err)
	}
	return executor, nil
}

// Unlogged returns a context in which client-go logs nothing. Otherwise client-go would log an error when the caller closes a connection.
func Unlogged(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// Type implements runtime.Terminals, through the API server. It takes at most typeTimeout.
func (r *Runtime) Type(ctx context.Context, uid types.UID, strokes runtime.Keystrokes) error {
	p, err := r.running(ctx, uid)
	switch {
	case err != nil:
		return fmt.Errorf("type into the terminal of %s: %w", uid, err)
	case !hasTerminal(p):
		return fmt.Errorf("type into the terminal of %s: %w", uid, runtime.ErrNoTerminal)
	case r.config == nil:
		return fmt.Errorf("type into the terminal of %s: this manager is not configured for terminals in Pods", uid)
	case strokes.Empty():
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, typeTimeout)
	defer cancel()
	if err := TypeInto(ctx, r.config, p, strokes, nil, time.After); err != nil {
		return fmt.Errorf("type into the terminal of Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// TypeInto types into the terminal of a Pod. If shown is not nil, it is what the terminal shows, and TypeInto checks the keystrokes against it. The function after is time.After, or that of a fake clock in tests.
func TypeInto(ctx context.Context, config *rest.Config, p *corev1.Pod, strokes runtime.Keystrokes, shown *terminal.Screen, after func(time.Duration) <-chan time.Time) error {
	executor, err := Attach(config, p, corev1.PodAttachOptions{Stdin: true, Stdout: true, TTY: true})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(Unlogged(ctx))
	defer end()
	typist := runtime.NewTypist()
	output := io.Writer(typist)
	if shown != nil {
		watched := &watched{typist: typist, screen: shown}
		output, strokes.Look = watched, watched.look
	}
	typed, writer := io.Pipe()
	defer func() { _ = typed.Close() }()
	withheld := make(chan *runtime.WithheldError, 1)
	go func() {
		err := typist.Type(ctx, writer, strokes)
		var kept *runtime.WithheldError
		if errors.As(err, &kept) {
			err = nil // what was typed before still has to arrive
		}
		withheld <- kept
		_ = writer.CloseWithError(err)
	}()
	if err := stream(ctx, executor, typed, output, after); err != nil {
		return err
	}
	select {
	case kept := <-withheld:
		if kept != nil {
			return kept
		}
	default: // the program has ended meanwhile
	}
	return nil
}

// stream copies input to a terminal until the input ends, and the output of the terminal meanwhile.
func stream(ctx context.Context, executor remotecommand.Executor, input io.Reader, output io.Writer, after func(time.Duration) <-chan time.Time) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	all := &readOut{Reader: input, ended: make(chan struct{})}
	sent := make(chan error, 1)
	go func() {
		sent <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: all, Stdout: output, Tty: true})
	}()
	select {
	case err := <-sent: // containerd closes the stream after it has forwarded the input
		return err
	case <-all.ended:
	}
	select {
	case err := <-sent:
		return err
	case <-after(typingTime):
		if ctx.Err() != nil { // the caller canceled
			return <-sent
		}
		end()
		if err := <-sent; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil // the request was canceled by end above
	}
}

// watched receives the output of a terminal for a Typist and for a screen.
type watched struct {
	typist *runtime.Typist
	mu     sync.Mutex
	screen *terminal.Screen
}

// Write implements io.Writer.
func (w *watched) Write(output []byte) (int, error) {
	w.mu.Lock()
	_, _ = w.screen.Write(output)
	w.mu.Unlock()
	return w.typist.Write(output)
}

// look returns what the terminal shows. How its programs read it is not known.
func (w *watched) look(context.Context) (terminal.Moment, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return terminal.Moment{View: w.screen.View()}, nil
}

// readOut is a reader that closes readOut.ended when the underlying reader returns an error, usually io.EOF.
type readOut struct {
	io.Reader
	ended chan struct{}
	said  bool
}

// Read implements io.Reader.
func (r *readOut) Read(to []byte) (int, error) {
	n, err := r.Reader.Read(to)
	if err != nil && !r.said {
		r.said = true
		close(r.ended)
	}
	return n, err
}

// runs reports whether the program of a Pod is running, according to the last status from its node.
func runs(p *corev1.Pod) bool {
	main := mainStatus(p)
	return main != nil && main.State.Running != nil && !ended(p)
}

// hasTerminal reports whether the program was started in a terminal.
func hasTerminal(p *corev1.Pod) bool {
	main := mainOf(p)
	return main != nil && main.TTY
}
