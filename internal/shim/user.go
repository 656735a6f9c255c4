// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"os"
	"slices"
	"strings"
)

// User is the user that programs run as, if it differs from the user of the manager.
type User struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"` // supplementary groups
	Home   string   `json:"home"`
}

// kept are the variables of the manager that a program of another user inherits. All others may hold secrets or name files of the manager's user.
var kept = []string{"LANG", "LANGUAGE", "PATH", "TERM", "TZ"}

// Inherited returns the entries of the manager's environment that a program of this user inherits. For a nil user it calls inheritedEnvironment.
func (u *User) Inherited(environ []string) []string {
	if u == nil {
		return inheritedEnvironment(environ)
	}
	var inherited []string
	for _, entry := range environ {
		if name, _, ok := strings.Cut(entry, "="); ok && (slices.Contains(kept, name) || strings.HasPrefix(name, "LC_")) {
			inherited = append(inherited, entry)
		}
	}
	return append(inherited, "HOME="+u.Home, "USER="+u.Name, "LOGNAME="+u.Name)
}

// id returns the UID of the user that a program runs as, for messages.
func (u *User) id() int {
	if u == nil {
		return os.Geteuid()
	}
	return int(u.UID)
}
