// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
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

// Listeners implements runtime.Inspection. One query of the kernel returns the sockets of all processes, so the others cost nothing extra.
func (h *Host) Listeners(_ context.Context, uid types.UID) (runtime.Sockets, error) {
	f, err := h.running(uid)
	if err != nil || f == nil {
		return runtime.Sockets{}, err
	}
	members, err := f.tree.Members()
	if err != nil || len(members) == 0 {
		return runtime.Sockets{}, err
	}
	sockets, err := listening()
	if err != nil || len(sockets) == 0 {
		return runtime.Sockets{}, err
	}
	return divide(sockets, members, inodes), nil
}

// divide returns the sockets that the members have open, and those of other processes on the same ports. openIn is inodes.
func divide(sockets []socket, members []procstat.Process, openIn func(pid int) (map[uint64]bool, bool)) runtime.Sockets {
	var found runtime.Sockets
	own, ports, incomplete := map[uint64]bool{}, map[uint16]bool{}, false
	for _, member := range members {
		open, hidden := openIn(member.PID)
		incomplete = incomplete || hidden
		for _, s := range sockets {
			// An inherited socket is reported once.
			if open[s.inode] && !own[s.inode] {
				own[s.inode], ports[s.port] = true, true
				found.Own = append(found.Own, s.listener(int64(member.PID)))
			}
		}
	}
	if incomplete {
		return found // a socket that none of the members appears to have may be one of theirs
	}
	for _, s := range sockets {
		if ports[s.port] && !own[s.inode] {
			found.Others = append(found.Others, s.listener(0))
		}
	}
	return found
}

func (s socket) listener(pid int64) runtime.Listener {
	return runtime.Listener{Address: s.address.String(), Port: int32(s.port), PID: pid, IPv6Only: s.ipv6Only, Socket: s.inode}
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

// PortOwners implements runtime.Inspection. It reads the open files of all visible processes.
func (h *Host) PortOwners(_ context.Context, port int32, wanted ...uint64) ([]runtime.PortOwner, error) {
	sockets, err := on(port, wanted)
	if err != nil || len(sockets) == 0 {
		return nil, err
	}
	holders, err := holders(sockets)
	if err != nil {
		return nil, err
	}
	owners := make([]runtime.PortOwner, 0, len(sockets))
	for _, s := range sockets {
		owner := runtime.PortOwner{Socket: s.inode, User: s.user, PID: int64(holders[s.inode])}
		if owner.PID != 0 {
			owner.Command = commandLine(owner.PID)
			if owner.UID, err = h.owner(int(owner.PID)); err != nil {
				return nil, err
			}
		}
		owners = append(owners, owner)
	}
	// The owner of a socket that was closed meanwhile cannot be determined, so the socket would appear to belong to no object.
	now, err := on(port, wanted)
	return slices.DeleteFunc(owners, func(owner runtime.PortOwner) bool {
		return !slices.ContainsFunc(now, func(s socket) bool { return s.inode == owner.Socket })
	}), err
}

// on returns the wanted listening sockets on a port, at most runtime.MaxPortOwners. If none are given, all are wanted.
func on(port int32, wanted []uint64) ([]socket, error) {
	all, err := listening()
	all = slices.DeleteFunc(all, func(s socket) bool {
		return int32(s.port) != port || len(wanted) > 0 && !slices.Contains(wanted, s.inode)
	})
	slices.SortFunc(all, func(a, b socket) int { return cmp.Compare(a.inode, b.inode) })
	return all[:min(len(all), runtime.MaxPortOwners)], err
}

// holders returns, by inode, the lowest PID of the processes that have each of the sockets open. It is usually that of the server, and not of a worker that
// inherited the socket. Sockets without a visible process are left out.
func holders(sockets []socket) (map[uint64]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := map[uint64]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		open, _ := inodes(pid)
		for _, s := range sockets {
			if open[s.inode] && (found[s.inode] == 0 || pid < found[s.inode]) {
				found[s.inode] = pid
			}
		}
	}
	return found, nil
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
