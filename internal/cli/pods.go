// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// nextPodEvery is how often to check for the next Pod after the output of a Pod has ended.
const nextPodEvery = time.Second

// inPod reports whether an object runs in Pods. The commands read the output of Pods from the API server instead of a manager.
func inPod(object process.Object) bool { return podspec.TypeOf(object) == v1alpha1.RuntimePod }

// podLogs prints the output of the newest Pod of an object. With opts.Follow it continues with the Pods that replace it.
func (a *app) podLogs(ctx context.Context, to *connection, object process.Object, opts logOptions, out io.Writer) error {
	api, err := kubernetes.NewForConfig(to.config)
	if err != nil {
		return fmt.Errorf("connect to the API server %s: %w", to.config.Host, err)
	}
	var printed int64 // the incarnation whose output was printed
	for {
		newest, err := to.newestPod(ctx, object)
		if err != nil {
			return err
		}
		switch {
		case newest == nil && !opts.Follow:
			return errors.New("the object has no Pod: see berth status")
		case newest != nil && incarnationOf(newest) > printed:
			started, err := opts.printPod(ctx, api, newest, out)
			if err != nil || !opts.Follow {
				return err
			}
			if started {
				printed, opts.Tail, opts.since = incarnationOf(newest), -1, 0
			}
		}
		select {
		case <-a.clock.After(nextPodEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// printPod copies the output of a Pod. started is false if the Pod has no output yet or no longer exists.
func (o *logOptions) printPod(ctx context.Context, api kubernetes.Interface, p *corev1.Pod, out io.Writer) (started bool, err error) {
	options := &corev1.PodLogOptions{Container: pod.Telling(p), Follow: o.Follow, Timestamps: o.timestamps}
	if o.since > 0 {
		options.SinceSeconds = ptr.To(max(1, int64(o.since.Seconds())))
	}
	if o.Tail >= 0 {
		options.TailLines = &o.Tail
	}
	if o.maxBytes > 0 {
		options.LimitBytes = &o.maxBytes
	}
	stream, err := api.CoreV1().Pods(p.Namespace).GetLogs(p.Name, options).Stream(ctx)
	if apierrors.IsBadRequest(err) && o.Follow || apierrors.IsNotFound(err) {
		return false, nil // the container has not started yet, or the Pod no longer exists
	}
	if err != nil {
		return false, fmt.Errorf("read the output of Pod %s: %w", p.Name, err)
	}
	defer func() { _ = stream.Close() }()
	if _, err := io.Copy(out, stream); err != nil {
		return false, cmp.Or(ctx.Err(), fmt.Errorf("read the output of Pod %s: %w", p.Name, err))
	}
	return true, nil
}

// newestPod returns the Pod of the newest incarnation, or nil if there is none.
func (c *connection) newestPod(ctx context.Context, object process.Object) (*corev1.Pod, error) {
	var pods corev1.PodList
	err := c.client.List(ctx, &pods, client.InNamespace(object.GetNamespace()), client.MatchingLabels{pod.LabelUID: string(object.GetUID())})
	if err != nil {
		return nil, fmt.Errorf("list the Pods of the object: %w", err)
	}
	if len(pods.Items) == 0 {
		return nil, nil //nolint:nilnil // absence is not an error
	}
	newest := slices.MaxFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(incarnationOf(&a), incarnationOf(&b)) })
	return &newest, nil
}

func incarnationOf(p *corev1.Pod) int64 {
	n, _ := strconv.ParseInt(p.Labels[pod.LabelIncarnation], 10, 64) // 0 without the label
	return n
}

// terminalInPod returns the Pod with the terminal of an object, and starts the object if it is asleep. It returns nil if the object does not run in a Pod, or
// is nil.
func (a *app) terminalInPod(ctx context.Context, to *connection, ref reference, object process.Object) (there *corev1.Pod, err error) {
	if object == nil || !inPod(object) {
		return nil, nil //nolint:nilnil // absence is not an error
	}
	instance, is := object.(*v1alpha1.Instance)
	if !is {
		return nil, fmt.Errorf("%s has no terminal: in Pods only Instances have one; use berth logs %s to see its output", ref, ref)
	}
	if ref.uid != "" && ref.uid != object.GetUID() {
		return nil, errRecreated{ref.String()}
	}
	if lifecycle.Asleep(&instance.Status.ProcessStatus) && ref.incarnation == 0 {
		a.say("%s is idle; starting it", ref)
		if instance, err = a.wake(ctx, to, ref); err != nil {
			return nil, err
		}
	}
	newest, err := to.newestPod(ctx, object)
	if err == nil && (newest == nil || instance.Status.AttachCommand == "") {
		err = fmt.Errorf("%s has no terminal in a Pod at the moment: see berth status %s", ref, ref)
	}
	if err == nil && ref.incarnation != 0 && incarnationOf(newest) != ref.incarnation {
		err = fmt.Errorf("%s was restarted: incarnation %d is the newest, not %d; see what it shows now, then repeat the request", ref, incarnationOf(newest), ref.incarnation)
	}
	return newest, err
}

// wakeWithin bounds how long to wait for the Pod of a sleeping object.
const wakeWithin = 2 * time.Minute

// wake starts a sleeping session in a Pod the same way as berth restart, because no manager sees connections to the Pod. It returns the updated session. A
// session that is still falling asleep ignores restart requests, so wake waits until it is asleep.
func (a *app) wake(ctx context.Context, to *connection, ref reference) (*v1alpha1.Instance, error) {
	var object process.Object
	err := wait.PollUntilContextTimeout(ctx, pollEvery, wakeWithin, true, func(ctx context.Context) (awake bool, err error) {
		if object, err = to.get(ctx, ref); err != nil {
			return false, err
		}
		status := object.GetProcessStatus()
		if lifecycle.Asleep(status) && !lifecycle.FallsAsleep(status) {
			if err := a.askAndAwait(ctx, to, ref.of(object)); err != nil {
				return false, fmt.Errorf("start the idle process: %w", err)
			}
		}
		return !lifecycle.Asleep(status), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("%s is still idle: see berth status %s", ref, ref)
	}
	if err != nil {
		return nil, err
	}
	return object.(*v1alpha1.Instance), nil // a reference of another kind was rejected before
}

// askAndAwait requests a new incarnation and waits until it is ready.
func (a *app) askAndAwait(ctx context.Context, to *connection, ref reference) error {
	changed, err := to.change(ctx, ref, map[string]any{"restartToken": newToken(a.clock.Now())})
	if err != nil {
		return err
	}
	return a.awaitChange(ctx, to, ref, changed, awaitOptions{timeout: wakeWithin})
}

// podLine is a connection to a terminal in a Pod. Like kubectl, it goes through the API server with the rights of the caller.
type podLine struct {
	executor remotecommand.Executor
	ctx      context.Context //nolint:containedctx // the connection ends with this context
	end      context.CancelFunc
	typed    *io.PipeReader
	keys     *io.PipeWriter
	sizes    chan podSize     // holds only the latest size
	sent     chan struct{}    // of the size that Next returned last; only Next uses it
	usual    runtime.Terminal // the size before any attachment; zero if it is unknown or does not change
	over     chan struct{}    // closed when the connection has ended
}

// podSize is a size for a terminal in a Pod. sent is closed when the size was sent; it may be nil.
type podSize struct {
	remotecommand.TerminalSize
	sent chan struct{}
}

// takePod prepares a connection to the terminal of a Pod; Receive opens it.
func takePod(ctx context.Context, config *rest.Config, p *corev1.Pod, size *runtime.Terminal) (*podLine, error) {
	executor, err := pod.Attach(config, p, corev1.PodAttachOptions{Stdin: true, Stdout: true, TTY: true})
	if err != nil {
		return nil, err
	}
	l := &podLine{executor: executor, sizes: make(chan podSize, 1), over: make(chan struct{})}
	l.ctx, l.end = context.WithCancel(pod.Unlogged(ctx))
	l.typed, l.keys = io.Pipe()
	if size != nil {
		l.usual = pod.Size(p)
		_ = l.Resize(*size)
	}
	return l, nil
}

// Write sends typed input.
func (l *podLine) Write(keys []byte) (int, error) { return l.keys.Write(keys) }

// Resize sets the size of the user's terminal.
func (l *podLine) Resize(size runtime.Terminal) error {
	l.resize(size, nil)
	return nil
}

func (l *podLine) resize(size runtime.Terminal, sent chan struct{}) {
	next := podSize{remotecommand.TerminalSize{Width: uint16(size.Columns), Height: uint16(size.Rows)}, sent} //nolint:gosec // at most 1000
	for {
		select {
		case l.sizes <- next:
			return
		default:
		}
		select {
		case <-l.sizes:
		default:
		}
	}
}

// Next implements remotecommand.TerminalSizeQueue.
func (l *podLine) Next() *remotecommand.TerminalSize {
	if l.sent != nil {
		close(l.sent)
		l.sent = nil
	}
	select {
	case size := <-l.sizes:
		l.sent = size.sent
		return &size.TerminalSize
	case <-l.ctx.Done():
		return nil
	}
}

// Receive copies the output of the terminal. It returns nil when the program exits, and an error when the connection is lost.
func (l *podLine) Receive(out io.Writer, _ func(runtime.Terminal)) error {
	defer close(l.over)
	return l.executor.StreamWithContext(l.ctx, remotecommand.StreamOptions{Stdin: l.typed, Stdout: out, Tty: true, TerminalSizeQueue: l})
}

// sizeBackWithin bounds how long Close waits until the usual size was sent.
const sizeBackWithin = time.Second

// Close closes the connection. The program keeps running, in a terminal of the usual size: no node reports another one to the manager, which draws the screen.
func (l *podLine) Close() error {
	if l.usual.Columns > 0 && l.usual.Rows > 0 {
		sent := make(chan struct{})
		l.resize(l.usual, sent)
		ctx, cancel := context.WithTimeout(l.ctx, sizeBackWithin)
		defer cancel()
		select {
		case <-sent:
		case <-l.over:
		case <-ctx.Done():
		}
	}
	l.end()
	return l.keys.Close()
}
