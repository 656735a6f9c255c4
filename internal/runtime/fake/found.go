// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"cmp"
	"context"
	"slices"

	"github.com/berth-dev/berth/internal/runtime"
)

// containers is the key of containers in Sessions.offered. No socket has this name.
const containers = "\x00containers"

// OfferSessions sets the sessions of the tmux server on a socket, and replaces those set before.
func (s *Sessions) OfferSessions(socket string, found ...runtime.Found) { s.offer(socket, found) }

// OfferContainers sets the running containers, and replaces those set before.
func (s *Sessions) OfferContainers(found ...runtime.Found) { s.offer(containers, found) }

func (s *Sessions) offer(where string, found []runtime.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offered[where] = slices.Clone(found)
}

// Away makes every search for sessions and containers return err, until Away is called with nil.
func (s *Sessions) Away(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = err
}

// Find implements runtime.Adoption. Without a socket it returns containers.
func (s *Sessions) Find(_ context.Context, socket string) ([]runtime.Found, error) {
	return s.find(cmp.Or(socket, containers))
}

// Searches returns how often sessions or containers were searched for.
func (s *Sessions) Searches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.searched
}

func (s *Sessions) find(where string) ([]runtime.Found, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.searched++
	if s.away != nil {
		return nil, s.away
	}
	return slices.Clone(s.offered[where]), nil
}
