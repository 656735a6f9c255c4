// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/test/performance/manager/stats"
)

// observations counts the processes that have been observed at least once. It also records the time from the sync of the cache until this count reached the
// value of the field expect.
type observations struct {
	expect  int
	opening time.Duration

	mu       sync.Mutex
	synced   time.Time
	observed map[types.UID]bool
	all      time.Duration
}

func (c *observations) sync() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = time.Now()
}

func (c *observations) observe(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.observed == nil {
		c.observed = map[types.UID]bool{}
	}
	c.observed[uid] = true
	if c.all == 0 && c.expect > 0 && len(c.observed) >= c.expect && !c.synced.IsZero() {
		c.all = time.Since(c.synced)
	}
}

func (c *observations) fill(s *stats.Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Opening, s.Synced, s.Observed, s.AllObserved = c.opening, !c.synced.IsZero(), len(c.observed), c.all
}

// countingHost is the host runtime. It records each observed process in observations.
type countingHost struct {
	*host.Host
	observations *observations
}

// Observe implements runtime.Runtime.
func (c *countingHost) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := c.Host.Observe(ctx, uid)
	c.observations.observe(uid)
	return found, err
}

// listeningRuntime is an in-memory runtime whose processes appear to listen on their allocated port.
type listeningRuntime struct {
	*fake.Runtime
}

// Capabilities implements runtime.Runtime.
func (l *listeningRuntime) Capabilities() runtime.Capabilities {
	can := l.Runtime.Capabilities()
	can.Inspection = l
	return can
}

// Listeners implements runtime.Inspection.
func (l *listeningRuntime) Listeners(_ context.Context, uid types.UID) (runtime.Sockets, error) {
	process, known := l.Process(uid)
	if !known || len(l.Live(uid)) == 0 {
		return runtime.Sockets{}, fmt.Errorf("list the sockets of %s: %w", uid, runtime.ErrNotFound)
	}
	for _, variable := range process.Env {
		if text, found := strings.CutPrefix(variable, "PORT="); found {
			port, err := strconv.ParseInt(text, 10, 32)
			return runtime.Sockets{Own: []runtime.Listener{{Address: "127.0.0.1", Port: int32(port)}}}, err
		}
	}
	return runtime.Sockets{}, nil
}

// PortOwners implements runtime.Inspection.
func (l *listeningRuntime) PortOwners(context.Context, int32, ...uint64) ([]runtime.PortOwner, error) {
	return nil, nil
}
