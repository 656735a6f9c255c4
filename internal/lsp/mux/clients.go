// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"iter"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
)

// clients holds the sessions of the connected clients.
type clients struct {
	sessions  map[document.Session]*session
	newest    document.Session
	idleSince time.Time // when the last client left; zero while there are clients
	asked     int64     // number of requests that were sent to clients
}

// add adds a session and gives it a key.
func (c *clients) add(s *session) {
	c.newest++
	s.key = c.newest
	c.sessions[s.key] = s
	c.idleSince = time.Time{}
}

func (c *clients) remove(s *session, now time.Time) {
	delete(c.sessions, s.key)
	if len(c.sessions) == 0 {
		c.idleSince = now
	}
}

// ready returns the sessions that accept notifications and requests.
func (c *clients) ready() iter.Seq[*session] {
	return func(yield func(*session) bool) {
		for _, s := range c.sessions {
			if s.stage == ready && !yield(s) {
				return
			}
		}
	}
}

// haveInitialized reports whether any client has received an answer to initialize.
func (c *clients) haveInitialized() bool {
	for _, s := range c.sessions {
		if s.stage >= initialized {
			return true
		}
	}
	return false
}
