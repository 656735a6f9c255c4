// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/statedir"
)

const (
	// annotationDirectory and annotationInode describe the state directory of the manager that holds the name of the host.
	annotationDirectory = "berth.dev/state-dir"
	annotationInode     = "berth.dev/state-dir-inode"

	// renewalPatience is how long Acquire waits for a renewal by another manager. It exceeds Interval.
	renewalPatience = Interval + 5*time.Second
	// releaseTimeout bounds the last write of a manager that ends.
	releaseTimeout = 2 * time.Second
)

// Holder identifies the manager that serves a host. The name of the host does not, because a copy of a state directory contains the name of the original.
type Holder struct {
	// Start is unique for each start of a manager. In a Lease, the name of the host precedes it, and it is empty after the manager has ended regularly.
	Start string
	// Directory is the absolute path of the state directory, without symbolic links.
	Directory string
	// Inode is the inode number of the state directory, which does not change when the directory is moved within its file system.
	Inode uint64
}

// NewHolder returns the identity of a manager that starts with a state directory, which must exist.
func NewHolder(stateDir string) (Holder, error) {
	directory, err := filepath.Abs(stateDir)
	if err == nil {
		directory, err = filepath.EvalSymlinks(directory)
	}
	if err != nil {
		return Holder{}, fmt.Errorf("identify the state directory: %w", err)
	}
	info, err := os.Stat(directory)
	if err != nil {
		return Holder{}, fmt.Errorf("identify the state directory: %w", err)
	}
	var start [8]byte
	_, _ = rand.Read(start[:]) // never fails
	return Holder{Start: hex.EncodeToString(start[:]), Directory: directory, Inode: statedir.Inode(info)}, nil
}

// holderOf returns the manager that a Lease names. Its Directory is empty if the Lease names none.
func holderOf(lease *coordinationv1.Lease) Holder {
	inode, _ := strconv.ParseUint(lease.Annotations[annotationInode], 10, 64) // 0 is the inode of no directory
	return Holder{Start: ptr.Deref(lease.Spec.HolderIdentity, ""), Directory: lease.Annotations[annotationDirectory], Inode: inode}
}

// claim is whether a manager may take the name of a host that another start of a manager held.
type claim int

const (
	claimFree  claim = iota // the other manager has ended
	claimCopy               // the state directory is a copy of the other one
	claimWatch              // the other manager has ended unless it renews the Lease
)

// claimFrom decides whether the manager h may take the name from another one. The caller holds the lock of its own state directory, so no other manager uses that
// directory. original reports whether the directory of the other manager exists, has this name, and is not the directory of h.
func (h Holder) claimFrom(other Holder, original bool) claim {
	switch moved := other.Inode == h.Inode && h.Inode != 0; {
	case other.Directory == "":
		return claimFree
	case original:
		return claimCopy
	case moved, other.Start == "":
		return claimFree
	}
	return claimWatch // restored from a backup, moved to another file system, or in a container whose files are not visible here
}

// isOriginal reports whether a directory other than that of h exists and contains the name of this host.
func (h Holder) isOriginal(directory, name string) bool {
	there, err := os.Stat(directory)
	if err != nil {
		return false
	}
	if own, err := os.Stat(h.Directory); err == nil && os.SameFile(own, there) {
		return false
	}
	var known identity
	found, err := statedir.ReadJSON(filepath.Join(directory, nameFile), &known)
	return err == nil && found && known.Name == name
}

// errHeld is wrapped by the errors about another manager with the name of this host.
var errHeld = errors.New("another state directory has the name of this host")

func (h *Hosts) heldBy(other Holder, what string) error {
	return fmt.Errorf("%w: %q belongs to the manager that the Lease of host %s names as its holder (%s), and %q of this manager %s; "+
		"use %q, or an empty directory for another host; if this directory replaces the other one, stop the other manager and delete or rename its directory",
		errHeld, other.Directory, h.options.Name, cmp.Or(other.Start, "ended"), h.options.Holder.Directory, what, other.Directory)
}

// Acquire takes the name of this host before the manager starts anything. It returns an error if another manager holds the name, which happens if the state
// directory was copied. A manager that restarts with the same or a moved directory does not wait. If that cannot be decided from the directories, Acquire
// waits for a renewal of the Lease.
func (h *Hosts) Acquire(ctx context.Context) error {
	raced := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultRetry, raced, func() error { return h.acquire(ctx) })
	if apierrors.IsForbidden(err) {
		h.options.Log.Error(err, "Cannot take the Lease of this host yet; retrying", "host", h.options.Lease)
		return nil // the account of a new host gets the permission after its first start
	}
	return err
}

func (h *Hosts) acquire(ctx context.Context) error {
	object, missing, err := h.ownLease(ctx)
	if err != nil {
		return err
	}
	own, other := h.options.Holder, holderOf(object)
	switch own.claimFrom(other, own.isOriginal(other.Directory, h.options.Name)) {
	case claimCopy:
		return h.heldBy(other, "is a copy of it")
	case claimWatch:
		h.options.Log.Info("Waiting to see whether the previous manager of this host still runs", "host", h.options.Name, "stateDir", other.Directory)
		renews, err := Renews(ctx, h.options.Reader, h.options.Clock, h.options.Namespace, h.options.Name, renewalPatience)
		if err != nil {
			return err
		}
		if renews {
			return h.heldBy(other, "has the same name")
		}
	case claimFree:
	}
	return h.write(ctx, object, missing)
}

// release states in the Lease that the manager of this host has ended regularly. It does not change the time of the renewal.
func (h *Hosts) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	object, missing, err := h.ownLease(ctx)
	if err != nil || missing || holderOf(object).Start != h.identity() {
		return
	}
	delete(object.Annotations, annotationEndpoint)
	delete(object.Annotations, annotationAuthority)
	object.Spec.HolderIdentity = nil
	if err := h.options.Client.Update(ctx, object); err != nil {
		h.options.Log.V(1).Info("Cannot release the Lease of this host", "cause", err.Error())
	}
}
