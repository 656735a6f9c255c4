// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Faults between clients and the API server.

// about reports whether a request concerns an object of Berth, and whether the request writes the status of the object.
func about(req *http.Request) (ours, status bool) {
	ours = strings.HasPrefix(req.URL.Path, "/apis/berth.dev/")
	return ours, ours && req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/status")
}

// body reads the JSON body of a request.
func body(req *http.Request) (map[string]any, error) {
	data, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	if err != nil {
		return nil, err
	}
	content := map[string]any{}
	return content, json.Unmarshal(data, &content)
}

// with returns the request with another body.
func with(req *http.Request, content map[string]any) *http.Request {
	data, err := json.Marshal(content)
	if err != nil {
		panic(err) // it was JSON before
	}
	changed := req.Clone(req.Context())
	changed.Body, changed.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return changed
}

// live reads from the API server the object that a request concerns.
func live(next http.RoundTripper, req *http.Request) (map[string]any, error) {
	read := req.Clone(req.Context())
	read.Method, read.Body, read.ContentLength = http.MethodGet, nil, 0
	read.Header.Del("Content-Type")
	read.URL.Path, read.URL.RawQuery = strings.TrimSuffix(req.URL.Path, "/status"), ""
	answer, err := next.RoundTrip(read)
	if err != nil {
		return nil, err
	}
	return decoded(answer)
}

// decoded returns the content of a response. The body of the response can still be read afterwards.
func decoded(answer *http.Response) (map[string]any, error) {
	data, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	content := map[string]any{}
	return content, json.Unmarshal(data, &content)
}

func part(content map[string]any, name string) map[string]any {
	inner, ok := content[name].(map[string]any)
	if !ok {
		inner = map[string]any{}
		content[name] = inner
	}
	return inner
}

// pause delays a request, like a slow writer.
func pause(req *http.Request, d time.Duration) {
	select {
	case <-req.Context().Done():
	case <-time.After(d):
	}
}

// halves writes a status in two parts: first the facts without the conditions, then everything.
type halves struct{ next http.RoundTripper }

func (h halves) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, status := about(req); !status {
		return h.next.RoundTrip(req)
	}
	second, err := body(req)
	if err != nil {
		return nil, err
	}
	first := map[string]any{"metadata": second["metadata"], "status": map[string]any{}}
	for name, value := range part(second, "status") {
		if name != "conditions" {
			part(first, "status")[name] = value
		}
	}
	answer, err := h.next.RoundTrip(with(req, first))
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	written, err := decoded(answer)
	if err != nil {
		return nil, err
	}
	pause(req, 20*time.Millisecond)
	part(second, "metadata")["resourceVersion"] = part(written, "metadata")["resourceVersion"]
	return h.next.RoundTrip(with(req, second))
}

// convoy imitates a store with one lock. While many clients write to the same object, the lock is held, and the status writes of the bystander wait.
type convoy struct {
	mu     sync.Mutex
	recent []string
	until  time.Time
}

type inConvoy struct {
	*convoy
	next http.RoundTripper
}

func (c *convoy) join(next http.RoundTripper) http.RoundTripper { return inConvoy{c, next} }

func (c inConvoy) RoundTrip(req *http.Request) (*http.Response, error) {
	ours, status := about(req)
	switch {
	case status && strings.Contains(req.URL.Path, "/bystander/"):
		for waited := time.Duration(0); c.held() && waited < 30*time.Second; waited += interval {
			pause(req, interval)
		}
	case ours && !status && req.Method == http.MethodPatch && !strings.HasSuffix(req.URL.Path, "/bystander"):
		c.written(req.URL.Path)
	}
	return c.next.RoundTrip(req)
}

func (c *convoy) held() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.until)
}

// written records a write. If many of the latest writes went to the same object as this write, written holds the lock for some time.
func (c *convoy) written(path string) {
	const last, part, hold = 20, 8, 3 * time.Second // hold is longer than a change takes on a slow machine
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recent = append(c.recent[max(0, len(c.recent)-last+1):], path)
	same := 0
	for _, other := range c.recent {
		if other == path {
			same++
		}
	}
	if same >= part {
		c.until = time.Now().Add(hold)
	}
}

// stampsNewest labels a status with the newest generation, whichever generation the status was derived from. Before the write it waits a while for a
// newer generation.
type stampsNewest struct{ next http.RoundTripper }

func (s stampsNewest) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, status := about(req); !status {
		return s.next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	const slow = 300 * time.Millisecond
	var newest, before any
	for began := time.Now(); newest == before && time.Since(began) < slow; pause(req, time.Millisecond) {
		now, err := live(s.next, req)
		if err != nil {
			return nil, err
		}
		newest = part(now, "metadata")["generation"]
		if before == nil {
			before = newest
		}
	}
	part(content, "status")["observedGeneration"] = newest
	delete(part(content, "metadata"), "resourceVersion")
	return s.next.RoundTrip(with(req, content))
}

// remembersName adds to the status of a first incarnation the lastExit that was recorded for an earlier object with the same name.
type remembersName struct {
	next http.RoundTripper
	mu   sync.Mutex
	last map[string]any
}

func (r *remembersName) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, status := about(req); !status {
		return r.next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	remembered := r.last[req.URL.Path]
	r.mu.Unlock()
	status := part(content, "status")
	if status["incarnation"] == 1.0 && remembered != nil && status["lastExit"] == nil {
		status["lastExit"] = remembered
	}
	answer, err := r.next.RoundTrip(with(req, content))
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	written, err := decoded(answer)
	if err != nil {
		return nil, err
	}
	if exit := part(written, "status")["lastExit"]; exit != nil {
		r.mu.Lock()
		r.last[req.URL.Path] = exit
		r.mu.Unlock()
	}
	return answer, nil
}

// lastWins overwrites the current version of an object, whichever version the writer read.
type lastWins struct{ next http.RoundTripper }

func (l lastWins) RoundTrip(req *http.Request) (*http.Response, error) {
	ours, _ := about(req)
	if !ours || req.Method != http.MethodPatch && req.Method != http.MethodPut {
		return l.next.RoundTrip(req)
	}
	content, err := body(req)
	if err != nil {
		return nil, err
	}
	newest, err := live(l.next, req)
	if err != nil {
		return nil, err
	}
	part(content, "metadata")["resourceVersion"] = part(newest, "metadata")["resourceVersion"]
	return l.next.RoundTrip(with(req, content))
}

// hidesRivals returns an empty list to a client that bypasses its cache to list the DevServers.
type hidesRivals struct{ next http.RoundTripper }

func (h hidesRivals) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, err := h.next.RoundTrip(req)
	query := req.URL.Query()
	live := !query.Has("resourceVersion") && !query.Has("watch") && !query.Has("limit") // caches set one of these
	whole := !strings.Contains(req.Header.Get("Accept"), "PartialObjectMetadata")
	if err != nil || req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, "/devservers") || !live || !whole {
		return answer, err
	}
	content, err := decoded(answer)
	if err != nil {
		return nil, err
	}
	content["items"] = []any{}
	data, err := json.Marshal(content)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	answer.Header.Del("Content-Length")
	return answer, err
}
