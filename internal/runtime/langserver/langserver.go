// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package langserver is the backend for language servers. Its incarnations are those of the server, which a multiplexer (berth-lsp) runs as its child.
//
// The multiplexer runs as an ordinary process of another backend and outlives its servers, so that clients keep their connections. Commands for a server are
// sent to its multiplexer. If the multiplexer is gone, the exit of the server is read from the multiplexer's state file.
package langserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/background"
	"github.com/berth-dev/berth/internal/shim"
)

// Host is the backend that runs the multiplexers.
type Host interface {
	runtime.Runtime
	runtime.Logs
	// Announce sends a UID on Events. It does not block.
	Announce(uid types.UID)
}

// Options configure the files and the user of a Runtime.
type Options struct {
	// Dir contains a directory for each UID. It is created with mode 0700. It is required.
	Dir string
	// Program is the berth-lsp binary. Empty: the one beside the running executable, else from PATH.
	Program string
	// RunAs is the user of the language servers on this machine; nil: the user of the manager. Multiplexers always run as the user of the manager.
	RunAs *shim.User
	// Logger receives log messages; the zero value discards them.
	Logger logr.Logger
}

// adoptPatience is how long Observe waits for the first report of a multiplexer that an earlier manager has started.
const adoptPatience = time.Second

// Runtime runs language servers. Create one with New or NewInPods.
type Runtime struct {
	runtime.NoLogs
	runtime.NoInspection
	*background.Tasks // Close leaves the multiplexers and their servers running

	host Host
	site site
	log  logr.Logger

	mu    sync.Mutex
	links map[types.UID]*link
}

var _ runtime.Runtime = (*Runtime)(nil)

// Capabilities implements runtime.Runtime.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Inspection: r}
}

// New returns a Runtime for this machine.
func New(host Host, options Options) (*Runtime, error) {
	if options.Dir == "" {
		return nil, errors.New("language servers: no directory is set")
	}
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve the directory of the language servers: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the language servers: %w", err)
	}
	program, err := runtime.FindProgram("berth-lsp", options.Program)
	if err != nil {
		return nil, err
	}
	here := &onHost{dir: dir, program: program, runAs: options.RunAs}
	r := newRuntime(host, here, options.Logger)
	if err := r.removeUnknown(here); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func newRuntime(host Host, where site, log logr.Logger) *Runtime {
	if log.GetSink() == nil {
		log = logr.Discard()
	}
	return &Runtime{Tasks: background.New(), host: host, site: where, log: log, links: map[types.UID]*link{}}
}

// removeUnknown removes the directories of multiplexers that the host has forgotten, because their objects no longer exist.
func (r *Runtime) removeUnknown(here *onHost) error {
	entries, err := os.ReadDir(here.dir)
	if err != nil {
		return fmt.Errorf("list the language servers: %w", err)
	}
	for _, entry := range entries {
		uid := types.UID(entry.Name())
		if !entry.IsDir() || !runtime.ValidUID(uid) {
			continue
		}
		held, err := r.multiplexer(r.Lifetime(), uid)
		switch {
		case err != nil:
			r.log.Error(err, "Cannot inspect a language server", "uid", uid)
		case held == nil:
			_ = here.forget(uid)
		}
	}
	return nil
}

// Endpoint returns the path of the socket that clients connect to, or "" if the multiplexer is not on this host.
func (r *Runtime) Endpoint(uid types.UID) string {
	if here, is := r.site.(*onHost); is {
		return filepath.Join(here.directory(uid), lsp.ClientSocket)
	}
	return ""
}

// Report returns the latest report of the multiplexer. It returns false if no multiplexer is running or reachable.
func (r *Runtime) Report(uid types.UID) (lsp.Report, bool) {
	if l := r.known(uid); l != nil {
		if report := l.view().report; report != nil {
			return *report, true
		}
	}
	return lsp.Report{}, false
}

// List implements runtime.Runtime. It returns the incarnations of the multiplexers, as the host numbers them.
func (r *Runtime) List(ctx context.Context) ([]facts.Incarnation, error) { return r.host.List(ctx) }

// Events implements runtime.Runtime. It returns the events of the host, which include the reports of multiplexers. Only one reader may consume them.
func (r *Runtime) Events() <-chan types.UID { return r.host.Events() }

// OpenLog implements runtime.Logs. The log contains the stderr of the server and of its multiplexer.
func (r *Runtime) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	return r.host.OpenLog(ctx, uid)
}

// multiplexer returns the newest multiplexer of a UID, or nil.
func (r *Runtime) multiplexer(ctx context.Context, uid types.UID) (*facts.Incarnation, error) {
	return runtime.Newest(ctx, r.host, uid)
}

// known returns the link of a UID, or nil. The method link creates a link if there is none.
func (r *Runtime) known(uid types.UID) *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.links[uid]
}

func (r *Runtime) link(uid types.UID) *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.links[uid]
	if l == nil {
		l = &link{runtime: r, uid: uid, keep: true, since: time.Now(), changed: make(chan struct{}, 1), heard: make(chan struct{})}
		r.links[uid] = l
	}
	return l
}
