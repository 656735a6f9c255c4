// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
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
func (s *Server) serveInput(w http.ResponseWriter, r *http.Request, t target) {
	if t.inPod() {
		// The credentials of the manager permit input to all Pods. The request must go through the API server, which checks whether the
		// caller has the permission for pods/attach.
		refuse(w, http.StatusNotImplemented, fmt.Errorf("%s runs in a Pod, and input to Pods goes through the API server: use berth send of the same version as the manager", t))
		return
	}
	terminals := s.runtimeOf(t).Capabilities().Terminals
	if terminals == nil {
		refuse(w, http.StatusNotImplemented, errNoTerminals)
		return
	}
	input, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxInput))
	if err != nil {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Errorf("at most %d bytes can be sent at once", maxInput))
		return
	}
	leave, status, err := s.awake(r.Context(), t)
	defer leave()
	if err != nil {
		refuse(w, status, err)
		return
	}
	err = s.typeInto(r.Context(), terminals, t.object.GetUID(), input)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		refuse(w, http.StatusGatewayTimeout, fmt.Errorf("%s did not read its input for %s", t, typeTime))
	case errors.Is(err, runtime.ErrNotFound):
		refuse(w, http.StatusConflict, fmt.Errorf("%s is not running: see its conditions with berth status", t))
	case errors.Is(err, errors.ErrUnsupported):
		refuse(w, http.StatusNotImplemented, errNoTerminals)
	case errors.Is(err, runtime.ErrNoTerminal):
		refuse(w, http.StatusConflict, fmt.Errorf("%s has no terminal", t))
	case err != nil:
		s.opts.Log.Error(err, "Cannot type into a terminal", "object", t.String())
		refuse(w, http.StatusBadGateway, fmt.Errorf("the terminal of %s cannot be written to at the moment", t))
	default:
		w.WriteHeader(http.StatusNoContent)
	}
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
	response, err := c.send(ctx, wakePatience, http.MethodPost, object, "input", url.Values{}, nil, strings.NewReader(input))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusNoContent {
		return refusal(response)
	}
	return response.Body.Close()
}
