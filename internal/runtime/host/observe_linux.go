// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	// adopters is how many UIDs are adopted concurrently. helloTimeout is how long a shim may take to answer.
	adopters     = 32
	helloTimeout = 2 * time.Second
)

// Observe implements runtime.Runtime.
func (h *Host) Observe(_ context.Context, uid types.UID) ([]facts.Incarnation, error) {
	e, err := h.acquire(uid)
	if err != nil {
		return nil, err
	}
	f := h.inspect(e)
	h.release(e, f.exists || f.recorded)
	return f.list(), nil
}

// List implements runtime.Runtime.
func (h *Host) List(ctx context.Context) ([]facts.Incarnation, error) {
	uids, err := h.known()
	if err != nil {
		return nil, err
	}
	var all []facts.Incarnation
	for _, uid := range uids {
		found, err := h.Observe(ctx, uid)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, ctx.Err()
}

// known returns the UIDs that have a directory or a cgroup, sorted.
func (h *Host) known() ([]types.UID, error) {
	var uids []types.UID
	for _, dir := range []string{h.runDir(), h.cgroup} {
		if dir == "" {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list the existing processes: %w", err)
		}
		for _, entry := range entries {
			if uid := types.UID(entry.Name()); entry.IsDir() && runtime.ValidUID(uid) {
				uids = append(uids, uid)
			}
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

// adopt inspects all existing UIDs. New waits for adopt, so that no caller acts on a UID that has not been inspected.
func (h *Host) adopt() {
	uids, err := h.known()
	if err != nil {
		h.log.Error(err, "Cannot list the processes that earlier managers started")
	}
	var all errgroup.Group
	all.SetLimit(adopters)
	for _, uid := range uids {
		all.Go(func() error {
			h.adoptOne(uid)
			return nil
		})
	}
	_ = all.Wait() // it returns no error
}

func (h *Host) adoptOne(uid types.UID) {
	e, err := h.acquire(uid)
	if err != nil {
		return
	}
	h.killCommands(uid) // left by a manager that was killed
	f := h.inspect(e)
	e.seen = f.summary()
	switch {
	case f.held && f.identified:
		if err := h.hello(uid, f.record.Token); err != nil {
			h.log.Error(err, "Unexpected response from a shim", "uid", uid, "name", f.record.Name)
			// A shim that does not answer may be stopped or busy; its process is verified separately. A process that answers with another token is not the shim.
			if errors.Is(err, shim.ErrImpostor) {
				e.distrust = err
			}
		}
	case !f.exists && !f.recorded && h.cgroup != "":
		_ = shim.RemoveCgroup(h.group(uid)) // an empty cgroup of a forgotten UID
	}
	h.release(e, f.exists || f.recorded)
	if f.exists {
		h.events.Add(uid)
	}
}

// hello verifies that the shim answers with the token of the record.
func (h *Host) hello(uid types.UID, token string) error {
	client, err := h.dial(uid, token)
	if err != nil {
		return err
	}
	return client.Conn.Close()
}

func (h *Host) dial(uid types.UID, token string) (*shim.Client, error) {
	return shim.Dial(h.dir(uid), token, helloTimeout)
}
