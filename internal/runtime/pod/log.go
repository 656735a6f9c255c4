// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// maxLog is how much of the end of the output a log keeps, in bytes. Up to a quarter more is kept, because each removal copies the rest.
const maxLog = 1 << 20

// OpenLog implements runtime.Logs. The node stores the output, and OpenLog reads it through the API server. The log contains the output of the newest incarnation
// at the time of the call, and does not change. Clients that follow the output of a Pod read it from the API server.
func (r *Runtime) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	newest, err := r.newest(ctx, uid)
	if err != nil {
		return nil, fmt.Errorf("open the output of %s: %w", uid, err)
	}
	l := &podLog{first: number(newest) * runtime.IncarnationLog}
	if !hasOutput(newest) {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	stream, err := r.client.CoreV1().Pods(newest.Namespace).GetLogs(newest.Name, &corev1.PodLogOptions{Container: Container}).Stream(ctx)
	if err == nil {
		_, err = io.Copy(l, stream)
		err = errors.Join(err, stream.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("read the output of %s: %w", uid, err)
	}
	return l, nil
}

// hasOutput reports whether a node has started the program's container. Before that, the output cannot be requested.
func hasOutput(p *corev1.Pod) bool {
	main := mainStatus(p)
	return main != nil && main.ContainerID != "" && (main.State.Running != nil || main.State.Terminated != nil)
}

// podLog is the end of the output of one Pod.
type podLog struct {
	first int64 // offset of text
	text  []byte
}

// Write appends to the output while OpenLog reads.
func (l *podLog) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	if over := len(l.text) - maxLog; over > maxLog/4 {
		l.text = append([]byte(nil), l.text[over:]...)
		l.first += int64(over)
	}
	return len(p), nil
}

// Bounds implements runtime.Log.
func (l *podLog) Bounds() (first, end int64, err error) {
	return l.first, l.first + int64(len(l.text)), nil
}

// ReadAt implements io.ReaderAt as runtime.Log requires.
func (l *podLog) ReadAt(p []byte, offset int64) (int, error) {
	if offset < l.first {
		return 0, fmt.Errorf("the output before offset %d is no longer available: %w", l.first, io.ErrUnexpectedEOF)
	}
	return bytes.NewReader(l.text).ReadAt(p, offset-l.first)
}

// Wait implements runtime.Log.
func (*podLog) Wait(context.Context, int64) error { return errors.ErrUnsupported }

// Close implements io.Closer.
func (*podLog) Close() error { return nil }
