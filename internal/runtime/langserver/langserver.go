// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package langserver is the backend of language servers: incarnations are those of the server, which a multiplexer (berth-lsp) holds as its child.
//
// The multiplexer runs as an ordinary process of another backend and outlives the servers behind it, so that clients keep their connections. What
// is asked of a server goes to its multiplexer; what became of a server whose multiplexer is gone is read from the multiplexer's state file.
package langserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Host is where multiplexers run.
type Host interface {
	runtime.Runtime
	runtime.Logs
}

// Options say where multiplexers have their files.
type Options struct {
	// Dir holds a directory for each UID. It is created with mode 0700.
	Dir string
	// Program is the berth-lsp binary. Empty: beside the running executable, else in PATH.
	Program string
	// RunAs is the user of the language servers on this machine; nil: the user of the manager. Multiplexers always run as that of the manager.
	RunAs *shim.User
	// Wake is told the UIDs that something happened to. It must not block. OnChange sets it later.
	Wake func(types.UID)
	// Logger is told what the manager should know; the zero value drops it.
	Logger logr.Logger
}

// adoptPatience is how long all multiplexers together may take to say how they are, when a manager starts.
const adoptPatience = time.Second

// Runtime holds language servers. Make one with New.
type Runtime struct {
	runtime.NoLogs
	runtime.NoInspection

	host Host
	site site
	log  logr.Logger

	life  context.Context
	end   context.CancelFunc
	loops sync.WaitGroup

	mu     sync.Mutex
	closed bool
	wake   func(types.UID)
	links  map[types.UID]*link
}

var _ runtime.Runtime = (*Runtime)(nil)

// Capabilities implements runtime.Runtime.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Inspection: r}
}

// New finds the multiplexers that live and connects to them.
func New(host Host, options Options) (*Runtime, error) {
	if options.Dir == "" {
		return nil, errors.New("language servers: no directory was given")
	}
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("directory of the language servers: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the language servers: %w", err)
	}
	program, err := findProgram(options.Program)
	if err != nil {
		return nil, err
	}
	here := &onHost{dir: dir, program: program, runAs: options.RunAs}
	r := newRuntime(host, here, options.Logger, options.Wake)
	if err := r.adopt(here); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func newRuntime(host Host, where site, log logr.Logger, wake func(types.UID)) *Runtime {
	if log.GetSink() == nil {
		log = logr.Discard()
	}
	r := &Runtime{host: host, site: where, log: log, wake: wake, links: map[types.UID]*link{}}
	r.life, r.end = context.WithCancel(context.Background())
	return r
}

func findProgram(program string) (string, error) {
	if program == "" {
		if self, err := os.Executable(); err == nil {
			program = filepath.Join(filepath.Dir(self), "berth-lsp")
		}
		if info, err := os.Stat(program); err != nil || !info.Mode().IsRegular() {
			if program, err = exec.LookPath("berth-lsp"); err != nil {
				return "", fmt.Errorf("berth-lsp is neither beside this program nor in PATH; install it beside: %w", err)
			}
		}
	}
	program, err := filepath.Abs(program)
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		return "", fmt.Errorf("berth-lsp, which holds the language servers: %w", err)
	}
	return program, nil
}

// adopt connects to what lives, all at once, and removes what nobody knows any more.
func (r *Runtime) adopt(here *onHost) error {
	entries, err := os.ReadDir(here.dir)
	if err != nil {
		return fmt.Errorf("list the language servers: %w", err)
	}
	ctx, cancel := context.WithTimeout(r.life, adoptPatience)
	defer cancel()
	var links []*link
	for _, entry := range entries {
		uid := types.UID(entry.Name())
		if !entry.IsDir() || !shim.ValidUID(entry.Name()) {
			continue
		}
		held, err := r.multiplexer(ctx, uid)
		switch {
		case err != nil:
			r.log.Error(err, "A language server could not be looked at", "uid", uid)
		case held == nil: // forgotten by force, for its object is gone
			_ = here.forget(uid)
		case held.Alive():
			l := r.link(uid)
			l.watch()
			links = append(links, l)
		}
	}
	for _, l := range links {
		select {
		case <-l.heard:
		case <-ctx.Done():
		}
	}
	return nil
}

// Close lets go of everything and leaves the multiplexers and their servers alone.
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

// OnChange sets who is told the UIDs that something happened to.
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

// Endpoint is the path of the socket that clients connect to; nothing where that is none.
func (r *Runtime) Endpoint(uid types.UID) string {
	if here, is := r.site.(*onHost); is {
		return filepath.Join(here.directory(uid), lsp.ClientSocket)
	}
	return ""
}

// Report is the newest that the multiplexer has said; false while none lives or is heard of.
func (r *Runtime) Report(uid types.UID) (lsp.Report, bool) {
	l := r.known(uid)
	if l == nil {
		return lsp.Report{}, false
	}
	return l.newest()
}

// List implements runtime.Runtime: it gives all that the host holds, under its own numbers.
func (r *Runtime) List(ctx context.Context) ([]facts.Incarnation, error) { return r.host.List(ctx) }

// Events implements runtime.Runtime: those of the host, which one reader gets. What multiplexers say is told to Wake.
func (r *Runtime) Events() <-chan types.UID { return r.host.Events() }

// OpenLog implements runtime.Logs: what the server writes to its stderr, and its multiplexer with it.
func (r *Runtime) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	return r.host.OpenLog(ctx, uid)
}

// multiplexer gives the newest multiplexer of a UID, or nil.
func (r *Runtime) multiplexer(ctx context.Context, uid types.UID) (*facts.Incarnation, error) {
	return newestOn(ctx, r.host, uid)
}

func newestOn(ctx context.Context, host Host, uid types.UID) (*facts.Incarnation, error) {
	found, err := host.Observe(ctx, uid)
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

// known gives the link of a UID, or nil; link makes one.
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
		l = &link{runtime: r, uid: uid, keep: true, heard: make(chan struct{}), since: time.Now()}
		r.links[uid] = l
	}
	return l
}
