// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"

	"github.com/moby/moby/client"

	"github.com/berth-dev/berth/internal/shim"
)

const (
	// shortLog is the maximum size of a copy, in bytes, that catchUp compares with the whole log of the engine.
	shortLog = 1 << 20
	// longTail is the number of lines at the end of the engine's log that catchUp requests if the copy is larger than shortLog.
	longTail = "1000"
	// mark is the size of the end of the copy that catchUp searches for in the engine's log, in bytes.
	mark = 512
	// unlogged is the maximum size of an incomplete line that is missing from the engine's log, in bytes. An engine logs a longer line in parts.
	unlogged = 16 << 10
)

// screen copies the output of a terminal as it is written. After an interruption it appends what the engine has logged meanwhile. At that point, part of an
// incomplete line may be missing, because the engine does not log incomplete lines.
func (c *copier) screen(ctx context.Context) {
	conn, wait := c.live, retryFirst
	resumed := conn == nil
	for ctx.Err() == nil {
		if conn == nil {
			state := c.state(ctx)
			if state == nil {
				return
			}
			if !isAlive(state.State.Status) {
				c.catchUp(ctx)
				if ctx.Err() == nil {
					c.complete()
				}
				return
			}
			var err error
			if conn, err = c.attach(ctx); err != nil {
				wait = pause(ctx, wait, retryMost)
				continue
			}
		}
		if err := c.listen(ctx, conn, resumed); err != nil && ctx.Err() == nil {
			c.r.log.Error(err, "Cannot copy the output of a terminal")
		}
		conn, resumed = nil, true
		if state := c.state(ctx); state != nil && isAlive(state.State.Status) {
			wait = pause(ctx, wait, retryMost)
		}
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// listen copies output until the connection ends. If resumed is true, it first appends what the engine has logged meanwhile.
func (c *copier) listen(ctx context.Context, conn net.Conn, resumed bool) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	var added []byte
	if resumed {
		added = c.catchUp(ctx)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buf)
		text := buf[:n]
		if len(added) > 0 && n > 0 { // the first output may repeat what catchUp has just added
			text = text[overlap(added, text):]
			added = nil
		}
		if failed := c.write(text); failed != nil {
			return failed
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
	}
}

// catchUp appends what the engine has logged beyond the end of the copy, and returns it.
func (c *copier) catchUp(ctx context.Context) []byte {
	size := c.log.Size() - c.progress.Offset
	options := client.ContainerLogsOptions{}
	if size > shortLog {
		options.Tail = longTail
	}
	answer, err := c.logs(ctx, options)
	if err != nil {
		return nil // the log is not readable, or the container is gone
	}
	logged, err := io.ReadAll(io.LimitReader(answer, 64*shortLog))
	_ = answer.Close()
	if err != nil {
		return nil
	}
	end, err := c.log.Tail(int(min(size, mark+unlogged)))
	if err != nil {
		return nil
	}
	rest, found := beyond(logged, end, size)
	if !found {
		c.r.log.Info("The copied output of a terminal and the log of the engine do not overlap; output in between may be missing", "container", c.id)
		return nil
	}
	if err := c.append(rest, (*shim.Terminal).PublishEarlier); err != nil {
		c.r.log.Error(err, "Cannot copy the output of a terminal")
	}
	return rest
}

// beyond returns the part of logged that follows a copy of the output. end is the last part of the copy, and size is the size of the whole copy.
func beyond(logged, end []byte, size int64) (rest []byte, found bool) {
	if size == 0 {
		return logged, true
	}
	last := end[max(0, len(end)-mark):]
	// In the usual case the log is complete and begins with the same bytes as the copy. The log can differ, because an engine replaces invalid UTF-8.
	if n := int(size); size <= int64(len(logged)) && bytes.HasSuffix(logged[:n], last) {
		return logged[n:], true
	}
	if i := bytes.LastIndex(logged, last); i >= 0 && len(last) == mark {
		return logged[i+len(last):], true
	}
	// The copy may end with a line that is not logged yet, or with the beginning of a line that is logged.
	line := bytes.LastIndexByte(end, '\n') + 1
	whole, part := end[max(0, line-mark):line], end[line:]
	if i := bytes.LastIndex(logged, whole); i >= 0 && len(whole) > 0 {
		rest := logged[i+len(whole):]
		return rest[min(len(rest), commonPrefix(rest, part)):], true
	}
	return nil, len(logged) == 0
}

func commonPrefix(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// overlap returns the length of the longest prefix of b that is a suffix of a.
func overlap(a, b []byte) int {
	for n := min(len(a), len(b)); n > 0; n-- {
		if bytes.HasSuffix(a, b[:n]) {
			return n
		}
	}
	return 0
}
