// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/languageserver"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
)

// Faults of language servers.

// tongues is all that the backend of language servers can do and a row needs.
type tongues interface {
	runtime.Runtime
	languageserver.Reporter
}

// configures starts servers that are configured otherwise.
type configures struct {
	tongues
	change func(*lsp.Config)
}

func (c configures) Start(ctx context.Context, p runtime.Process) error {
	var config lsp.Config
	if err := json.Unmarshal(p.Config, &config); err != nil {
		return err
	}
	c.change(&config)
	changed, err := json.Marshal(config)
	if err != nil {
		return err
	}
	p.Config = changed
	return c.tongues.Start(ctx, p)
}

// holdsNothing lets nobody wait for a restart.
func holdsNothing(config *lsp.Config) { config.Hold.Timeout = -1 }

// neverHung waits for a silent server for ever.
func neverHung(config *lsp.Config) { config.Health.HangTimeout = 24 * time.Hour }

// anew is in the UIDs of servers that a fault starts.
const anew = "-again-"

// hidesAgain keeps those servers from the collector of leftovers, which would end them before the row has looked.
type hidesAgain struct{ backend }

func (h hidesAgain) List(ctx context.Context) ([]facts.Incarnation, error) {
	list, err := h.backend.List(ctx)
	return slices.DeleteFunc(list, func(i facts.Incarnation) bool { return strings.Contains(string(i.UID), anew) }), err
}

// startsBeside starts another server beside the one that it is asked to start, if it is to.
type startsBeside struct {
	tongues
	when func(p runtime.Process, again bool) bool

	mu    sync.Mutex
	asked map[string]runtime.Process
	begun sync.Map // what was started beside
}

func (s *startsBeside) Start(ctx context.Context, p runtime.Process) error {
	s.mu.Lock()
	_, again := s.asked[id(p.UID, p.Incarnation)]
	s.asked[id(p.UID, p.Incarnation)] = p
	s.mu.Unlock()
	if s.when(p, again) {
		s.beside(ctx, p)
	}
	return s.tongues.Start(ctx, p)
}

// beside starts the other one, and returns when it has come: one that comes only after the row has looked would be missed.
func (s *startsBeside) beside(ctx context.Context, p runtime.Process) {
	if _, done := s.begun.LoadOrStore(id(p.UID, p.Incarnation), true); done {
		return
	}
	p.UID += types.UID(fmt.Sprintf("%s%d", anew, p.Incarnation)) // none waits for the end of another
	s.Keep(p.UID, true)
	_ = s.tongues.Start(ctx, p)
	s.awaits(ctx, p.UID)
}

// awaits returns when the server runs. If it does not come, the row says so.
func (s *startsBeside) awaits(ctx context.Context, uid types.UID) {
	_ = wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
		found, err := s.Observe(ctx, uid)
		return err == nil && slices.ContainsFunc(found, func(i facts.Incarnation) bool { return i.Phase == facts.Running }), nil
	})
}

// resurrects starts anew what it was asked to end.
type resurrects struct{ startsBeside }

func (r *resurrects) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	err := r.tongues.Stop(ctx, uid, incarnation)
	r.mu.Lock()
	p, known := r.asked[id(uid, incarnation)]
	r.mu.Unlock()
	if known {
		r.beside(ctx, p)
	}
	return err
}

// countsUp counts clients when they come, and forgets to when they go.
type countsUp struct {
	tongues
	mu   sync.Mutex
	most map[types.UID]int
}

func (c *countsUp) Report(uid types.UID) (lsp.Report, bool) {
	report, known := c.tongues.Report(uid)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most[uid] = max(c.most[uid], report.Clients)
	report.Clients = c.most[uid]
	return report, known
}

// forgetsRestart writes statuses that say what is, and not what becomes of it; forgetsToken those that don't say which request was carried out.
type (
	forgetsRestart struct{ next http.RoundTripper }
	forgetsToken   struct{ next http.RoundTripper }
)

func (f forgetsRestart) RoundTrip(req *http.Request) (*http.Response, error) {
	return edited(f.next, req, func(status map[string]any) {
		if conditions, is := status["conditions"].([]any); is {
			status["conditions"] = slices.DeleteFunc(conditions, func(condition any) bool {
				fields, is := condition.(map[string]any)
				return is && fields["type"] == v1alpha1.ConditionRestarting
			})
		}
	})
}

func (f forgetsToken) RoundTrip(req *http.Request) (*http.Response, error) {
	return edited(f.next, req, func(status map[string]any) { delete(status, "observedRestartToken") })
}

// edited passes a request on, with another status if it writes one.
func edited(next http.RoundTripper, req *http.Request, edit func(status map[string]any)) (*http.Response, error) {
	if _, status := about(req); !status {
		return next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	edit(part(content, "status"))
	return next.RoundTrip(with(req, content))
}
