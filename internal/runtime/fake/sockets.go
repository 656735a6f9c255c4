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
	others    map[int32][]runtime.Listener
}

// WithSockets adds sockets to the runtime.
func WithSockets(r *Runtime) *Sockets {
	return &Sockets{Runtime: r, listeners: map[types.UID][]runtime.Listener{}, foreign: map[int32]runtime.PortOwner{}, others: map[int32][]runtime.Listener{}}
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

// Occupy sets the owner of a port of this machine; nil frees the port. The owner listens at the given addresses of the port, by default at 127.0.0.1.
func (s *Sockets) Occupy(port int32, owner *runtime.PortOwner, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.foreign, port)
	delete(s.others, port)
	if owner == nil {
		return
	}
	if len(addresses) == 0 {
		addresses = []string{"127.0.0.1"}
	}
	s.foreign[port] = *owner
	for _, address := range addresses {
		s.others[port] = append(s.others[port], runtime.Listener{Address: address, Port: port, Socket: owner.Socket})
	}
}

// Listeners implements runtime.Inspection. It returns ErrNotFound if no incarnation is alive.
func (s *Sockets) Listeners(_ context.Context, uid types.UID) (runtime.Sockets, error) {
	if len(s.Live(uid)) == 0 {
		return runtime.Sockets{}, fmt.Errorf("list the sockets of %s: %w", uid, runtime.ErrNotFound)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := runtime.Sockets{Own: slices.Clone(s.listeners[uid])}
	for port, others := range s.others {
		if slices.ContainsFunc(found.Own, func(l runtime.Listener) bool { return l.Port == port }) {
			found.Others = append(found.Others, others...)
		}
	}
	return found, nil
}

// PortOwners implements runtime.Inspection. It returns the owner that Occupy set, and the living processes that listen on the port.
func (s *Sockets) PortOwners(_ context.Context, port int32, _ ...uint64) ([]runtime.PortOwner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owners []runtime.PortOwner
	if owner, held := s.foreign[port]; held {
		owners = append(owners, owner)
	}
	for uid, listeners := range s.listeners {
		listens := slices.ContainsFunc(listeners, func(l runtime.Listener) bool { return l.Port == port })
		if listens && len(s.Live(uid)) > 0 {
			owners = append(owners, runtime.PortOwner{PID: 1, Command: "fake", UID: uid})
		}
	}
	return owners, nil
}
