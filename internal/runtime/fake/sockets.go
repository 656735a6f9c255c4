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

// Sockets is a Runtime that also reports the sockets of its processes, as a test sets them.
type Sockets struct {
	*Runtime

	mu        sync.Mutex
	listeners map[types.UID][]runtime.Listener
	foreign   map[int32]runtime.PortOwner
}

// WithSockets adds sockets to the runtime.
func WithSockets(r *Runtime) *Sockets {
	return &Sockets{Runtime: r, listeners: map[types.UID][]runtime.Listener{}, foreign: map[int32]runtime.PortOwner{}}
}

// Capabilities implements runtime.Runtime.
func (s *Sockets) Capabilities() runtime.Capabilities {
	can := s.Runtime.Capabilities()
	can.Inspection = s
	return can
}

// Listen sets the sockets that the processes of a UID listen on while an incarnation is alive. It replaces the sockets that an earlier call set.
func (s *Sockets) Listen(uid types.UID, listeners ...runtime.Listener) {
	s.mu.Lock()
	s.listeners[uid] = listeners
	s.mu.Unlock()
	s.Announce(uid)
}

// Occupy sets the owner of a port of this machine; nil frees the port.
func (s *Sockets) Occupy(port int32, owner *runtime.PortOwner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner == nil {
		delete(s.foreign, port)
		return
	}
	s.foreign[port] = *owner
}

// Listeners implements runtime.Inspection. It returns ErrNotFound if no incarnation is alive.
func (s *Sockets) Listeners(_ context.Context, uid types.UID) ([]runtime.Listener, error) {
	if len(s.Live(uid)) == 0 {
		return nil, fmt.Errorf("list the sockets of %s: %w", uid, runtime.ErrNotFound)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.listeners[uid]), nil
}

// PortOwner implements runtime.Inspection. It returns the owner that Occupy set, or the living process that listens on the port.
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
