// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package weburl

import (
	"bytes"
	"slices"
)

const (
	// maxLine is how many bytes of a line are searched; the rest of the line is ignored.
	maxLine = 16 << 10
	// maxPorts is the maximum number of ports for which an address is kept.
	maxPorts = 64
)

// Scanner finds the addresses in a stream of output. It buffers one line and a limited number of addresses. The zero value is ready for use.
type Scanner struct {
	// Last selects the last address of a port instead of the first if both have the same rank. It is for output that begins with the output of earlier runs.
	Last bool

	line []byte
	long bool // the rest of the line is ignored
	best map[int32]URL
}

// Write implements io.Writer for output. It never returns an error.
func (s *Scanner) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		end := bytes.IndexAny(p, "\r\n")
		part := p
		if end >= 0 {
			part = p[:end]
		}
		s.add(part)
		if end < 0 {
			break
		}
		s.endLine()
		p = p[end+1:]
	}
	return total, nil
}

func (s *Scanner) add(part []byte) {
	if s.long {
		return
	}
	if room := maxLine - len(s.line); len(part) > room {
		part, s.long = part[:room], true
	}
	s.line = append(s.line, part...)
}

func (s *Scanner) endLine() {
	if s.best == nil {
		s.best = map[int32]URL{}
	}
	s.keep(s.best, Find(string(s.line)))
	s.line, s.long = s.line[:0], false
}

// URLs returns the address with the lowest rank for each port, sorted by port. It also searches an incomplete last line.
func (s *Scanner) URLs() []URL {
	best := make(map[int32]URL, len(s.best)+1)
	for port, u := range s.best {
		best[port] = u
	}
	s.keep(best, Find(string(s.line)))
	urls := make([]URL, 0, len(best))
	for _, u := range best {
		urls = append(urls, u)
	}
	slices.SortFunc(urls, func(a, b URL) int { return int(a.Port) - int(b.Port) })
	return urls
}

func (s *Scanner) keep(best map[int32]URL, urls []URL) {
	for _, u := range urls {
		had, ok := best[u.Port]
		switch {
		case !ok && len(best) >= maxPorts:
		case !ok, u.Rank < had.Rank, u.Rank == had.Rank && s.Last:
			best[u.Port] = u
		}
	}
}
