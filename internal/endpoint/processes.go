// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/berth-dev/berth/internal/runtime"
)

// maxProcesses is the maximum number of processes in a response, and maxProcessesBytes the size at which a client stops reading one.
const (
	maxProcesses      = 1000
	maxProcessesBytes = 1 << 20
)

// serveProcesses responds with the living processes of an object, the program itself first.
func (s *Server) serveProcesses(w http.ResponseWriter, r *http.Request, t target) *refusal {
	members, err := []runtime.Member(nil), error(errors.ErrUnsupported)
	if inspection := s.runtimeOf(t).Capabilities().Inspection; inspection != nil {
		members, err = inspection.Members(r.Context(), t.object.GetUID())
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return refuse(http.StatusNotImplemented, "this runtime does not list processes")
	case err != nil && !errors.Is(err, runtime.ErrNotFound):
		return s.failed(r.Context(), err, "Cannot list processes", t, refuse(http.StatusInternalServerError, "the processes cannot be listed"))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(members[:min(len(members), maxProcesses)]) // the client may have gone
	return nil
}

// Processes returns the living processes of an object, the program itself first.
func (c *Client) Processes(ctx context.Context, object Object) ([]runtime.Member, error) {
	response, err := c.send(ctx, request{method: http.MethodGet, object: object, subresource: "processes", want: http.StatusOK, answer: c.patience.answer})
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var members []runtime.Member
	if err := json.NewDecoder(io.LimitReader(response.Body, maxProcessesBytes)).Decode(&members); err != nil {
		return nil, fmt.Errorf("read the processes of %s/%s: %w", object.Resource, object.Name, err)
	}
	return members, nil
}
