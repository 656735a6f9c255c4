// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
)

// Seen is what the user of a request saw. A manager refuses the request if the object has another UID, or if another incarnation runs.
type Seen struct {
	UID         types.UID // empty: not compared
	Incarnation int64     // 0: not compared
}

const (
	queryUID         = "uid"
	queryIncarnation = "incarnation"
)

// Seeing returns a client that uses the same connections, and whose requests are only for what the user saw.
func (c *Client) Seeing(seen Seen) *Client {
	limited := *c
	limited.seen = seen
	return &limited
}

// in returns a query that also contains what the user saw.
func (s Seen) in(query url.Values) url.Values {
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	if s.UID != "" {
		query.Set(queryUID, string(s.UID))
	}
	if s.Incarnation != 0 {
		query.Set(queryIncarnation, strconv.FormatInt(s.Incarnation, 10))
	}
	return query
}

// seenIn returns what the user of a request saw.
func seenIn(query url.Values) (Seen, error) {
	seen, text := Seen{UID: types.UID(query.Get(queryUID))}, query.Get(queryIncarnation)
	if text == "" {
		return seen, nil
	}
	var err error
	if seen.Incarnation, err = strconv.ParseInt(text, 10, 64); err != nil || seen.Incarnation < 1 {
		return seen, fmt.Errorf("invalid incarnation %q: want a positive number", text)
	}
	return seen, nil
}

// unseen refuses a request for something other than what its user saw.
func (s *Server) unseen(ctx context.Context, t target) *refusal {
	switch {
	case t.seen.UID != "" && t.seen.UID != t.object.GetUID():
		return refuse(http.StatusConflict, "%s was deleted and recreated in the meantime, and the new object is unchanged: see berth status, then repeat the request", t)
	case t.seen.Incarnation != 0:
		return s.notRunning(ctx, t)
	}
	return nil
}

// notRunning refuses a request if no incarnation runs, or if another one runs than the user saw.
func (s *Server) notRunning(ctx context.Context, t target) *refusal {
	found, err := s.runtimeOf(t).Observe(ctx, t.object.GetUID())
	if err != nil {
		return s.failed(ctx, err, "Cannot observe", t, refuse(http.StatusBadGateway, "the runtime does not respond; try again"))
	}
	newest := int64(0)
	for _, i := range found {
		if i.Phase == facts.Running || i.Phase == facts.Starting {
			newest = max(newest, i.Number)
		}
	}
	seen := t.seen.Incarnation
	switch {
	case newest == 0 && seen == 0:
		return notRunning(t)
	case newest == 0:
		return refuse(http.StatusConflict, "incarnation %d of %s has ended: see its conditions with berth status", seen, t)
	case seen != 0 && seen != newest:
		return refuse(http.StatusConflict, "%s was restarted: incarnation %d runs, not %d; see what it shows now, then repeat the request", t, newest, seen)
	}
	return nil
}

// staleError is the error of input for another incarnation than its user saw.
type staleError struct{ *refusal }

func (e staleError) Error() string { return e.message }
