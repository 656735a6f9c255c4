// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Runtime is the backend. Make one with New.
type Runtime struct {
	runtime.Local
	runtime.Inspection // of the host, except the methods below

	host    Host
	options Options
	install string // marks sessions as those of this Berth
	boot    string
	log     logr.Logger

	life  context.Context
	end   context.CancelFunc
	loops sync.WaitGroup

	mu     sync.Mutex
	closed bool
	wake   func(types.UID)
	links  map[types.UID]*link
	claims map[string]*sync.Mutex
}

var _ runtime.Runtime = (*Runtime)(nil)

// Capabilities implements runtime.Runtime. The record of an adopted session holds its origin; the host has that of all others.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Terminals: r, Adoption: r, Inspection: r, KeepsOrigin: true}
}

// New finds the sessions that it knows of, and looks after their windows from then on. An error that wraps exec.ErrNotFound says that tmux is missing.
func New(host Host, options Options) (*Runtime, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	boot, err := shim.BootID()
	if err != nil {
		return nil, fmt.Errorf("tell this boot from others: %w", err)
	}
	sum := sha256.Sum256([]byte(options.Dir))
	r := &Runtime{
		Inspection: host, host: host, options: options, install: hex.EncodeToString(sum[:6]), boot: boot, log: options.Logger, wake: options.Wake,
		links: map[types.UID]*link{}, claims: map[string]*sync.Mutex{},
	}
	r.life, r.end = context.WithCancel(context.Background())
	if err := r.adoptAll(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// adoptAll begins to look after all that there is a record of.
func (r *Runtime) adoptAll() error {
	uids, err := r.recorded()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		r.link(uid).follow()
	}
	return nil
}

// recorded gives the UIDs that there is a record of.
func (r *Runtime) recorded() ([]types.UID, error) {
	entries, err := os.ReadDir(r.options.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the sessions that are known: %w", err)
	}
	var uids []types.UID
	for _, entry := range entries {
		uid, found := strings.CutSuffix(entry.Name(), recordSuffix)
		if found && shim.ValidUID(uid) {
			uids = append(uids, types.UID(uid))
		}
	}
	return uids, nil
}

// Close lets go of everything and leaves sessions and processes alone.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.end()
	r.loops.Wait()
}

// spawn runs something until it ends by itself, which it does soon once the runtime is closed.
func (r *Runtime) spawn(do func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.loops.Go(do)
	return true
}

// OnChange sets who is told the UIDs that something happened to in tmux.
func (r *Runtime) OnChange(wake func(types.UID)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wake = wake
}

func (r *Runtime) tell(uid types.UID) {
	r.mu.Lock()
	wake := r.wake
	r.mu.Unlock()
	if wake != nil {
		wake(uid)
	}
}

// Events implements runtime.Runtime: those of the host, which one reader gets. What happens in tmux is told to Wake.
func (r *Runtime) Events() <-chan types.UID { return r.host.Events() }

// List implements runtime.Runtime: all that the host holds, and what was adopted.
func (r *Runtime) List(ctx context.Context) ([]facts.Incarnation, error) {
	held, err := r.host.List(ctx)
	if err != nil {
		return nil, err
	}
	adopted, err := r.adopted(ctx)
	return append(held, adopted...), err
}

// adopted gives the incarnations in sessions that were adopted.
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

// OpenLog implements runtime.Logs. What an adopted session shows is not kept: see Capture.
func (r *Runtime) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	if record, err := r.read(uid); err == nil && record != nil && record.Adopted {
		return nil, fmt.Errorf("the output of an adopted session is kept by tmux alone; attach to it: %w", runtime.ErrNotFound)
	}
	return r.host.OpenLog(ctx, uid)
}

// Sessions gives all sessions on a tmux socket, with one call of tmux; none when nobody serves it. Empty means the socket of Options.
func (r *Runtime) Sessions(ctx context.Context, socket string) ([]Session, error) {
	if socket == "" {
		socket = r.options.Socket
	}
	if err := CheckSocketName(socket); err != nil {
		return nil, err
	}
	return r.client(socket).sessions(ctx)
}

func (r *Runtime) client(socket string) client {
	return client{program: r.options.Tmux, socket: socket}
}

// link gives what is kept of a UID in memory.
func (r *Runtime) link(uid types.UID) *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.links[uid]
	if l == nil {
		l = &link{runtime: r, uid: uid, keep: true, kicked: make(chan struct{}, 1)}
		r.links[uid] = l
	}
	return l
}

// claiming makes adoptions on a socket one after another: between a look at a session and its record there is nothing that another could see.
func (r *Runtime) claiming(socket string) *sync.Mutex {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.claims[socket]
	if m == nil {
		m = &sync.Mutex{}
		r.claims[socket] = m
	}
	return m
}

// newest gives the newest incarnation that the host knows of a UID, or nil.
func (r *Runtime) newest(ctx context.Context, uid types.UID) (*facts.Incarnation, error) {
	found, err := r.host.Observe(ctx, uid)
	if err != nil {
		return nil, err
	}
	var newest *facts.Incarnation
	for i := range found {
		if newest == nil || found[i].Number > newest.Number {
			newest = &found[i]
		}
	}
	return newest, nil
}

var errClosed = errors.New("the tmux runtime is closed")
