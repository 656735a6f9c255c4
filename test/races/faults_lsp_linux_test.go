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

// languageBackend is the part of the language server backend that the rows use.
type languageBackend interface {
	runtime.Runtime
	languageserver.Reporter
}

// changesConfig starts servers with a changed configuration.
type changesConfig struct {
	languageBackend
	change func(*lsp.Config)
}

func (c changesConfig) Start(ctx context.Context, p runtime.Process) error {
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
	return c.languageBackend.Start(ctx, p)
}

// holdsNothing makes requests fail during a restart instead of waiting.
func holdsNothing(config *lsp.Config) { config.Hold.Timeout = -1 }

// neverHung accepts that a server is silent for 24 hours.
func neverHung(config *lsp.Config) { config.Health.HangTimeout = 24 * time.Hour }

// secondMark is a part of the UID of every server that a fault starts.
const secondMark = "-again-"

// hidesSecondServers hides the servers that a fault starts from the orphan collector, which would stop these servers before the row checks for them.
type hidesSecondServers struct{ backend }

func (h hidesSecondServers) List(ctx context.Context) ([]facts.Incarnation, error) {
	list, err := h.backend.List(ctx)
	return slices.DeleteFunc(list, func(i facts.Incarnation) bool { return strings.Contains(string(i.UID), secondMark) }), err
}

// startsSecond starts a second server in addition to the requested one if its predicate, the field "when", returns true.
type startsSecond struct {
	languageBackend
	when func(p runtime.Process, again bool) bool

	mu    sync.Mutex
	asked map[string]runtime.Process
	begun sync.Map // incarnations that have a second server
}

func (s *startsSecond) Start(ctx context.Context, p runtime.Process) error {
	s.mu.Lock()
	_, again := s.asked[incarnationID(p.UID, p.Incarnation)]
	s.asked[incarnationID(p.UID, p.Incarnation)] = p
	s.mu.Unlock()
	if s.when(p, again) {
		s.startSecond(ctx, p)
	}
	return s.languageBackend.Start(ctx, p)
}

// startSecond starts the second server and returns when that server runs. Otherwise the row might check too early and miss the second server.
func (s *startsSecond) startSecond(ctx context.Context, p runtime.Process) {
	if _, done := s.begun.LoadOrStore(incarnationID(p.UID, p.Incarnation), true); done {
		return
	}
	p.UID += types.UID(fmt.Sprintf("%s%d", secondMark, p.Incarnation)) // one UID per incarnation, so that no second server waits for another one to exit
	s.Keep(p.UID, true)
	_ = s.languageBackend.Start(ctx, p)
	s.awaitRunning(ctx, p.UID)
}

// awaitRunning returns when the server runs. It ignores a timeout, because the row checks for the server.
func (s *startsSecond) awaitRunning(ctx context.Context, uid types.UID) {
	_ = wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
		found, err := s.Observe(ctx, uid)
		return err == nil && slices.ContainsFunc(found, func(i facts.Incarnation) bool { return i.Phase == facts.Running }), nil
	})
}

// restartsStopped starts a server again after a request to stop that server.
type restartsStopped struct{ startsSecond }

func (r *restartsStopped) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	err := r.languageBackend.Stop(ctx, uid, incarnation)
	r.mu.Lock()
	p, known := r.asked[incarnationID(uid, incarnation)]
	r.mu.Unlock()
	if known {
		r.startSecond(ctx, p)
	}
	return err
}

// countsDisconnected counts clients when they connect, and does not subtract them when they disconnect.
type countsDisconnected struct {
	languageBackend
	mu   sync.Mutex
	most map[types.UID]int
}

func (c *countsDisconnected) Report(uid types.UID) (lsp.Report, bool) {
	report, known := c.languageBackend.Report(uid)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most[uid] = max(c.most[uid], report.Clients)
	report.Clients = c.most[uid]
	return report, known
}

// forgetsRestart removes the condition Restarting from a status; forgetsToken removes the token of the last restart that was carried out.
type (
	forgetsRestart struct{ next http.RoundTripper }
	forgetsToken   struct{ next http.RoundTripper }
)

func (f forgetsRestart) RoundTrip(req *http.Request) (*http.Response, error) {
	return forwardEdited(f.next, req, func(status map[string]any) {
		if conditions, ok := status["conditions"].([]any); ok {
			status["conditions"] = slices.DeleteFunc(conditions, func(condition any) bool {
				fields, ok := condition.(map[string]any)
				return ok && fields["type"] == v1alpha1.ConditionRestarting
			})
		}
	})
}

func (f forgetsToken) RoundTrip(req *http.Request) (*http.Response, error) {
	return forwardEdited(f.next, req, func(status map[string]any) { delete(status, "observedRestartToken") })
}

// forwardEdited forwards a request. If the request writes a status, edited first edits that status.
func forwardEdited(next http.RoundTripper, req *http.Request, edit func(status map[string]any)) (*http.Response, error) {
	if _, status := classify(req); !status {
		return next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	edit(childMap(content, "status"))
	return next.RoundTrip(withBody(req, content))
}
