// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"

	"github.com/berth-dev/berth/internal/runtime"
)

// Find implements runtime.Adoption, with one tmux call.
func (r *Runtime) Find(ctx context.Context, socket string) ([]runtime.Found, error) {
	all, err := r.Sessions(ctx, socket)
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
		found[i].Unfit = unfit(s)
	}
	return found, nil
}

// unfit returns why no object can adopt a session, or "" if an object can adopt it.
func unfit(s *Session) string {
	p := s.program()
	switch {
	case checkSessionName(s.Name) != nil:
		return checkSessionName(s.Name).Error()
	case p == nil:
		return "no program is running in the session"
	case inside(s.server, p.id, p.pid):
		return "berth itself is running in the session"
	}
	return ""
}
