// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// manyLogs is the maximum number of objects whose output berth logs -l prints; each of them needs a connection.
const manyLogs = 20

// logsOf prints the output of several objects at the same time.
func (a *app) logsOf(ctx context.Context, flags *connectionFlags, args []string, objects *selection, opts logOptions) error {
	to, references, err := objects.open(ctx, a, flags, args)
	if err != nil {
		return err
	}
	if len(references) > manyLogs {
		return fmt.Errorf("%d objects match %q, and berth logs prints the output of at most %d: use a narrower selector", len(references), objects.labels, manyLogs)
	}
	var lines sync.Mutex
	var printers sync.WaitGroup
	errs := make([]error, len(references))
	for i, ref := range references {
		printers.Go(func() {
			object, err := to.get(ctx, ref)
			if err != nil {
				errs[i] = err
				return
			}
			out := &prefixed{out: a.raw, lines: &lines, prefix: ref.String() + ": "}
			errs[i] = a.copyLogs(ctx, to, ref, object, opts, out)
			out.end()
		})
	}
	printers.Wait()
	return errors.Join(errs...)
}

// prefixed writes whole lines with a prefix. Several writers share the lock lines, so that their lines are not mixed.
type prefixed struct {
	out     io.Writer
	lines   *sync.Mutex
	prefix  string
	partial []byte
}

// longestPrefixed is the size in bytes at which an incomplete line is written, so that output without newlines does not fill the memory.
const longestPrefixed = 64 << 10

func (p *prefixed) Write(text []byte) (int, error) {
	p.partial = append(p.partial, text...)
	for {
		end := bytes.IndexByte(p.partial, '\n') + 1
		if end == 0 && len(p.partial) < longestPrefixed {
			return len(text), nil
		}
		if end == 0 {
			end = len(p.partial)
		}
		if err := p.line(p.partial[:end]); err != nil {
			return 0, err
		}
		p.partial = p.partial[end:]
	}
}

// end writes an incomplete last line.
func (p *prefixed) end() {
	if len(p.partial) > 0 {
		_ = p.line(p.partial)
	}
}

func (p *prefixed) line(text []byte) error {
	p.lines.Lock()
	defer p.lines.Unlock()
	_, err := fmt.Fprintf(p.out, "%s%s\n", p.prefix, bytes.TrimSuffix(text, []byte("\n")))
	return err
}
