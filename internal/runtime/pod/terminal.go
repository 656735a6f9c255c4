// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
)

const (
	// annotationTerminal contains the initial size of the terminal, such as 120x40.
	annotationTerminal = "berth.dev/terminal"
	// mostShown is how much of the end of the output is kept to reconstruct the screen, in bytes.
	mostShown = 64 << 10
	// lastLines is the number of last lines that are requested from a node. The node counts every 16 KiB of a longer line as one line.
	lastLines = 200
	// longestStamp is the maximum length of the timestamp before a line, in bytes.
	longestStamp = 64
	// logTimeout bounds how long a node may take to return the end of a log. glanceTimeout is the same for calls for which a user or a worker waits.
	logTimeout, glanceTimeout = 10 * time.Second, 2 * time.Second
	// deafFor is how long a node is not queried after a timeout. It applies only to calls for which a user or a worker waits.
	deafFor = 10 * time.Second
)

// LastActivity implements runtime.Logs. While a connection to the terminal exists, it returns the time of the last received output; otherwise it reads the
// timestamp of the last line in the node's log.
func (r *Runtime) LastActivity(ctx context.Context, uid types.UID) (time.Time, error) {
	p, err := r.newest(ctx, uid)
	if err != nil {
		return time.Time{}, fmt.Errorf("activity of %s: %w", uid, err)
	}
	last, live := r.look(uid, p).activity()
	if !live && hasOutput(p) && (runs(p) || last.IsZero()) {
		_, stamp, err := r.glance(ctx, p, 1)
		if err != nil {
			return time.Time{}, fmt.Errorf("activity of %s: %w", uid, err)
		}
		if stamp.After(last) {
			last = stamp
		}
	}
	if last.IsZero() {
		return time.Time{}, fmt.Errorf("activity of %s: %w", uid, runtime.ErrNotFound)
	}
	return last, nil
}

// Watch implements runtime.Logs.
func (r *Runtime) Watch(ctx context.Context, uid types.UID) error {
	p, err := r.running(ctx, uid)
	if err != nil {
		return fmt.Errorf("watch the terminal of %s: %w", uid, err)
	}
	if !r.look(uid, p).watch() {
		return fmt.Errorf("watch the terminal of %s: not attached to the terminal", uid)
	}
	return nil
}

// Capture implements runtime.Terminals. It renders the end of the output.
func (r *Runtime) Capture(ctx context.Context, uid types.UID) (terminal.View, error) {
	p, err := r.running(ctx, uid)
	if err != nil {
		return terminal.View{}, fmt.Errorf("read the screen of %s: %w", uid, err)
	}
	text, live := r.look(uid, p).output()
	if !live {
		if text, _, err = r.glance(ctx, p, lastLines); err != nil {
			return terminal.View{}, fmt.Errorf("read the screen of %s: %w", uid, err)
		}
	}
	size := Size(p)
	drawn := terminal.New(int(size.Columns), int(size.Rows))
	_, _ = drawn.Write(text)
	return drawn.View(), nil
}

// Told implements runtime.Terminals.
func (r *Runtime) Told(ctx context.Context, uid types.UID) (facts.Signals, error) {
	p, err := r.running(ctx, uid)
	if err != nil {
		return facts.Signals{}, fmt.Errorf("read the signals of %s: %w", uid, err)
	}
	return r.look(uid, p).signals(), nil
}

// Size returns the initial size of the terminal of a Pod, or zero if it is unknown.
func Size(p *corev1.Pod) (size runtime.Terminal) {
	_, _ = fmt.Sscanf(p.Annotations[annotationTerminal], "%dx%d", &size.Columns, &size.Rows)
	return size
}

// glance does the same as logged, promptly.
func (r *Runtime) glance(ctx context.Context, p *corev1.Pod, lines int64) (text []byte, last time.Time, err error) {
	err = r.promptly(ctx, p, func(ctx context.Context) (err error) {
		text, last, err = r.logged(ctx, p, lines)
		return err
	})
	return text, last, err
}

// promptly calls read, which reads the output of a Pod, while a user or a worker of a controller waits: read has glanceTimeout, and a node that does not respond
// delays only one call in each period of deafFor.
func (r *Runtime) promptly(ctx context.Context, p *corev1.Pod, read func(context.Context) error) error {
	if since, deaf := r.deaf.Load(p.Spec.NodeName); deaf && time.Since(since.(time.Time)) < deafFor { // the map holds only time.Time values
		return fmt.Errorf("read the end of the output of Pod %s/%s: its node %s does not respond", p.Namespace, p.Name, p.Spec.NodeName)
	}
	ctx, cancel := context.WithTimeout(ctx, glanceTimeout)
	defer cancel()
	err := read(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		r.deaf.Store(p.Spec.NodeName, time.Now())
	} else {
		r.deaf.Delete(p.Spec.NodeName)
	}
	return err
}

// logged returns the end of the node's log, and the timestamp of the last line. Some nodes log a line only when it is complete.
func (r *Runtime) logged(ctx context.Context, p *corev1.Pod, lines int64) (text []byte, last time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	var stamped bytes.Buffer
	_, err = r.readEnd(ctx, p, corev1.PodLogOptions{Timestamps: true}, lines, &stamped)
	if apierrors.IsNotFound(err) {
		err = errors.Join(err, runtime.ErrNotFound)
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read the end of the output of Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	text, last = unstamp(stamped.Bytes())
	return text, last, nil
}

// unstamp removes the timestamps from the lines of a log, and returns the latest one. A node drops the carriage returns at line ends; unstamp restores them,
// because a terminal needs them.
func unstamp(stamped []byte) (text []byte, last time.Time) {
	for line := range bytes.Lines(stamped) {
		stamp, rest, _ := bytes.Cut(line, []byte(" "))
		at, err := time.Parse(time.RFC3339Nano, string(stamp))
		if err != nil {
			rest = line // continues the previous line
		} else if at.After(last) {
			last = at
		}
		text = append(text, returned(rest)...)
	}
	return end(text), last
}

// returned ends all lines with a carriage return and a newline.
func returned(text []byte) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
}

// end returns the last mostShown bytes of a text.
func end(text []byte) []byte { return text[max(0, len(text)-mostShown):] }
