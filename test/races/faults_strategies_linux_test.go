// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Faults in the code that counts runs.

// requestTarget returns the name of the object that a request concerns, whether the request concerns the status, and whether the object belongs to the given
// resource.
func requestTarget(req *http.Request, resource string) (name string, status, ours bool) {
	_, rest, ours := strings.Cut(req.URL.Path, "/"+resource+"/")
	name, part, _ := strings.Cut(rest, "/")
	return name, part == "status", ours
}

// upserts turns the create of an existing strategy into an update: the last writer wins.
type upserts struct{ next http.RoundTripper }

func (scenario upserts) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/strategies") {
		return scenario.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	answer, err := scenario.next.RoundTrip(withBody(req, content))
	if err != nil || answer.StatusCode != http.StatusConflict {
		return answer, err
	}
	_ = answer.Body.Close()
	name, _ := childMap(content, "metadata")["name"].(string)
	update := req.Clone(req.Context())
	update.Method, update.URL.Path = http.MethodPut, req.URL.Path+"/"+name
	for {
		newest, err := readLive(scenario.next, update)
		if err != nil {
			return nil, err
		}
		childMap(content, "metadata")["resourceVersion"] = childMap(newest, "metadata")["resourceVersion"]
		answer, err := scenario.next.RoundTrip(withBody(update, content))
		if err != nil || answer.StatusCode != http.StatusConflict {
			return answer, err
		}
		_ = answer.Body.Close()
	}
}

// forgetsCounted removes the list of counted runs from a status, and makes the first attempt to release each run fail.
type forgetsCounted struct {
	next  http.RoundTripper
	mu    sync.Mutex
	tried map[string]bool
}

func (f *forgetsCounted) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPatch {
		return f.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	if _, status, ours := requestTarget(req, "strategies"); ours && status {
		delete(childMap(content, "status"), "counted")
	}
	_, isMetadata := childMap(content, "metadata")["finalizers"]
	if name, status, ours := requestTarget(req, "strategyruns"); ours && !status && isMetadata {
		finalizers, _ := childMap(content, "metadata")["finalizers"].([]any)
		f.mu.Lock()
		first := len(finalizers) == 1 && !f.tried[name]
		f.tried[name] = f.tried[name] || first
		f.mu.Unlock()
		if first {
			return nil, errors.New("the API server is temporarily unavailable")
		}
	}
	return f.next.RoundTrip(withBody(req, content))
}

// changesStatus edits the status of strategies when it is written.
type changesStatus struct {
	next   http.RoundTripper
	change func(status map[string]any)
}

func (c changesStatus) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, status, ours := requestTarget(req, "strategies"); !ours || !status || req.Method != http.MethodPatch {
		return c.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	c.change(childMap(content, "status"))
	return c.next.RoundTrip(withBody(req, content))
}

// opensLate keeps the breaker closed at 5 failures, the threshold of row R18.
func opensLate(status map[string]any) {
	if breaker, ok := status["breaker"].(map[string]any); ok && breaker["failures"] == 5.0 {
		delete(breaker, "state")
		delete(breaker, "openTime")
	}
}

// keepsEpoch keeps the epoch unchanged at a reset.
func keepsEpoch(status map[string]any) { delete(status, "epoch") }

// splitsBreakerWrites writes the failures first, and the resulting state of the breaker in a second request.
type splitsBreakerWrites struct{ next http.RoundTripper }

func (b splitsBreakerWrites) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, status, ours := requestTarget(req, "strategies"); !ours || !status || req.Method != http.MethodPatch {
		return b.next.RoundTrip(req)
	}
	second, err := readBody(req)
	if err != nil {
		return nil, err
	}
	breaker, _ := childMap(second, "status")["breaker"].(map[string]any)
	if breaker["state"] != "Open" || breaker["failures"] == nil {
		return b.next.RoundTrip(withBody(req, second))
	}
	first := map[string]any{
		"metadata": second["metadata"],
		"status":   map[string]any{"breaker": map[string]any{"failures": breaker["failures"]}},
	}
	answer, err := b.next.RoundTrip(withBody(req, first))
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	written, err := decodeResponse(answer)
	if err != nil {
		return nil, err
	}
	childMap(second, "metadata")["resourceVersion"] = childMap(written, "metadata")["resourceVersion"]
	return b.next.RoundTrip(withBody(req, second))
}

// staleBreaker answers every read of a strategy with the first response that contained a breaker.
type staleBreaker struct {
	next  http.RoundTripper
	mu    sync.Mutex
	first map[string][]byte
}

func (r *staleBreaker) RoundTrip(req *http.Request) (*http.Response, error) {
	_, _, ours := requestTarget(req, "strategies")
	answer, err := r.next.RoundTrip(req)
	if !ours || req.Method != http.MethodGet || err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	content, err := decodeResponse(answer)
	if err != nil || childMap(content, "status")["breaker"] == nil {
		return answer, err
	}
	data, err := json.Marshal(content)
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, known := r.first[req.URL.Path]; known {
		data = was
	}
	r.first[req.URL.Path] = data
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	answer.Header.Del("Content-Length")
	return answer, err
}

// nestedLock imitates a manager that takes its only lock to count runs and, while it holds the lock, takes it again to release a run.
type nestedLock struct {
	next http.RoundTripper
	lock chan struct{}
}

func (n nestedLock) RoundTrip(req *http.Request) (*http.Response, error) {
	_, status, ours := requestTarget(req, "strategies")
	_, ofRun, run := requestTarget(req, "strategyruns")
	if req.Method == http.MethodPatch && (ours && status || run && !ofRun) {
		select {
		case n.lock <- struct{}{}: // the lock would be released only after the next write, which needs the lock as well
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	return n.next.RoundTrip(req)
}
