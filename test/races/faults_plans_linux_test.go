// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"net/http"
	"strings"
	"sync"
	"time"
)

// The mutants of the rows about plans.
func init() {
	mutants = append(mutants, []mutant{
		{row: "R14-plans", without: "a create that is refused when the name is taken: it reports success", sees: "exactly one create succeeds: shared-", all: true,
			writes: func(next http.RoundTripper) http.RoundTripper { return createsOver{next} }},
		{row: "R15", without: "the pin as one unit: its generation is that at the time of the write", sees: "pinned to one generation", slow: true,
			writes: func(next http.RoundTripper) http.RoundTripper { return pinsNewest{next} }},
		{row: "R16-plans", without: "the optimistic lock of a status on the version that it was derived from", sees: "older than",
			writes: func(next http.RoundTripper) http.RoundTripper { return stampsNewest{next} }},
		{row: "R33-plans", without: "the idempotency key: plans with the same key are unrelated", sees: "exactly one plan per key runs", slow: true, all: true,
			writes: func(next http.RoundTripper) http.RoundTripper {
				return changesPlans{next, func(spec map[string]any) { delete(spec, "idempotencyKey") }}
			}},
		{row: "S16", without: "the gate: a plan advances as far as it can", sees: "want Strategize Complete, got Apply", all: true,
			writes: func(next http.RoundTripper) http.RoundTripper {
				return changesPlans{next, func(spec map[string]any) { spec["targetPhase"] = "Apply" }}
			}},
		{row: "R31", without: "names that identify the purpose of a run: every manager makes up its own", sees: "takes effect once",
			writes: func(next http.RoundTripper) http.RoundTripper { return &renames{next: next} }},
		{row: "R31-late", without: "the version that a decision was derived from: the last writer wins", sees: "",
			writes: func(next http.RoundTripper) http.RoundTripper { return lastWins{next} }},
		{row: "R31-many", without: "the limit of concurrent runs: a plan begins with an action that allows more", sees: "at most maxParallel runs", all: true,
			writes: func(next http.RoundTripper) http.RoundTripper { return allowsMore{next} }},
	}...)
}

// creates reports whether a request creates an object of that resource.
func creates(req *http.Request, plural string) bool {
	ours, _ := about(req)
	return ours && req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/"+plural)
}

// createsOver reports success for the create of a plan whose name is taken.
type createsOver struct{ next http.RoundTripper }

func (c createsOver) RoundTrip(req *http.Request) (*http.Response, error) {
	if !creates(req, "plans") {
		return c.next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	name, _ := part(content, "metadata")["name"].(string)
	answer, err := c.next.RoundTrip(with(req, content))
	if err != nil || answer.StatusCode != http.StatusConflict {
		return answer, err
	}
	_ = answer.Body.Close()
	read := req.Clone(req.Context())
	read.Method, read.Body, read.ContentLength = http.MethodGet, nil, 0
	read.URL.Path += "/" + name
	return c.next.RoundTrip(read)
}

// pinsNewest labels the pin of a plan with the current generation of the action, although the content of the pin is from an earlier generation.
type pinsNewest struct{ next http.RoundTripper }

func (p pinsNewest) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, status := about(req); !status || !strings.Contains(req.URL.Path, "/plans/") {
		return p.next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	if pinned, begins := part(content, "status")["pinned"].(map[string]any); begins {
		pause(req, 50*time.Millisecond)
		read := req.Clone(req.Context())
		before, _, _ := strings.Cut(req.URL.Path, "/plans/")
		read.URL.Path = before + "/actions/act"
		action, err := live(p.next, read)
		if err != nil {
			return nil, err
		}
		pinned["actionGeneration"] = part(action, "metadata")["generation"]
	}
	return p.next.RoundTrip(with(req, content))
}

// changesPlans edits the spec of every plan that is created.
type changesPlans struct {
	next   http.RoundTripper
	change func(spec map[string]any)
}

func (c changesPlans) RoundTrip(req *http.Request) (*http.Response, error) {
	if !creates(req, "plans") {
		return c.next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	c.change(part(content, "spec"))
	return c.next.RoundTrip(with(req, content))
}

// allowsMore creates actions that allow more concurrent runs than requested.
type allowsMore struct{ next http.RoundTripper }

func (a allowsMore) RoundTrip(req *http.Request) (*http.Response, error) {
	if !creates(req, "actions") {
		return a.next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	part(content, "spec")["maxParallel"] = 3
	return a.next.RoundTrip(with(req, content))
}

// renames creates a second run for every run of a plan. The different name of the second run hides that both runs have the same purpose.
type renames struct {
	next http.RoundTripper
	mu   sync.Mutex
}

func (r *renames) RoundTrip(req *http.Request) (*http.Response, error) {
	if !creates(req, "strategyruns") {
		return r.next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	answer, err := r.next.RoundTrip(with(req, content))
	if err != nil || answer.StatusCode != http.StatusCreated {
		return answer, err
	}
	metadata := part(content, "metadata")
	metadata["name"] = metadata["name"].(string) + "-again"
	again, err := r.next.RoundTrip(with(req, content))
	if err == nil {
		_ = again.Body.Close()
	}
	return answer, err
}
