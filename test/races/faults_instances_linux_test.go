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
)

// Faults in the clean-up of objects and in the recording of activity.

// deletesBlindly removes the preconditions of a delete, so that the object is deleted even if it changed after the manager read it.
type deletesBlindly struct{ next http.RoundTripper }

func (d deletesBlindly) RoundTrip(req *http.Request) (*http.Response, error) {
	if ours, _ := classify(req); !ours || req.Method != http.MethodDelete || req.Body == nil {
		return d.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	delete(content, "preconditions")
	return d.next.RoundTrip(withBody(req, content))
}

// recreatesDeleted imitates a manager that records activity in an object that it read earlier, even if the object no longer exists: it creates a deleted
// object again.
type recreatesDeleted struct {
	next http.RoundTripper

	mu   sync.Mutex
	seen map[string]map[string]any // the spec by object path
}

func (b *recreatesDeleted) RoundTrip(req *http.Request) (*http.Response, error) {
	ours, status := classify(req)
	answer, err := b.next.RoundTrip(req)
	if err != nil || !ours || req.Method != http.MethodPatch || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	content, err := decodeResponse(answer)
	if err != nil {
		return nil, err
	}
	path := strings.TrimSuffix(req.URL.Path, "/status")
	b.mu.Lock()
	defer b.mu.Unlock()
	switch metadata := childMap(content, "metadata"); {
	case status && childMap(content, "status")["lastActivityTime"] != nil:
		b.seen[path] = childMap(content, "spec")
	case !status && metadata["deletionTimestamp"] != nil && b.seen[path] != nil: // the finalizer was removed, and the object with it
		return answer, b.recreate(req, content, b.seen[path])
	}
	return answer, nil
}

func (b *recreatesDeleted) recreate(req *http.Request, content, spec map[string]any) error {
	old := childMap(content, "metadata")
	data, err := json.Marshal(map[string]any{
		"apiVersion": content["apiVersion"], "kind": content["kind"], "spec": spec,
		"metadata": map[string]any{"name": old["name"], "namespace": old["namespace"]},
	})
	if err != nil {
		return err
	}
	post := req.Clone(req.Context())
	post.Method, post.URL.RawQuery = http.MethodPost, ""
	post.URL.Path = req.URL.Path[:strings.LastIndex(req.URL.Path, "/")]
	post.Header.Set("Content-Type", "application/json")
	post.Body, post.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	answer, err := b.next.RoundTrip(post)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
