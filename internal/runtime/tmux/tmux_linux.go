// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/background"
)

// Runtime is the backend. Create one with New.
type Runtime struct {
	runtime.Local
	runtime.Inspection // of the host, except for the methods that Runtime overrides
	*background.Tasks  // Close leaves sessions and processes running

	host    Host
	options Options
	install string // marks sessions as those of this install
	boot    string
	log     logr.Logger

	links  *background.Entries[*link]
	claims keymutex.KeyMutex // by socket; see claimAmong
}

var _ runtime.Runtime = (*Runtime)(nil)

// Capabilities implements runtime.Runtime. The record of an adopted session stores its origin; the host stores the origin of all others.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Terminals: r, Adoption: r, Inspection: r, KeepsOrigin: true}
}

// New reads the existing records and starts to maintain the session of each. It returns an error that wraps exec.ErrNotFound if tmux is missing.
func New(host Host, options Options) (*Runtime, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	boot, err := procstat.BootID()
	if err != nil {
		return nil, fmt.Errorf("read the boot ID: %w", err)
	}
	r := &Runtime{
		Inspection: host, Tasks: background.New(), host: host, options: options, install: runtime.InstallID(options.Dir), boot: boot, log: options.Logger,
		claims: keymutex.NewHashed(0),
	}
	r.links = background.NewEntries(func(uid types.UID) *link {
		return &link{runtime: r, uid: uid, keep: true, kicked: make(chan struct{}, 1)}
	})
	if err := r.adoptAll(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// adoptAll starts following every session that has a record.
func (r *Runtime) adoptAll() error {
	uids, err := r.recorded()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		r.links.Get(uid).follow()
	}
	return nil
}

// recorded returns the UIDs that have a record.
func (r *Runtime) recorded() ([]types.UID, error) {
	entries, err := os.ReadDir(r.options.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the recorded sessions: %w", err)
	}
	var uids []types.UID
	for _, entry := range entries {
		name, found := strings.CutSuffix(entry.Name(), recordSuffix)
		if uid := types.UID(name); found && runtime.ValidUID(uid) {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// Events implements runtime.Runtime. It returns the events of the host, which include the changes in tmux. Only one reader may consume them.
func (r *Runtime) Events() <-chan types.UID { return r.host.Events() }

// List implements runtime.Runtime. It returns the incarnations of the host and those in adopted sessions.
func (r *Runtime) List(ctx context.Context) ([]facts.Incarnation, error) {
	held, err := r.host.List(ctx)
	if err != nil {
		return nil, err
	}
	adopted, err := r.adopted(ctx)
	return append(held, adopted...), err
}

// adopted returns the incarnations in adopted sessions.
func (r *Runtime) adopted(ctx context.Context) ([]facts.Incarnation, error) {
	uids, err := r.recorded()
	if err != nil {
		return nil, err
	}
	var all []facts.Incarnation
	for _, uid := range uids {
		record, err := r.read(uid)
		if err != nil {
			return nil, err
		}
		if record == nil || !record.Adopted {
			continue
		}
		found, err := r.Observe(ctx, uid)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, ctx.Err()
}

// OpenLog implements runtime.Logs. The output of an adopted session is not stored: see Capture.
func (r *Runtime) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	if record, err := r.read(uid); err == nil && record != nil && record.Adopted {
		return nil, fmt.Errorf("the output of an adopted session is only available in tmux; attach to the session: %w", runtime.ErrNotFound)
	}
	return r.host.OpenLog(ctx, uid)
}

// Sessions returns all sessions on a tmux socket of the manager's user, with one tmux call, or none if no server listens on the socket. An empty name means
// Options.Socket.
func (r *Runtime) Sessions(ctx context.Context, socket string) ([]Session, error) {
	socket = cmp.Or(socket, r.options.Socket)
	if err := checkSocketName(socket); err != nil {
		return nil, err
	}
	return r.client(socket).sessions(ctx)
}

var errClosed = errors.New("the tmux runtime is closed")
