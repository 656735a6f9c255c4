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

// classify reports whether a request concerns an object of Berth, and whether the request writes the status of the object.
func classify(req *http.Request) (ours, status bool) {
	ours = strings.HasPrefix(req.URL.Path, "/apis/berth.dev/")
	return ours, ours && req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/status")
}

// readBody reads the JSON body of a request.
func readBody(req *http.Request) (map[string]any, error) {
	data, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	if err != nil {
		return nil, err
	}
	content := map[string]any{}
	return content, json.Unmarshal(data, &content)
}

// withBody returns the request with another body.
func withBody(req *http.Request, content map[string]any) *http.Request {
	data, err := json.Marshal(content)
	if err != nil {
		panic(err) // it was JSON before
	}
	changed := req.Clone(req.Context())
	changed.Body, changed.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return changed
}

// readLive reads from the API server the object that a request concerns.
func readLive(next http.RoundTripper, req *http.Request) (map[string]any, error) {
	read := req.Clone(req.Context())
	read.Method, read.Body, read.ContentLength = http.MethodGet, nil, 0
	read.Header.Del("Content-Type")
	read.URL.Path, read.URL.RawQuery = strings.TrimSuffix(req.URL.Path, "/status"), ""
	answer, err := next.RoundTrip(read)
	if err != nil {
		return nil, err
	}
	return decodeResponse(answer)
}

// decodeResponse returns the content of a response. The body of the response can still be read afterwards.
func decodeResponse(answer *http.Response) (map[string]any, error) {
	data, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	content := map[string]any{}
	return content, json.Unmarshal(data, &content)
}

func childMap(content map[string]any, name string) map[string]any {
	inner, ok := content[name].(map[string]any)
	if !ok {
		inner = map[string]any{}
		content[name] = inner
	}
	return inner
}

// delayRequest delays a request, like a slow writer.
func delayRequest(req *http.Request, d time.Duration) {
	select {
	case <-req.Context().Done():
	case <-time.After(d):
	}
}

// splitsStatus writes a status in two requests: the first one contains all fields except the conditions, the second one contains the whole status.
type splitsStatus struct{ next http.RoundTripper }

func (h splitsStatus) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, status := classify(req); !status {
		return h.next.RoundTrip(req)
	}
	second, err := readBody(req)
	if err != nil {
		return nil, err
	}
	first := map[string]any{"metadata": second["metadata"], "status": map[string]any{}}
	for name, value := range childMap(second, "status") {
		if name != "conditions" {
			childMap(first, "status")[name] = value
		}
	}
	answer, err := h.next.RoundTrip(withBody(req, first))
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	written, err := decodeResponse(answer)
	if err != nil {
		return nil, err
	}
	delayRequest(req, 20*time.Millisecond)
	childMap(second, "metadata")["resourceVersion"] = childMap(written, "metadata")["resourceVersion"]
	return h.next.RoundTrip(withBody(req, second))
}

// contendedLock imitates a store with one lock. While many clients write to the same object, the lock is held, and the status writes of the bystander wait.
type contendedLock struct {
	mu     sync.Mutex
	recent []string
	until  time.Time
}

type contendedTransport struct {
	*contendedLock
	next http.RoundTripper
}

func (c *contendedLock) wrap(next http.RoundTripper) http.RoundTripper {
	return contendedTransport{c, next}
}

func (c contendedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ours, status := classify(req)
	switch {
	case status && strings.Contains(req.URL.Path, "/bystander/"):
		for waited := time.Duration(0); c.held() && waited < 30*time.Second; waited += interval {
			delayRequest(req, interval)
		}
	case ours && !status && req.Method == http.MethodPatch && !strings.HasSuffix(req.URL.Path, "/bystander"):
		c.recordWrite(req.URL.Path)
	}
	return c.next.RoundTrip(req)
}

func (c *contendedLock) held() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.until)
}

// recordWrite records a write. If many of the latest writes went to the same object as this write, recordWrite holds the lock for some time.
func (c *contendedLock) recordWrite(path string) {
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
	if _, status := classify(req); !status {
		return s.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	const slow = 300 * time.Millisecond
	var newest, before any
	for began := time.Now(); newest == before && time.Since(began) < slow; delayRequest(req, time.Millisecond) {
		now, err := readLive(s.next, req)
		if err != nil {
			return nil, err
		}
		newest = childMap(now, "metadata")["generation"]
		if before == nil {
			before = newest
		}
	}
	childMap(content, "status")["observedGeneration"] = newest
	delete(childMap(content, "metadata"), "resourceVersion")
	return s.next.RoundTrip(withBody(req, content))
}

// remembersName adds to the status of a first incarnation the lastExit that was recorded for an earlier object with the same name.
type remembersName struct {
	next http.RoundTripper
	mu   sync.Mutex
	last map[string]any
}

func (r *remembersName) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, status := classify(req); !status {
		return r.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	remembered := r.last[req.URL.Path]
	r.mu.Unlock()
	status := childMap(content, "status")
	if status["incarnation"] == 1.0 && remembered != nil && status["lastExit"] == nil {
		status["lastExit"] = remembered
	}
	answer, err := r.next.RoundTrip(withBody(req, content))
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	written, err := decodeResponse(answer)
	if err != nil {
		return nil, err
	}
	if exit := childMap(written, "status")["lastExit"]; exit != nil {
		r.mu.Lock()
		r.last[req.URL.Path] = exit
		r.mu.Unlock()
	}
	return answer, nil
}

// lastWins overwrites the current version of an object, whichever version the writer read.
type lastWins struct{ next http.RoundTripper }

func (l lastWins) RoundTrip(req *http.Request) (*http.Response, error) {
	ours, _ := classify(req)
	if !ours || req.Method != http.MethodPatch && req.Method != http.MethodPut {
		return l.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	newest, err := readLive(l.next, req)
	if err != nil {
		return nil, err
	}
	childMap(content, "metadata")["resourceVersion"] = childMap(newest, "metadata")["resourceVersion"]
	return l.next.RoundTrip(withBody(req, content))
}

// hidesOtherServers returns an empty list to a client that bypasses its cache to list the DevServers.
type hidesOtherServers struct{ next http.RoundTripper }

func (h hidesOtherServers) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, err := h.next.RoundTrip(req)
	query := req.URL.Query()
	live := !query.Has("resourceVersion") && !query.Has("watch") && !query.Has("limit") // the requests of caches set one of these
	whole := !strings.Contains(req.Header.Get("Accept"), "PartialObjectMetadata")
	if err != nil || req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, "/devservers") || !live || !whole {
		return answer, err
	}
	content, err := decodeResponse(answer)
	if err != nil {
		return nil, err
	}
	content["items"] = []any{}
	data, err := json.Marshal(content)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	answer.Header.Del("Content-Length")
	return answer, err
}
