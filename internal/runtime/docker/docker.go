// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker runs incarnations as containers of a Docker Engine, one container each.
//
// The engine is the truth about what runs. Containers of ours are found by their labels and addressed by their ID alone. Below Options.Dir is
// what the engine cannot tell: which containers were adopted, which signals were sent, why a start failed, and the output.
// An engine that does not answer makes errors, never ends: what is there is asked again when it is back.
package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/berth-dev/berth/internal/runtime/logfile"
	"github.com/berth-dev/berth/internal/runtime/notify"
	"github.com/berth-dev/berth/internal/shim"
)

var _ runtime.Runtime = (*Runtime)(nil)

// Capabilities implements runtime.Runtime. The origin is in the record, and in a label of the container.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Terminals: r, Adoption: r, Inspection: r, KeepsOrigin: true}
}

const (
	// DefaultLogLimit is how much disk the copy of the output of one UID takes, in bytes.
	DefaultLogLimit = 10 << 20
	// lookTimeout bounds a question to the engine; actTimeout what makes it do something.
	lookTimeout = 10 * time.Second
	actTimeout  = time.Minute
	// lockPatience is how long the lock of the directory is tried to get.
	lockPatience = time.Second
)

// Options say which engine is used and where what it can't tell is kept.
type Options struct {
	// Host is the address of the engine in the form of DOCKER_HOST, such as unix:///var/run/docker.sock. Empty: from the environment.
	Host string
	// Dir is created with mode 0700. One manager uses it at a time; containers of other directories are left alone.
	Dir string
	// LogLimit is the disk that the copy of the output of one UID takes, in bytes. 0: DefaultLogLimit.
	LogLimit int64
	// Logger is told what the manager should know; the zero value drops it.
	Logger logr.Logger
}

// Runtime holds containers. Make one with New.
type Runtime struct {
	runtime.Local
	runtime.NoTerminals
	runtime.NoInspection

	options Options
	log     logr.Logger
	client  *client.Client
	install string // the value of a label: containers of another install are not ours
	single  *flock.Flock
	events  *notify.Notifier
	notice  *logfile.Notice // nil where the system has no more of them

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	loops  sync.WaitGroup
	once   sync.Once

	mu      sync.Mutex
	entries map[types.UID]*entry
	adopted map[string]types.UID // by container ID
	engine  *engine              // what is known of the engine; nil until it has answered
}

// entry is what is kept in memory of a UID. Its lock makes calls for one UID one after another.
type entry struct {
	mu   sync.Mutex
	uid  types.UID
	gone bool // forgotten; get another one

	record  record
	copier  *copier
	pull    *pull
	drainBy time.Time // until then the end of the container is held back for its last output
}

// New takes the directory and follows the engine in the background. It does not wait for an engine and does not need one: as long as none
// answers, every look is an error that says so.
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
		return nil, fmt.Errorf("the address of the Docker Engine (DOCKER_HOST) cannot be used: %w", err)
	}
	sum := sha256.Sum256([]byte(options.Dir))
	r := &Runtime{
		options: options, log: options.Logger, client: api, install: hex.EncodeToString(sum[:6]),
		single: flock.New(filepath.Join(options.Dir, "manager.lock"), flock.SetPermissions(0o600)),
		events: notify.New(), entries: map[types.UID]*entry{}, adopted: map[string]types.UID{},
	}
	if err := r.lock(); err != nil {
		return nil, errors.Join(err, api.Close())
	}
	if err := r.readRecords(); err != nil {
		return nil, errors.Join(err, api.Close(), r.single.Close())
	}
	if r.notice, err = logfile.NewNotice(r.events.Tell); err != nil {
		r.log.Info("Output is looked for from time to time only", "cause", err.Error())
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.loops.Go(func() { r.events.Run(r.ctx.Done()) })
	r.loops.Go(r.follow)
	return r, nil
}

func (o *Options) complete() error {
	if o.Dir == "" {
		return errors.New("docker runtime: no directory was given")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("directory %s: %w", o.Dir, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o700); err != nil {
		return fmt.Errorf("create the directory of the docker runtime: %w", err)
	}
	// Two names of one directory are one install.
	if o.Dir, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	if o.LogLimit == 0 {
		o.LogLimit = DefaultLogLimit
	}
	if o.LogLimit < 64<<10 {
		return fmt.Errorf("a log limit of %d bytes is too small; give at least 64 KiB", o.LogLimit)
	}
	if o.Logger.GetSink() == nil {
		o.Logger = logr.Discard()
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

// Run waits for the end of the context. Close afterwards: calls are still answered until then, so that workloads can be ended.
func (r *Runtime) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-r.ctx.Done():
	}
	return nil
}

// Close lets go of everything and leaves the containers alone.
func (r *Runtime) Close() error {
	var err error
	r.once.Do(func() {
		r.cancel()
		r.loops.Wait()
		err = errors.Join(r.notice.Close(), r.client.Close(), r.single.Close())
	})
	return err
}

// Events implements runtime.Runtime.
func (r *Runtime) Events() <-chan types.UID { return r.events.C() }

func (r *Runtime) dir(uid types.UID) string { return filepath.Join(r.options.Dir, "run", string(uid)) }

// acquire gives the locked entry of a UID.
func (r *Runtime) acquire(uid types.UID) (*entry, error) {
	if !shim.ValidUID(string(uid)) {
		return nil, fmt.Errorf("%q cannot be the UID of a container: letters, digits, dots, dashes and underscores only", uid)
	}
	for {
		if r.ctx.Err() != nil {
			return nil, errors.New("the docker runtime is closed")
		}
		r.mu.Lock()
		e := r.entries[uid]
		if e == nil {
			e = &entry{uid: uid}
			r.entries[uid] = e
		}
		r.mu.Unlock()
		e.mu.Lock()
		if !e.gone {
			return e, nil
		}
		e.mu.Unlock()
	}
}

// release unlocks an entry, and drops it when nothing is known of its UID.
func (r *Runtime) release(e *entry) {
	if e.record.Incarnation == 0 && e.pull == nil {
		r.mu.Lock()
		if r.entries[e.uid] == e {
			delete(r.entries, e.uid)
		}
		r.mu.Unlock()
		e.gone = true
	}
	e.mu.Unlock()
}

// known gives the UIDs that something is known of.
func (r *Runtime) known() map[types.UID]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	uids := map[types.UID]bool{}
	for uid := range r.entries {
		uids[uid] = true
	}
	return uids
}
