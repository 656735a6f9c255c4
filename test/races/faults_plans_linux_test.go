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
		{row: "R14-plans", without: "the refusal of a create with a taken name: the create reports success", sees: "exactly one create succeeds: shared-", includesUsers: true,
			wrapTransport: func(next http.RoundTripper) http.RoundTripper { return ignoresNameConflict{next} }},
		{row: "R15", without: "the pin as one unit: the generation of a pin is newer than its content", sees: "pinned to one generation", slow: true,
			wrapTransport: func(next http.RoundTripper) http.RoundTripper { return pinsNewest{next} }},
		{row: "R16-plans", without: "the optimistic lock on the version from which a status was derived: any version is overwritten", sees: "older than",
			wrapTransport: func(next http.RoundTripper) http.RoundTripper { return stampsNewest{next} }},
		{row: "R33-plans", without: "the idempotency key: plans with the same key are unrelated", sees: "exactly one plan per key runs", slow: true, includesUsers: true,
			wrapTransport: func(next http.RoundTripper) http.RoundTripper {
				return changesPlans{next, func(spec map[string]any) { delete(spec, "idempotencyKey") }}
			}},
		{row: "S16", without: "the approval gate: a plan advances as far as it can", sees: "want Strategize Complete, got Apply", includesUsers: true,
			wrapTransport: func(next http.RoundTripper) http.RoundTripper {
				return changesPlans{next, func(spec map[string]any) { spec["targetPhase"] = "Apply" }}
			}},
		{row: "R31", without: "run names that identify the purpose: a second run has another name", sees: "takes effect once",
			wrapTransport: func(next http.RoundTripper) http.RoundTripper { return &duplicatesRuns{next: next} }},
		{row: "R31-late", without: "the version from which a decision was derived: the last writer wins", sees: "",
			wrapTransport: func(next http.RoundTripper) http.RoundTripper { return lastWins{next} }},
		{row: "R31-many", without: "the limit of concurrent runs: actions allow more runs than requested", sees: "at most maxParallel runs", includesUsers: true,
			wrapTransport: func(next http.RoundTripper) http.RoundTripper { return allowsMoreRuns{next} }},
	}...)
}

// isCreate reports whether a request creates an object of that resource.
func isCreate(req *http.Request, plural string) bool {
	ours, _ := classify(req)
	return ours && req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/"+plural)
}

// ignoresNameConflict reports success for the create of a plan whose name is taken.
type ignoresNameConflict struct{ next http.RoundTripper }

func (c ignoresNameConflict) RoundTrip(req *http.Request) (*http.Response, error) {
	if !isCreate(req, "plans") {
		return c.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	name, _ := childMap(content, "metadata")["name"].(string)
	answer, err := c.next.RoundTrip(withBody(req, content))
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
	if _, status := classify(req); !status || !strings.Contains(req.URL.Path, "/plans/") {
		return p.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	if pinned, begins := childMap(content, "status")["pinned"].(map[string]any); begins {
		delayRequest(req, 50*time.Millisecond)
		read := req.Clone(req.Context())
		before, _, _ := strings.Cut(req.URL.Path, "/plans/")
		read.URL.Path = before + "/actions/act"
		action, err := readLive(p.next, read)
		if err != nil {
			return nil, err
		}
		pinned["actionGeneration"] = childMap(action, "metadata")["generation"]
	}
	return p.next.RoundTrip(withBody(req, content))
}

// changesPlans edits the spec of every plan that is created.
type changesPlans struct {
	next   http.RoundTripper
	change func(spec map[string]any)
}

func (c changesPlans) RoundTrip(req *http.Request) (*http.Response, error) {
	if !isCreate(req, "plans") {
		return c.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	c.change(childMap(content, "spec"))
	return c.next.RoundTrip(withBody(req, content))
}

// allowsMoreRuns creates actions that allow more concurrent runs than requested.
type allowsMoreRuns struct{ next http.RoundTripper }

func (a allowsMoreRuns) RoundTrip(req *http.Request) (*http.Response, error) {
	if !isCreate(req, "actions") {
		return a.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	childMap(content, "spec")["maxParallel"] = 3
	return a.next.RoundTrip(withBody(req, content))
}

// duplicatesRuns creates a second run for every run of a plan. The different name of the second run hides that both runs have the same purpose.
type duplicatesRuns struct {
	next http.RoundTripper
	mu   sync.Mutex
}

func (r *duplicatesRuns) RoundTrip(req *http.Request) (*http.Response, error) {
	if !isCreate(req, "strategyruns") {
		return r.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	answer, err := r.next.RoundTrip(withBody(req, content))
	if err != nil || answer.StatusCode != http.StatusCreated {
		return answer, err
	}
	metadata := childMap(content, "metadata")
	metadata["name"] = metadata["name"].(string) + "-again"
	again, err := r.next.RoundTrip(withBody(req, content))
	if err == nil {
		_ = again.Body.Close()
	}
	return answer, err
}
