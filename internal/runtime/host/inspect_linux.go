// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/proctree"
)

// commandLength is the maximum length of the command line of a foreign process in a message, in bytes.
const commandLength = 200

// running returns the state of a UID, or nil if its incarnation is not running.
func (h *Host) running(uid types.UID) (*observation, error) {
	e, err := h.acquire(uid)
	if err != nil {
		return nil, err
	}
	f := h.inspect(e)
	h.release(e, f.exists || f.recorded)
	if !f.exists || f.incarnation.Phase != facts.Running {
		return nil, nil
	}
	return f, nil
}

// Listeners implements runtime.Inspection.
func (h *Host) Listeners(_ context.Context, uid types.UID) ([]runtime.Listener, error) {
	f, err := h.running(uid)
	if err != nil || f == nil {
		return nil, err
	}
	members, err := f.tree.Members()
	if err != nil || len(members) == 0 {
		return nil, err
	}
	sockets, err := listening()
	if err != nil || len(sockets) == 0 {
		return nil, err
	}
	var found []runtime.Listener
	seen := map[uint64]bool{}
	for _, member := range members {
		open := inodes(member.PID)
		for _, s := range sockets {
			// An inherited socket is reported once.
			if open[s.inode] && !seen[s.inode] {
				seen[s.inode] = true
				found = append(found, runtime.Listener{Address: s.address.String(), Port: int32(s.port), PID: int64(member.PID)})
			}
		}
	}
	return found, nil
}

// Members implements runtime.Inspection.
func (h *Host) Members(_ context.Context, uid types.UID) ([]runtime.Member, error) {
	f, err := h.running(uid)
	if err != nil || f == nil {
		return nil, err
	}
	members, err := f.tree.Members()
	if err != nil {
		return nil, fmt.Errorf("list the processes of %s: %w", uid, err)
	}
	return proctree.Describe(members, int(f.incarnation.PID)), nil
}

// PortOwner implements runtime.Inspection. It reads the open files of all visible processes, so it is meant for resolving a conflict, not for polling.
func (h *Host) PortOwner(_ context.Context, port int32) (*runtime.PortOwner, error) {
	sockets, err := listening()
	if err != nil {
		return nil, err
	}
	wanted := map[uint64]bool{}
	for _, s := range sockets {
		if int32(s.port) == port {
			wanted[s.inode] = true
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	owner := &runtime.PortOwner{}
	if owner.PID, err = holder(wanted); err != nil || owner.PID == 0 {
		return owner, err
	}
	owner.Command = commandLine(owner.PID)
	owner.UID, err = h.owner(int(owner.PID))
	return owner, err
}

// holder returns the PID of a process that has one of the wanted sockets open, or 0 if no such process is visible.
func holder(wanted map[uint64]bool) (int64, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		for inode := range inodes(pid) {
			if wanted[inode] {
				return int64(pid), nil
			}
		}
	}
	return 0, nil
}

func commandLine(pid int64) string {
	data, err := os.ReadFile("/proc/" + strconv.FormatInt(pid, 10) + "/cmdline")
	if err != nil {
		return ""
	}
	return printable.Shorten(strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " ")), commandLength)
}

// owner returns the UID of the object that a process belongs to, or the empty UID if it belongs to none.
func (h *Host) owner(pid int) (types.UID, error) {
	uids, err := h.known()
	if err != nil {
		return "", err
	}
	ancestors := procstat.Ancestors(pid)
	for _, uid := range uids {
		f, err := h.running(uid)
		if err != nil {
			return "", err
		}
		if f == nil {
			continue
		}
		if f.tree.Ancestor != 0 {
			if slices.Contains(ancestors, f.tree.Ancestor) {
				return uid, nil
			}
			continue
		}
		members, err := f.tree.Members()
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(members, func(p procstat.Process) bool { return p.PID == pid }) {
			return uid, nil
		}
	}
	return "", nil
}
