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
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// nextPodEvery is how often to check for the next Pod after the output of a Pod has ended.
const nextPodEvery = time.Second

// inPod reports whether an object runs in Pods. The commands read the output of Pods from the API server instead of a manager.
func inPod(object process.Object) bool { return runtimeType(object) == v1alpha1.RuntimePod }

// runtimeType returns the runtime of an object; empty if the spec does not specify one.
func runtimeType(object process.Object) v1alpha1.RuntimeType {
	switch o := object.(type) {
	case *v1alpha1.DevServer:
		return podspec.Type(o.Spec.Runtime)
	case *v1alpha1.Instance:
		if o.Spec.Runtime != nil {
			return o.Spec.Runtime.Type
		}
	case *v1alpha1.LanguageServer:
		return podspec.Type(o.Spec.Runtime)
	case *v1alpha1.StrategyRun:
		if o.Status.Pinned != nil {
			return podspec.Type(o.Status.Pinned.Runtime)
		}
	}
	return ""
}

// podLogs prints the output of the newest Pod of an object. With opts.Follow it continues with the Pods that replace it.
func (a *app) podLogs(ctx context.Context, to *connection, object process.Object, opts logOptions, out io.Writer) error {
	api, err := kubernetes.NewForConfig(to.config)
	if err != nil {
		return fmt.Errorf("connect to the API server %s: %w", to.config.Host, err)
	}
	from := newPodOutput(api, opts, out)
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
			started, err := from.print(ctx, newest)
			if err != nil || !opts.Follow {
				return err
			}
			if started {
				printed, from.tail, from.since = incarnationOf(newest), nil, nil
			}
		}
		select {
		case <-a.clock.After(nextPodEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// podOutput copies the output of Pods.
type podOutput struct {
	api kubernetes.Interface
	// tail is the number of lines and since the age of the oldest line, in seconds; nil selects all output.
	tail, since *int64
	maxBytes    *int64 // nil: no limit
	follow      bool
	timestamps  bool
	out         io.Writer
}

func newPodOutput(api kubernetes.Interface, opts logOptions, out io.Writer) *podOutput {
	from := &podOutput{api: api, follow: opts.Follow, timestamps: opts.timestamps, out: out}
	if opts.since > 0 {
		from.since = ptr.To(max(1, int64(opts.since.Seconds())))
	}
	if opts.Tail >= 0 {
		from.tail = ptr.To(opts.Tail)
	}
	if opts.maxBytes > 0 {
		from.maxBytes = ptr.To(opts.maxBytes)
	}
	return from
}

// print copies the output of a Pod. started is false if the Pod has no output yet or no longer exists.
func (o *podOutput) print(ctx context.Context, p *corev1.Pod) (started bool, err error) {
	options := &corev1.PodLogOptions{Container: pod.Telling(p), Follow: o.follow, TailLines: o.tail, SinceSeconds: o.since, Timestamps: o.timestamps,
		LimitBytes: o.maxBytes}
	stream, err := o.api.CoreV1().Pods(p.Namespace).GetLogs(p.Name, options).Stream(ctx)
	if apierrors.IsBadRequest(err) && o.follow || apierrors.IsNotFound(err) {
		return false, nil // the container has not started yet, or the Pod no longer exists
	}
	if err != nil {
		return false, fmt.Errorf("read the output of Pod %s: %w", p.Name, err)
	}
	defer func() { _ = stream.Close() }()
	if _, err := io.Copy(o.out, stream); err != nil {
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
