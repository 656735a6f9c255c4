// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// mostListened is the maximum number of terminals that are attached at the same time. Each costs a connection, in the manager and in the API server.
	mostListened = 512
	// connectTimeout bounds the time to establish a connection.
	connectTimeout = 30 * time.Second
	// joinAfter is how long listen waits between connecting and reading the log. The API server responds to the connection before the node has connected to the
	// terminal.
	joinAfter = 300 * time.Millisecond
	// listenRetry and listenRetryMost are the initial and the maximum delay before reconnecting.
	listenRetry, listenRetryMost = time.Second, 30 * time.Second
	// justStarted is the maximum age of a program whose terminal size listen sets when it connects. The terminal of an older program may already have the size of
	// a user's window.
	justStarted = time.Minute
)

// views are the terminals to which the Runtime is attached, to read their output.
type views struct {
	mu   sync.Mutex
	of   map[types.UID]*view // by the UID of the object
	busy int                 // number of views whose program is running
	most int
}

// look returns the view of the terminal of an object's newest Pod, and attaches to that terminal if necessary. It returns nil if it cannot attach.
func (r *Runtime) look(uid types.UID, newest *corev1.Pod) *view {
	s := &r.views
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.of[uid]; v != nil && v.pod.UID == newest.UID {
		return v
	}
	if r.config == nil || s.busy >= s.most || !runs(newest) {
		return nil
	}
	v := &view{pod: newest, tell: func() { r.events.Add(uid) }}
	started := r.tasks.Go(func() {
		r.follow(uid, v)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.of[uid] == v {
			delete(s.of, uid)
		}
	})
	if !started { // the Runtime is closed
		return nil
	}
	s.of[uid] = v
	s.busy++
	return v
}

// free decrements busy, so that another terminal can be attached.
func (s *views) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
}

// follow reads the terminal while the program of a Pod runs, and reconnects when the connection is lost. It keeps the output in v until the object has another
// Pod or none.
func (r *Runtime) follow(uid types.UID, v *view) {
	replaced := func(newest *corev1.Pod) bool { return newest == nil || newest.UID != v.pod.UID }
	ended := func(newest *corev1.Pod) bool { return replaced(newest) || !runs(newest) }
	ctx, cancel := context.WithCancel(r.tasks.Lifetime())
	defer cancel()
	r.tasks.Go(func() { // not started after Close, which ends ctx itself
		r.await(ctx, uid, replaced)
		cancel()
	})
	resize := time.Since(mainStatus(v.pod).State.Running.StartedAt.Time) < justStarted
	for wait := listenRetry; ctx.Err() == nil && !ended(r.store.newest(uid)); wait = min(2*wait, listenRetryMost) {
		err := r.listen(ctx, v, resize)
		resize = false
		if v.lost() {
			wait = listenRetry
		}
		if err != nil && ctx.Err() == nil {
			r.log.V(1).Info("Cannot attach to the terminal of a Pod; retrying", "pod", v.pod.Namespace+"/"+v.pod.Name, "in", wait, "err", err.Error())
		}
		pause, end := context.WithTimeout(ctx, wait)
		r.await(pause, uid, ended)
		end()
	}
	r.views.free()
	<-ctx.Done()
}

// await waits until the newest Pod of an object, nil if there is none, is in a state, or the context ends.
func (r *Runtime) await(ctx context.Context, uid types.UID, is func(newest *corev1.Pod) bool) {
	next, done := r.store.changes(uid)
	defer done()
	for {
		change := next()
		if is(r.store.newest(uid)) {
			return
		}
		select {
		case <-change:
		case <-ctx.Done():
			return
		}
	}
}

// listen records the output of a program until the connection ends. For a program that was just started it also sets the terminal size, which makes the program
// redraw what it drew before the connection.
func (r *Runtime) listen(ctx context.Context, v *view, resize bool) error {
	ctx, cancel := context.WithCancel(Unlogged(ctx))
	defer cancel()
	tty := hasTerminal(v.pod)
	connected := make(chan struct{})
	executor, err := Attach(telling(r.config, connected), v.pod, corev1.PodAttachOptions{Stdout: true, Stderr: !tty, TTY: tty})
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Stdout: v, Tty: tty}
	if size := Size(v.pod); tty && resize && size.Columns > 0 {
		options.TerminalSizeQueue = &once{ctx: ctx, size: size}
	}
	if !tty {
		options.Stderr = struct{ io.Writer }{v}
	}
	ended := make(chan error, 1)
	go func() { ended <- executor.StreamWithContext(ctx, options) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(connectTimeout):
		cancel()
		return <-ended
	case <-connected:
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(joinAfter):
	}
	logged, last, err := r.logged(ctx, v.pod, lastLines)
	if err != nil {
		cancel()
		return errors.Join(err, <-ended)
	}
	v.join(logged, last)
	return <-ended
}

// telling returns a copy of config for one connection. When the API server has responded to the request for that connection, the copy closes connected.
func telling(config *rest.Config, connected chan struct{}) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(request)
			if err == nil {
				close(connected)
			}
			return answer, err
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// once is a queue that contains one terminal size.
type once struct {
	ctx  context.Context //nolint:containedctx // ends with the connection
	size runtime.Terminal
	said bool
}

// Next implements remotecommand.TerminalSizeQueue.
func (o *once) Next() *remotecommand.TerminalSize {
	if !o.said {
		o.said = true
		return &remotecommand.TerminalSize{Width: uint16(o.size.Columns), Height: uint16(o.size.Rows)} //nolint:gosec // at most 1000
	}
	<-o.ctx.Done()
	return nil
}
