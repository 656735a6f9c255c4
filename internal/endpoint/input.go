// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// maxInput is the maximum number of bytes that one request can type.
	maxInput = 64 << 10
	// typeTime bounds how long one request types. A program that does not read its input accepts only what the terminal buffers, a few KiB.
	typeTime = 30 * time.Second
)

// serveInput types the body of the request into the terminal of the process. It requires the permission to attach.
func (s *Server) serveInput(w http.ResponseWriter, r *http.Request, t target) *refusal {
	if t.inPod() {
		// The credentials of the manager permit input to all Pods. The request must go through the API server, which checks whether the
		// caller has the permission for pods/attach.
		return refuse(http.StatusNotImplemented, "%s runs in a Pod, and input to Pods goes through the API server: use berth send of the same version as the manager", t)
	}
	terminals := s.runtimeOf(t).Capabilities().Terminals
	if terminals == nil {
		return refuse(http.StatusNotImplemented, noTerminals)
	}
	input, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxInput))
	if err != nil {
		return refuse(http.StatusRequestEntityTooLarge, "at most %d bytes can be sent at once", maxInput)
	}
	leave, refused := s.awake(r.Context(), t)
	defer leave()
	if refused != nil {
		return refused
	}
	err = s.typeInto(r.Context(), terminals, t.object.GetUID(), input)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return refuse(http.StatusGatewayTimeout, "%s did not read its input for %s", t, typeTime)
	case errors.Is(err, runtime.ErrNotFound):
		return notRunning(t)
	case errors.Is(err, errors.ErrUnsupported):
		return refuse(http.StatusNotImplemented, noTerminals)
	case errors.Is(err, runtime.ErrNoTerminal):
		return refuse(http.StatusConflict, "%s has no terminal", t)
	case err != nil:
		return s.failed(r.Context(), err, "Cannot type into a terminal", t, refuse(http.StatusBadGateway, "the terminal of %s cannot be written to at the moment", t))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// typeInto types input into a terminal. Requests for the same object are serialized.
func (s *Server) typeInto(ctx context.Context, terminals runtime.Terminals, uid types.UID, input []byte) error {
	s.typing.LockKey(string(uid))
	defer func() { _ = s.typing.UnlockKey(string(uid)) }()
	ctx, cancel := context.WithTimeout(ctx, typeTime)
	defer cancel()
	return terminals.Type(ctx, uid, input)
}

// Type types into the terminal of an object, at most 64 KiB. It returns an error if the input could not be typed completely within 30 s.
func (c *Client) Type(ctx context.Context, object Object, input string) error {
	response, err := c.send(ctx, request{method: http.MethodPost, object: object, subresource: "input", body: strings.NewReader(input), want: http.StatusNoContent, answer: wakePatience})
	if err != nil {
		return err
	}
	return response.Body.Close()
}
