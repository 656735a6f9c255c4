// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
)

var (
	contentLength = []byte("content-length")
	contentType   = []byte("content-type")
)

// header consumes one header block and returns its Content-Length.
func (r *Reader) header() (int, error) {
	if err := r.first(); err != nil {
		return 0, err
	}
	length, fields := -1, 0
	for at := r.start; ; fields++ {
		line, err := r.line(&at)
		if err != nil {
			return 0, err
		}
		if len(line) == 0 {
			r.start = at
			break
		}
		if fields == maxHeaderFields {
			return 0, fmt.Errorf("%w: more than %d fields", errHeader, maxHeaderFields)
		}
		if err := field(line, &length); err != nil {
			return 0, err
		}
	}
	if length < 0 {
		return 0, fmt.Errorf("%w: no Content-Length", errHeader)
	}
	return length, nil
}

// first waits for the first byte of a header. Before the first header of the stream, it drops data that is not a header.
func (r *Reader) first() error {
	for r.start == r.end {
		if err := r.fill(); err != nil {
			return err
		}
	}
	for !r.begun {
		at, partly := findHeader(r.buffer[r.start:r.end])
		r.start += at
		if r.skipped += at; r.skipped > r.limits.Skip {
			return fmt.Errorf("%w: more than %d bytes of other output precede the first message", errHeader, r.limits.Skip)
		}
		if !partly {
			r.begun = true
			return nil
		}
		if err := r.fill(); err != nil {
			return within(err)
		}
	}
	return nil
}

// findHeader returns where a header begins in data. partly: a header may begin there, but more data is needed to decide.
func findHeader(data []byte) (at int, partly bool) {
	for at = range data {
		if data[at]|0x20 != 'c' {
			continue
		}
		for _, name := range [...][]byte{contentLength, contentType} {
			n := min(len(name), len(data)-at)
			if !bytes.EqualFold(data[at:at+n], name[:n]) {
				continue
			}
			if at+n == len(data) {
				return at, true
			}
			if data[at+n] == ':' {
				return at, false
			}
		}
	}
	return len(data), true
}

// line returns the line at *at without its line end, and moves *at behind that line end. Reading more data moves the unconsumed data to the beginning of the
// buffer, and line adjusts *at accordingly.
func (r *Reader) line(at *int) ([]byte, error) {
	for seen := *at; ; {
		if i := bytes.IndexByte(r.buffer[seen:r.end], '\n'); i >= 0 {
			line := r.buffer[*at : seen+i]
			*at = seen + i + 1
			if *at-r.start > r.limits.HeaderBytes || len(line) > r.limits.HeaderBytes/2 {
				return nil, r.headerTooLong()
			}
			return bytes.TrimSuffix(line, []byte{'\r'}), nil
		}
		if r.end-r.start >= r.limits.HeaderBytes || r.end-*at > r.limits.HeaderBytes/2 {
			return nil, r.headerTooLong()
		}
		if !r.armed {
			r.arm(r.limits.patience(0))
		}
		seen = r.end - r.start
		*at -= r.start
		if err := r.fill(); err != nil {
			return nil, within(err)
		}
	}
}

func (r *Reader) headerTooLong() error {
	return fmt.Errorf("%w: the header exceeds %d bytes, or one of its lines exceeds %d", errHeader, r.limits.HeaderBytes, r.limits.HeaderBytes/2)
}

// field parses one field of a header. Names are case-insensitive; unknown fields are ignored.
func field(line []byte, length *int) error {
	for _, c := range line {
		if c < ' ' && c != '\t' || c > '~' {
			return fmt.Errorf("%w: invalid byte %#x", errHeader, c)
		}
	}
	name, value, ok := bytes.Cut(line, []byte{':'})
	if !ok || len(name) == 0 || bytes.ContainsAny(name, " \t") {
		return fmt.Errorf("%w: %.40q is not a header field", errHeader, line)
	}
	value = bytes.Trim(value, " \t")
	switch {
	case bytes.EqualFold(name, contentLength):
		if *length >= 0 {
			return fmt.Errorf("%w: Content-Length twice", errHeader)
		}
		var err error
		*length, err = decimal(value)
		return err
	case bytes.EqualFold(name, contentType):
		return charset(value)
	}
	return nil
}

// decimal parses a Content-Length: digits only, and not 0, because no message is empty.
func decimal(value []byte) (int, error) {
	n := 0
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%w: Content-Length %.40q is not a decimal number", errHeader, value)
		}
		if n > (math.MaxInt32-9)/10 {
			return 0, fmt.Errorf("%w: Content-Length is %.40s", errTooLarge, value)
		}
		n = n*10 + int(c-'0')
	}
	if n == 0 {
		return 0, fmt.Errorf("%w: Content-Length %.40q declares an empty message", errHeader, value)
	}
	return n, nil
}

// charset rejects a Content-Type with an encoding that the protocol does not define.
func charset(value []byte) error {
	lower := bytes.ToLower(value)
	_, name, ok := bytes.Cut(lower, []byte("charset="))
	if !ok {
		return nil
	}
	switch string(bytes.Trim(name, `" `)) {
	case "utf-8", "utf8":
		return nil
	}
	return fmt.Errorf("%w: Content-Type %.80q is not supported; use utf-8", errHeader, value)
}

// Ended reports whether an error of Read means that the stream ended or was closed, and not that the peer broke the protocol.
func Ended(err error) bool {
	return err != nil && !errors.Is(err, errTooLarge) && !errors.Is(err, errHeader) && !errors.Is(err, errSlow) && !errors.Is(err, io.ErrNoProgress)
}
