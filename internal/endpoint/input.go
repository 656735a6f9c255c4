// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
)

const (
	// maxInput is the maximum number of bytes of text that one request can type, and maxBody that of its body, in which JSON encodes some bytes with six.
	maxInput = 64 << 10
	maxBody  = 6*maxInput + 4<<10
	// maxQuestion is the maximum number of bytes of a question in a response.
	maxQuestion = 4 << 10
	// typeTime bounds how long one request types. A program that does not read its input accepts only what the terminal buffers, a few KiB.
	typeTime = time.Minute
)

// serveKeys types the keystrokes in the body of the request into the terminal of the process. It requires the permission to attach.
func (s *Server) serveKeys(w http.ResponseWriter, r *http.Request, t target) *refusal {
	if t.inPod() {
		// The credentials of the manager permit input to all Pods. The request must go through the API server, which checks whether the
		// caller has the permission for pods/attach.
		return refuse(http.StatusNotImplemented, "%s runs in a Pod, and keystrokes for Pods go through the API server: use berth send of the same version as the manager", t)
	}
	terminals := s.runtimeOf(t).Capabilities().Terminals
	if terminals == nil {
		return refuse(http.StatusNotImplemented, noTerminals)
	}
	strokes, refused := readKeystrokes(w, r)
	if refused != nil {
		return refused
	}
	leave, refused := s.awake(r.Context(), t)
	defer leave()
	if refused != nil {
		return refused
	}
	strokes.Look = s.looks(t)
	s.opts.Presence.Touch(t.object.GetUID()) // before the input, so that what the program does because of it is later
	err := s.typeInto(r.Context(), terminals, t, strokes)
	if stale := (staleError{}); errors.As(err, &stale) {
		return stale.refusal
	}
	if withheld := (*runtime.WithheldError)(nil); errors.As(err, &withheld) {
		answer(w, typed{withheld.Verdict, lastBytes(withheld.Question, maxQuestion)})
		return nil
	}
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
	answer(w, typed{Verdict: terminal.Proceed})
	return nil
}

// keystrokes is the body of a request.
type keystrokes struct {
	Interrupt bool     `json:"interrupt,omitempty"`
	Text      string   `json:"text,omitempty"`
	Keys      []string `json:"keys,omitempty"`
}

// typed is the body of a response. Question is the question that the terminal shows, if that is why keys were not typed.
type typed struct {
	Verdict  terminal.Verdict `json:"verdict"`
	Question string           `json:"question,omitempty"`
}

func answer(w http.ResponseWriter, result typed) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(result) // the client may have gone
}

// lastBytes returns the end of a text.
func lastBytes(text string, limit int) string {
	return strings.ToValidUTF8(text[max(0, len(text)-limit):], "")
}

func readKeystrokes(w http.ResponseWriter, r *http.Request) (runtime.Keystrokes, *refusal) {
	var body keystrokes
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body)
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) || len(body.Text) > maxInput {
		return runtime.Keystrokes{}, refuse(http.StatusRequestEntityTooLarge, "at most %d bytes can be sent at once", maxInput)
	}
	keys, invalid := runtime.ParseKeys(body.Keys)
	if err := errors.Join(err, invalid); err != nil {
		return runtime.Keystrokes{}, refuse(http.StatusBadRequest, "invalid keystrokes: %v", err)
	}
	return runtime.Keystrokes{Interrupt: body.Interrupt, Text: body.Text, Keys: keys}, nil
}

// looks returns a function that reads the terminal of an Instance; nil for objects of other kinds, and while a terminal cannot be read.
func (s *Server) looks(t target) func(context.Context) (terminal.Moment, error) {
	instance, is := t.object.(*v1alpha1.Instance)
	if !is {
		return nil
	}
	size := runtime.Terminal{Columns: ptr.Deref(instance.Spec.Terminal.Columns, 0), Rows: ptr.Deref(instance.Spec.Terminal.Rows, 0)} // 0 is the default
	return func(ctx context.Context) (terminal.Moment, error) {
		return s.runtimeOf(t).Capabilities().Look(ctx, t.object.GetUID(), size)
	}
}

// typeInto types into a terminal. Requests for the same object are serialized.
func (s *Server) typeInto(ctx context.Context, terminals runtime.Terminals, t target, strokes runtime.Keystrokes) error {
	uid := t.object.GetUID()
	s.typing.LockKey(string(uid))
	defer func() { _ = s.typing.UnlockKey(string(uid)) }()
	ctx, cancel := context.WithTimeout(ctx, typeTime)
	defer cancel()
	if refused := s.unseen(ctx, t); refused != nil { // again, because an earlier request may have taken a while
		return staleError{refused}
	}
	return terminals.Type(ctx, uid, strokes)
}

// Type types into the terminal of an object, at most 64 KiB of text. It returns an error if it could not type everything within a minute, and a
// *runtime.WithheldError if keys were not typed.
func (c *Client) Type(ctx context.Context, object Object, strokes runtime.Keystrokes) error {
	body := keystrokes{Interrupt: strokes.Interrupt, Text: strokes.Text}
	for _, key := range strokes.Keys {
		body.Keys = append(body.Keys, string(key))
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	response, err := c.send(ctx, request{method: http.MethodPost, object: object, subresource: "keys", body: bytes.NewReader(encoded), want: http.StatusOK, answer: wakePatience})
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	var result typed
	if err := json.NewDecoder(io.LimitReader(response.Body, maxBody)).Decode(&result); err != nil {
		return fmt.Errorf("read the response of the manager: %w", err)
	}
	if result.Verdict != terminal.Proceed {
		return &runtime.WithheldError{Verdict: result.Verdict, Question: result.Question}
	}
	return nil
}
