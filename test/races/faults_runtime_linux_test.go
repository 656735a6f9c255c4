// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// Faults in the code that starts and finds processes.

func incarnationID(uid types.UID, incarnation int64) string {
	return fmt.Sprintf("%s/%d", uid, incarnation)
}

// oneLock guards the whole runtime with one lock, and holds the lock even while it observes a process.
type oneLock struct {
	backend
	mu sync.Mutex
}

func (o *oneLock) Start(ctx context.Context, p runtime.Process) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.backend.Start(ctx, p)
}

func (o *oneLock) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.backend.Stop(ctx, uid, incarnation)
}

func (o *oneLock) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.backend.Observe(ctx, uid)
}

// startsAgain starts a second process when the same incarnation is requested a second time.
type startsAgain struct {
	backend
	mu    sync.Mutex
	asked map[string]bool
}

func (s *startsAgain) Start(ctx context.Context, p runtime.Process) error {
	s.mu.Lock()
	again := s.asked[incarnationID(p.UID, p.Incarnation)]
	s.asked[incarnationID(p.UID, p.Incarnation)] = true
	s.mu.Unlock()
	if again {
		p.UID += "-again"
	}
	return s.backend.Start(ctx, p)
}

// leaksOnStart opens a file and starts a child before it knows whether the program can be executed. It never closes the file and never reaps the child.
type leaksOnStart struct {
	backend
	mu    sync.Mutex
	files []*os.File
}

func (l *leaksOnStart) Start(ctx context.Context, p runtime.Process) error {
	if file, err := os.Open(os.DevNull); err == nil {
		l.mu.Lock()
		l.files = append(l.files, file)
		l.mu.Unlock()
	}
	_ = exec.Command(filepath.Join(programs, "workload"), "-dir", env.dir, "-exit", "0").Start()
	return l.backend.Start(ctx, p)
}

// hidesPortOwner reports every port as free.
type hidesPortOwner struct{ backend }

func (hidesPortOwner) PortOwners(context.Context, int32, ...uint64) ([]runtime.PortOwner, error) {
	return nil, nil
}

// dropsUnverified reports that a process does not exist if the process does not listen on the port that its environment
// variable PORT contains.
type dropsUnverified struct {
	backend
	mu   sync.Mutex
	port map[string]int32
}

func (d *dropsUnverified) Start(ctx context.Context, p runtime.Process) error {
	for _, variable := range p.Env {
		if value, ok := strings.CutPrefix(variable, "PORT="); ok {
			port, _ := strconv.Atoi(value)
			d.mu.Lock()
			d.port[string(p.UID)] = int32(port) //nolint:gosec // a port
			d.mu.Unlock()
		}
	}
	return d.backend.Start(ctx, p)
}

func (d *dropsUnverified) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	d.mu.Lock()
	port, known := d.port[string(uid)]
	d.mu.Unlock()
	sockets, err := d.Listeners(ctx, uid)
	if err == nil && known && !slices.ContainsFunc(sockets.Own, func(l runtime.Listener) bool { return l.Port == port }) {
		return nil, nil
	}
	return d.backend.Observe(ctx, uid)
}

// identifiesByCommand identifies processes by their command: a second object with the same command gets the process of the first object.
type identifiesByCommand struct {
	backend
	mu    sync.Mutex
	first map[string]incarnationRef
	same  map[types.UID]incarnationRef
}

// incarnationRef identifies a process. In the values of the map identifiesByCommand.same, uid is the UID of the first object with the command, and number is
// the incarnation that the second object requested.
type incarnationRef struct {
	uid    types.UID
	number int64
}

func (b *identifiesByCommand) Start(ctx context.Context, p runtime.Process) error {
	key := strings.Join(p.Command, "\x00")
	b.mu.Lock()
	defer b.mu.Unlock()
	if first, known := b.first[key]; known && first.uid != p.UID {
		if b.same == nil {
			b.same = map[types.UID]incarnationRef{}
		}
		b.same[p.UID] = incarnationRef{uid: first.uid, number: p.Incarnation}
		return nil
	}
	b.first[key] = incarnationRef{uid: p.UID, number: p.Incarnation}
	return b.backend.Start(ctx, p)
}

func (b *identifiesByCommand) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	b.mu.Lock()
	same, known := b.same[uid]
	b.mu.Unlock()
	if !known {
		return b.backend.Observe(ctx, uid)
	}
	found, err := b.backend.Observe(ctx, same.uid)
	for i := range found {
		found[i].UID, found[i].Number = string(uid), same.number
	}
	return found, err
}

// listsLive reads a list one position at a time, while the list changes.
type listsLive struct{ backend }

func (w listsLive) List(ctx context.Context) ([]facts.Incarnation, error) {
	var all []facts.Incarnation
	for i := 0; ; i++ {
		now, err := w.backend.List(ctx)
		if err != nil || i >= len(now) {
			return all, err
		}
		all = append(all, now[i])
	}
}

// sharedCursor makes all readers of logs share one cursor.
type sharedCursor struct {
	backend
	mu     sync.Mutex
	offset int64
}

type sharedCursorLog struct {
	runtime.Log
	all *sharedCursor
}

func (o *sharedCursor) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	log, err := o.backend.OpenLog(ctx, uid)
	return sharedCursorLog{log, o}, err
}

func (s sharedCursorLog) ReadAt(p []byte, _ int64) (int, error) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	n, err := s.Log.ReadAt(p, s.all.offset)
	s.all.offset += int64(n)
	return n, err
}
