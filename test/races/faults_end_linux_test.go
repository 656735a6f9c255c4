// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
)

// Faults in the code that stops processes.

// stopsNewest stops or kills the newest incarnation, whichever incarnation the caller named.
type stopsNewest struct{ backend }

func (h stopsNewest) newest(ctx context.Context, uid types.UID, otherwise int64) int64 {
	found, _ := h.Observe(ctx, uid)
	for _, incarnation := range found {
		otherwise = max(otherwise, incarnation.Number)
	}
	return otherwise
}

func (h stopsNewest) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	return h.backend.Stop(ctx, uid, h.newest(ctx, uid, incarnation))
}

func (h stopsNewest) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	return h.backend.Kill(ctx, uid, h.newest(ctx, uid, incarnation))
}

// forgetsStop never reports that a stop was sent.
type forgetsStop struct{ backend }

func (f forgetsStop) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := f.backend.Observe(ctx, uid)
	for i := range found {
		found[i].StopSent = false
	}
	return found, err
}

// stopsNamespace stops or kills all processes of the runtime instead of the requested one, as a clean-up of a whole namespace or session would.
type stopsNamespace struct{ backend }

func (s stopsNamespace) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	return s.end(ctx, uid, incarnation, s.backend.Stop)
}

func (s stopsNamespace) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	return s.end(ctx, uid, incarnation, s.backend.Kill)
}

func (s stopsNamespace) end(ctx context.Context, uid types.UID, incarnation int64, end func(context.Context, types.UID, int64) error) error {
	everything, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, other := range everything {
		if err := end(ctx, types.UID(other.UID), other.Number); err != nil {
			return err
		}
	}
	return end(ctx, uid, incarnation)
}

// waitsForEnd returns from Stop only after the process has exited.
type waitsForEnd struct{ backend }

func (w waitsForEnd) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	if err := w.backend.Stop(ctx, uid, incarnation); err != nil {
		return err
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		found, err := w.Observe(ctx, uid)
		if err != nil || !slices.ContainsFunc(found, facts.Incarnation.Alive) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// stopMeansGone reports a process as exited as soon as the process was asked to stop.
type stopMeansGone struct {
	backend
	mu    sync.Mutex
	asked map[string]bool
}

func (a *stopMeansGone) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	a.mu.Lock()
	a.asked[incarnationID(uid, incarnation)] = true
	a.mu.Unlock()
	return a.backend.Stop(ctx, uid, incarnation)
}

func (a *stopMeansGone) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := a.backend.Observe(ctx, uid)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range found {
		if a.asked[incarnationID(uid, found[i].Number)] {
			found[i].Phase, found[i].Exit = facts.Exited, &facts.Exit{Known: true, FinishedAt: time.Now()}
		}
	}
	return found, err
}

// Forget hides the error that the backend returns while the process still runs.
func (a *stopMeansGone) Forget(ctx context.Context, uid types.UID) error {
	_ = a.backend.Forget(ctx, uid)
	return nil
}

// hidesVanished reports only the processes of the newest object: the one that the manager observed last before it had a process.
type hidesVanished struct {
	backend
	mu     sync.Mutex
	newest types.UID
}

func (h *hidesVanished) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := h.backend.Observe(ctx, uid)
	if len(found) == 0 {
		h.mu.Lock()
		h.newest = uid
		h.mu.Unlock()
	}
	return h.visible(found), err
}

func (h *hidesVanished) List(ctx context.Context) ([]facts.Incarnation, error) {
	found, err := h.backend.List(ctx)
	return h.visible(found), err
}

func (h *hidesVanished) visible(found []facts.Incarnation) []facts.Incarnation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(found, func(i facts.Incarnation) bool { return i.UID != string(h.newest) })
}

// killMeansGone reports a process as dead as soon as a kill was attempted.
type killMeansGone struct {
	backend
	mu     sync.Mutex
	killed map[string]bool
}

func (b *killMeansGone) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	err := b.backend.Kill(ctx, uid, incarnation)
	b.mu.Lock()
	b.killed[incarnationID(uid, incarnation)] = true
	b.mu.Unlock()
	return err
}

func (b *killMeansGone) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := b.backend.Observe(ctx, uid)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range found {
		if b.killed[incarnationID(uid, found[i].Number)] {
			found[i].Phase, found[i].Exit = facts.Exited, &facts.Exit{Known: true, Signal: "SIGKILL", FinishedAt: time.Now()}
		}
	}
	return found, err
}
