// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// Sessions is a Runtime with sessions. A session may exist before a start, and tests can type into sessions.
type Sessions struct {
	*Runtime

	mu      sync.Mutex
	there   map[string]bool
	marked  map[types.UID]string
	typed   map[types.UID][]byte
	offered map[string][]runtime.Found
	away    error
	// searched counts the calls of Find.
	searched int
	tidied   map[types.UID]bool
}

// WithSessions adds sessions to the runtime.
func WithSessions(r *Runtime) *Sessions {
	return &Sessions{Runtime: r, there: map[string]bool{}, marked: map[types.UID]string{}, typed: map[types.UID][]byte{}, offered: map[string][]runtime.Found{},
		tidied: map[types.UID]bool{}}
}

// Capabilities implements runtime.Runtime.
func (s *Sessions) Capabilities() runtime.Capabilities {
	can := s.Runtime.Capabilities()
	can.Terminals, can.Adoption = s, s
	return can
}

// Tidy implements runtime.Terminals. It records the call.
func (s *Sessions) Tidy(_ context.Context, uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tidied[uid] = true
	return nil
}

// Tidied reports whether Tidy was called for a UID.
func (s *Sessions) Tidied(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tidied[uid]
}

// Found creates a session that no object has started.
func (s *Sessions) Found(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there[session] = true
}

// Start implements runtime.Runtime. If the session or container that p.Config names already exists, Start adopts it.
func (s *Sessions) Start(ctx context.Context, p runtime.Process) error {
	var config struct{ Session, Container string }
	if err := json.Unmarshal(p.Config, &config); err != nil {
		return err
	}
	if err := s.Runtime.Start(ctx, p); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if place := cmp.Or(config.Session, config.Container); s.there[place] {
		delete(s.there, place)
		s.marked[p.UID] = place
	}
	return nil
}

// Observe implements runtime.Runtime. It sets Adopted for adopted sessions.
func (s *Sessions) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := s.Runtime.Observe(ctx, uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range found {
		found[i].Adopted = s.marked[uid] != ""
	}
	return found, err
}

// List implements runtime.Runtime. It sets Adopted for adopted sessions.
func (s *Sessions) List(ctx context.Context) ([]facts.Incarnation, error) {
	found, err := s.Runtime.List(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range found {
		found[i].Adopted = s.marked[types.UID(found[i].UID)] != ""
	}
	return found, err
}

// Release implements runtime.Adoption. The session continues to exist, without an owner. A session whose program has ended has ended with it.
func (s *Sessions) Release(_ context.Context, uid types.UID) error {
	alive := len(s.Live(uid)) > 0
	s.mu.Lock()
	defer s.mu.Unlock()
	session, adopted := s.marked[uid]
	if !adopted {
		return runtime.ErrNotFound
	}
	delete(s.marked, uid)
	if !alive {
		return nil
	}
	s.there[session] = true
	s.Runtime.mu.Lock()
	defer s.Runtime.mu.Unlock()
	delete(s.workloads, uid)
	return nil
}

// There reports whether a session exists without an owner.
func (s *Sessions) There(session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.there[session]
}

// Type implements runtime.Terminals.
func (s *Sessions) Type(_ context.Context, uid types.UID, strokes runtime.Keystrokes) error {
	if len(s.Live(uid)) == 0 {
		return runtime.ErrNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.typed[uid] = append(s.typed[uid], strokes.Bytes()...)
	return nil
}

// Typed returns all input that was typed into the terminal of a UID.
func (s *Sessions) Typed(uid types.UID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.typed[uid])
}

// AttachCommand implements runtime.Terminals.
func (s *Sessions) AttachCommand(uid types.UID) string {
	var config struct{ Socket, Session string }
	if p, started := s.Process(uid); !started || json.Unmarshal(p.Config, &config) != nil {
		return ""
	}
	return "tmux -L " + config.Socket + " attach-session -t '=" + config.Session + "'"
}
