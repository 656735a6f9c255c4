// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"

	"github.com/berth-dev/berth/internal/shim"
)

const runAsHelp = "user (name or UID) that runs programs on this machine, instead of the user of the manager; requires root"

// lookUpUser returns the user that programs run as, or nil if name is empty. It rejects root, because a manager without --run-as runs programs as root anyway.
// It returns an error unless the caller is root.
func lookUpUser(name string) (*shim.User, error) {
	if name == "" {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("--run-as %s: only root can run programs as another user; run berth as that user", name)
	}
	found, err := user.Lookup(name)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		found, err = user.LookupId(name)
	}
	if err != nil {
		return nil, fmt.Errorf("--run-as %s: %w", name, err)
	}
	groups, err := found.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("--run-as %s: read the groups of the user: %w", name, err)
	}
	ids := make([]uint32, 0, 2+len(groups))
	for _, text := range append([]string{found.Uid, found.Gid}, groups...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--run-as %s: ID %q is not a number", name, text)
		}
		ids = append(ids, uint32(id))
	}
	if ids[0] == 0 {
		return nil, fmt.Errorf("--run-as %s: the user is root; name another user", name)
	}
	return &shim.User{Name: found.Username, UID: ids[0], GID: ids[1], Groups: ids[2:], Home: found.HomeDir}, nil
}
