// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"cmp"
	"context"

	"github.com/berth-dev/berth/internal/runtime"
)

// Find implements runtime.Adoption, with one tmux call. It finds only the sessions of the user that programs run as.
func (r *Runtime) Find(ctx context.Context, socket string) ([]runtime.Found, error) {
	socket = cmp.Or(socket, r.options.Socket)
	if err := checkSocketName(socket); err != nil {
		return nil, err
	}
	all, err := r.adoptionClient(socket).sessions(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]runtime.Found, len(all))
	for i := range all {
		s := &all[i]
		found[i] = runtime.Found{ID: s.ID, Name: s.Name, Created: s.Created, Command: s.Command, Owned: s.UID != ""}
		if s.install == r.install {
			found[i].Owner = s.UID
		}
		found[i].Unfit = r.unfit(s)
	}
	return found, nil
}

// unfit returns why no object can adopt a session, or "" if an object can adopt it.
func (r *Runtime) unfit(s *Session) string {
	p := s.program()
	switch {
	case checkSessionName(s.Name) != nil:
		return checkSessionName(s.Name).Error()
	case p == nil:
		return "no program is running in the session"
	case inside(s.server, p.id, p.pid):
		return "berth itself is running in the session"
	}
	if err := r.mayUse(s, p); err != nil {
		return err.Error()
	}
	return ""
}
