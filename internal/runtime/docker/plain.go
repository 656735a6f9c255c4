// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/moby/moby/client"
)

const (
	// disorder is how much older a message may be than the previous one, in ns, because the engine logs two streams concurrently.
	disorder = int64(10 * time.Millisecond)
	// recordEvery is how often the progress is saved.
	recordEvery = time.Second
	frameHeader = 8
	largeFrame  = 64 << 20
	writeAtOnce = 32 << 10
)

// plain copies the engine's log in its order, without loss or repetition. The timestamps of the messages show which messages were already copied.
func (c *copier) plain(ctx context.Context) {
	wait := retryFirst
	for ctx.Err() == nil {
		state := c.state(ctx)
		if state == nil {
			break
		}
		running := isAlive(state.State.Status)
		begun := time.Now()
		err := c.pass(ctx, running)
		if ctx.Err() != nil {
			break
		}
		c.saveProgress()
		switch {
		case unreadable(err):
			c.r.log.Info("The Docker Engine does not provide the output of a container; its log stays empty", "container", c.id, "err", err.Error())
			c.complete()
			return
		case err == nil && !running:
			c.complete() // the engine logs no output after a container has exited
			return
		case time.Since(begun) > retryMost:
			wait = retryFirst
		}
		wait = pause(ctx, wait, retryMost)
	}
	c.saveProgress()
}

// pass copies the output beyond the current position. If follow is true, it also copies new output until the container exits.
func (c *copier) pass(ctx context.Context, follow bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer, err := c.logs(ctx, client.ContainerLogsOptions{Timestamps: true, Follow: follow})
	if err != nil {
		return err
	}
	defer func() { _ = answer.Close() }()
	skip := c.progress.Seen
	c.recent = c.recent[:0]
	in := bufio.NewReaderSize(answer, 64<<10)
	var frame, pending []byte
	recorded, stable := time.Now(), c.progress
	for {
		var at int64
		var text []byte
		if frame, at, text, err = next(in, frame); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			if failed := c.write(pending); failed != nil || skip > 0 {
				c.progress = stable
				err = errors.Join(failed, err)
			}
			return err
		}
		c.note(at)
		if skip > 0 {
			skip--
			continue
		}
		// Skip output that is already in the copy: an earlier manager wrote it, but crashed before it recorded the progress.
		ahead := max(0, c.log.Size()+int64(len(pending))-c.progress.Offset)
		pending = append(pending, text[min(ahead, int64(len(text))):]...)
		c.progress.Offset += int64(len(text))
		if in.Buffered() >= frameHeader && len(pending) < writeAtOnce {
			continue
		}
		if err := c.write(pending); err != nil {
			c.progress = stable
			return err
		}
		pending, stable = pending[:0], c.progress
		if time.Since(recorded) > recordEvery {
			recorded = time.Now()
			c.saveProgress()
		}
	}
}

// note counts a message, and occasionally advances the time from which messages are counted. If the clock of the engine was set back, note begins to count again,
// because the engine would not return the message for the old time. A later manager may then copy messages from before that again, but loses none.
func (c *copier) note(at int64) {
	if at < c.progress.At {
		c.progress.At, c.recent = at-disorder, c.recent[:0]
	}
	c.recent = append(c.recent, at)
	if from := at - disorder; from > c.progress.At+disorder {
		c.progress.At = from
		c.recent = slices.DeleteFunc(c.recent, func(t int64) bool { return t < from })
	}
	c.progress.Seen = len(c.recent)
}

// next reads one message and returns its timestamp and its text. It reads into buffer, or into a larger buffer if necessary, and returns that buffer as frame
// for the next call.
func next(in io.Reader, buffer []byte) (frame []byte, at int64, text []byte, err error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return buffer, 0, nil, err
	}
	size := int(binary.BigEndian.Uint32(header[4:]))
	if size > largeFrame {
		return buffer, 0, nil, fmt.Errorf("the Docker Engine sent a log message of %d bytes; the limit is %d", size, largeFrame)
	}
	frame = slices.Grow(buffer[:0], size)[:size]
	if _, err := io.ReadFull(in, frame); err != nil {
		return frame, 0, nil, io.EOF // truncated: the next pass reads the message again
	}
	if header[0] == 3 {
		return frame, 0, nil, fmt.Errorf("the Docker Engine cannot read its log: %s", frame)
	}
	stamp, text, ok := bytes.Cut(frame, []byte{' '})
	if !ok {
		return frame, 0, nil, fmt.Errorf("the Docker Engine sent a log message without a timestamp")
	}
	t, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return frame, 0, nil, fmt.Errorf("the Docker Engine sent a log message with an invalid timestamp: %w", err)
	}
	return frame, t.UnixNano(), text, nil
}
