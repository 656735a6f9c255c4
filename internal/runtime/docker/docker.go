// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker runs incarnations as containers of a Docker Engine, one container each.
//
// The engine is the source of truth about running containers. Containers of Berth are found by their labels and addressed only by ID. The files below
// Options.Dir contain what the engine does not store: adopted containers, sent signals, failures to start, and the output. If the engine does not answer, calls
// return errors, and no process is reported as ended; the state is read again when the engine is back.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/gofrs/flock"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/background"
	"github.com/berth-dev/berth/internal/runtime/eventqueue"
	"github.com/berth-dev/berth/internal/runtime/logfile"
)

var _ runtime.Runtime = (*Runtime)(nil)

// Capabilities implements runtime.Runtime. The origin is stored in the record and in a label of the container.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Terminals: r, Adoption: r, Inspection: r, KeepsOrigin: true}
}

const (
	// defaultLogLimit is the default of Options.LogLimit, in bytes.
	defaultLogLimit = 10 << 20
	// lookTimeout limits a query of the engine, and actTimeout limits a request that changes something.
	lookTimeout = 10 * time.Second
	actTimeout  = time.Minute
	// lockPatience is how long New tries to lock the directory.
	lockPatience = time.Second
)

// Options configure the engine and the directory of a Runtime.
type Options struct {
	// Host is the address of the engine in the form of DOCKER_HOST, such as unix:///var/run/docker.sock. Empty: from the environment.
	Host string
	// Dir is the directory for the records and the output of this install. It is required. New creates it with mode 0700. Only one manager can use it at a
	// time. Managers with different directories can share an engine, because a manager does not change the containers that another install created.
	Dir string
	// LogLimit is the disk space for the copied output of one UID, in bytes, at least 64 KiB. 0: defaultLogLimit.
	LogLimit int64
	// Logger receives log messages; the zero value discards them.
	Logger logr.Logger
}

// Runtime runs incarnations as containers. Create one with New.
type Runtime struct {
	runtime.Local
	runtime.NoTerminals
	runtime.NoInspection
	*logfile.Logs
	*background.Tasks

	options Options
	log     logr.Logger
	client  *client.Client
	install string // value of labelInstall; containers with another value belong to another install
	single  *flock.Flock
	events  *eventqueue.Queue

	entries *background.Entries[*entry]

	mu      sync.Mutex
	adopted map[string]types.UID // the UID of the object that has adopted a container, by container ID
	engine  *engine              // nil until the engine has answered
}

// entry is the in-memory state of a UID.
type entry struct {
	background.Entry
	uid types.UID

	record   record
	copier   *copier
	pull     *pull
	drainBy  time.Time // until then the exit of the container is not reported, so that its last output can be copied
	deferred deferral
}

// New locks the directory and follows the events of the engine in the background. It does not wait for the engine: while the engine does not respond, every
// query returns an error that reports this.
func New(options Options) (*Runtime, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	choose := client.FromEnv
	if options.Host != "" {
		choose = client.WithHost(options.Host)
	}
	api, err := client.New(choose, client.WithUserAgent("berth"))
	if err != nil {
		return nil, fmt.Errorf("invalid address of the Docker Engine (DOCKER_HOST): %w", err)
	}
	r := &Runtime{
		options: options, log: options.Logger, client: api, install: runtime.InstallID(options.Dir),
		single: flock.New(filepath.Join(options.Dir, "manager.lock"), flock.SetPermissions(0o600)),
		events: eventqueue.New(), adopted: map[string]types.UID{},
		entries: background.NewEntries(func(uid types.UID) *entry { return &entry{uid: uid} }),
	}
	if err := r.lock(); err != nil {
		return nil, errors.Join(err, api.Close())
	}
	if err := r.readRecords(); err != nil {
		return nil, errors.Join(err, api.Close(), r.single.Close())
	}
	if r.Logs, err = logfile.NewLogs(r.logPath, r.events.Add); err != nil {
		r.log.Info("Cannot watch output files; polling them instead", "cause", err.Error())
	}
	r.Tasks = background.New()
	r.Go(func() { r.events.Run(r.Lifetime().Done()) })
	r.Go(r.follow)
	return r, nil
}

func (o *Options) complete() error {
	if o.Dir == "" {
		return errors.New("docker runtime: no directory is set")
	}
	var err error
	if o.Dir, err = runtime.InstallDir(o.Dir); err == nil {
		err = os.MkdirAll(filepath.Join(o.Dir, "run"), 0o700)
	}
	if err != nil {
		return fmt.Errorf("create the directory of the docker runtime: %w", err)
	}
	o.LogLimit = cmp.Or(o.LogLimit, defaultLogLimit)
	if o.LogLimit < 64<<10 {
		return fmt.Errorf("a log limit of %d bytes is too small; set at least 64 KiB", o.LogLimit)
	}
	return nil
}

func (r *Runtime) lock() error {
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	held, err := r.single.TryLockContext(ctx, 10*time.Millisecond)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("lock the directory of the docker runtime: %w", err)
	}
	if !held {
		_ = r.single.Close()
		return fmt.Errorf("another berth manager uses the directory %s; stop that manager", r.options.Dir)
	}
	return nil
}

// Close releases all resources and leaves the containers running. A second call does nothing.
func (r *Runtime) Close() error {
	r.Tasks.Close()
	return errors.Join(r.StopWatching(), r.client.Close(), r.single.Close())
}

// Events implements runtime.Runtime.
func (r *Runtime) Events() <-chan types.UID { return r.events.C() }

func (r *Runtime) dir(uid types.UID) string     { return filepath.Join(r.options.Dir, "run", string(uid)) }
func (r *Runtime) logPath(uid types.UID) string { return filepath.Join(r.dir(uid), logFile) }

// acquire returns the locked entry of a UID. It returns an error if the UID is invalid or the Runtime is closed.
func (r *Runtime) acquire(uid types.UID) (*entry, error) {
	if !runtime.ValidUID(uid) {
		return nil, fmt.Errorf("invalid UID %q of a container: use letters, digits, dots, dashes and underscores only", uid)
	}
	e := r.entries.Acquire(uid)
	if r.Lifetime().Err() != nil {
		r.release(e)
		return nil, errors.New("the docker runtime is closed")
	}
	return e, nil
}

// acquireFor returns the locked entry of a UID and a context for an action on it. release ends both.
func (r *Runtime) acquireFor(ctx context.Context, uid types.UID) (acting context.Context, e *entry, release func(), err error) {
	if e, err = r.acquire(uid); err != nil {
		return nil, nil, nil, err
	}
	acting, cancel := context.WithTimeout(ctx, actTimeout)
	return acting, e, func() {
		cancel()
		r.release(e)
	}, nil
}

// release unlocks an entry, and removes it if it holds no state.
func (r *Runtime) release(e *entry) {
	if e.record.Incarnation == 0 && e.pull == nil {
		r.entries.Forget(e.uid, e)
	}
	e.Unlock()
}
