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

const (
	// maxLog is how much of the end of the output a log keeps, in bytes. Up to a quarter more is kept, because each removal copies the rest.
	maxLog = 64 << 10
	// nodeLine is the size of the pieces in which a node stores a longer line, in bytes. The node counts each piece as one line.
	nodeLine = 16 << 10
	// unknownOffset is where the offsets of the output of an incarnation begin if its beginning was not read.
	unknownOffset = runtime.IncarnationLog / 2
)

// OpenLog implements runtime.Logs. The node stores the output, and OpenLog reads its last lines through the API server: at most lastLines lines of nodeLine bytes,
// within glanceTimeout, because workers of controllers wait for it. The log contains the output of the newest incarnation at the time of the call, and does not
// change. If that output is longer, the offsets of this log begin at unknownOffset, and are not those of another log of the same incarnation. Clients that follow
// the output of a Pod read it from the API server.
func (r *Runtime) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	newest, err := r.newest(ctx, uid)
	if err != nil {
		return nil, fmt.Errorf("open the output of %s: %w", uid, err)
	}
	l := &podLog{first: number(newest) * runtime.IncarnationLog}
	if !hasOutput(newest) {
		return l, nil
	}
	read := int64(0)
	err = r.promptly(ctx, newest, func(ctx context.Context) (err error) {
		read, err = r.readEnd(ctx, newest, corev1.PodLogOptions{}, lastLines, l)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the output of %s: %w", uid, err)
	}
	if int64(l.lines)+read/nodeLine+1 >= lastLines {
		l.first += unknownOffset
	}
	return l, nil
}

// readEnd copies the last lines of the node's log to a writer, and returns their length in bytes. A node that does not respect the limit is cut off.
func (r *Runtime) readEnd(ctx context.Context, p *corev1.Pod, options corev1.PodLogOptions, lines int64, to io.Writer) (int64, error) {
	line := int64(nodeLine)
	if options.Timestamps {
		line += longestStamp
	}
	most := lines * line
	options.Container, options.TailLines, options.LimitBytes = Container, &lines, &most
	stream, err := r.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &options).Stream(ctx)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(to, io.LimitReader(stream, most))
	return n, errors.Join(err, stream.Close())
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
	lines int // number of line ends that were written
}

// Write appends to the output while OpenLog reads.
func (l *podLog) Write(p []byte) (int, error) {
	l.lines += bytes.Count(p, []byte("\n"))
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
