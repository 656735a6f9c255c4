// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Sockets is a Runtime that also says which sockets its processes listen on: those that a test has told.
type Sockets struct {
	*Runtime

	mu        sync.Mutex
	listeners map[types.UID][]runtime.Listener
	foreign   map[int32]runtime.PortOwner
}

// WithSockets gives the runtime sockets.
func WithSockets(r *Runtime) *Sockets {
	return &Sockets{Runtime: r, listeners: map[types.UID][]runtime.Listener{}, foreign: map[int32]runtime.PortOwner{}}
}

// Capabilities implements runtime.Runtime.
func (s *Sockets) Capabilities() runtime.Capabilities {
	can := s.Runtime.Capabilities()
	can.Inspection = s
	return can
}

// Listen makes the processes of a UID listen, as long as an incarnation of it runs; without listeners they listen no more.
func (s *Sockets) Listen(uid types.UID, listeners ...runtime.Listener) {
	s.mu.Lock()
	s.listeners[uid] = listeners
	s.mu.Unlock()
	s.Announce(uid)
}

// Occupy makes a port of this machine be held by somebody; nil frees it.
func (s *Sockets) Occupy(port int32, owner *runtime.PortOwner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner == nil {
		delete(s.foreign, port)
		return
	}
	s.foreign[port] = *owner
}

// Listeners gives the sockets of a UID while it runs.
func (s *Sockets) Listeners(_ context.Context, uid types.UID) ([]runtime.Listener, error) {
	if len(s.Live(uid)) == 0 {
		return nil, fmt.Errorf("look at the sockets of %s: %w", uid, runtime.ErrNotFound)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.listeners[uid]), nil
}

// PortOwner says who holds a port: somebody foreign, or one of the processes that run.
func (s *Sockets) PortOwner(_ context.Context, port int32) (*runtime.PortOwner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner, held := s.foreign[port]; held {
		return &owner, nil
	}
	for uid, listeners := range s.listeners {
		listens := slices.ContainsFunc(listeners, func(l runtime.Listener) bool { return l.Port == port })
		if listens && len(s.Live(uid)) > 0 {
			return &runtime.PortOwner{PID: 1, Command: "fake", UID: uid}, nil
		}
	}
	return nil, nil
}
