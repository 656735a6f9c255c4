// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/runtime"
)

// noTerminals is the response for a backend whose terminals cannot be reached through the manager.
const noTerminals = "this runtime has no terminals"

func notRunning(t target) *refusal {
	return refuse(http.StatusConflict, "%s is not running: see its conditions with berth status", t)
}

// serveAttach upgrades the connection and connects it to the terminal of the process.
func (s *Server) serveAttach(w http.ResponseWriter, r *http.Request, t target) *refusal {
	terminals := s.runtimeOf(t).Capabilities().Terminals
	if terminals == nil || t.inPod() {
		return refuse(http.StatusNotImplemented, noTerminals)
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), protocol) || !strings.EqualFold(r.Header.Get("Connection"), "Upgrade") {
		w.Header().Set("Upgrade", protocol)
		return refuse(http.StatusUpgradeRequired, "attach requires a connection upgrade to the protocol %s: use berth attach of the same version as the manager", protocol)
	}
	counted, err := countedIn(r.URL.Query())
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	leave, refused := s.awake(r.Context(), t)
	defer leave()
	if refused == nil {
		refused = s.notRunning(r.Context(), t) // before the upgrade, while an HTTP status can still be sent
	}
	if refused != nil {
		return refused
	}
	raw, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return refuse(http.StatusInternalServerError, "the connection cannot be upgraded")
	}
	defer func() { _ = raw.Close() }()
	if err := raw.SetDeadline(time.Time{}); err != nil {
		return nil
	}
	header := ""
	if counted.Stream != "" {
		header = headerCounted + ": true\r\n"
	}
	if _, err := fmt.Fprintf(raw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s\r\n", protocol, header); err != nil {
		return nil
	}
	leave() // a client that only watches does not keep the process awake
	s.join(r.Context(), terminals, newConn(raw, buffered), t, sizeOf(r), counted)
	return nil
}

// join copies between the connection and the terminal until one of them ends, and waits for all goroutines that it started.
func (s *Server) join(ctx context.Context, terminals runtime.Terminals, conn *Conn, t target, size *runtime.Terminal, counted CountedInput) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resize := make(chan runtime.Terminal, 1)
	if size != nil {
		resize <- *size
	}
	in, keys := io.Pipe()
	conn.onEOF = func() { _ = keys.CloseWithError(runtime.ErrInputEnd) }
	received := make(chan struct{})
	go func() {
		defer close(received)
		err := conn.Receive(noting{keys, func() { s.opts.Presence.Touch(t.object.GetUID()) }}, func(size runtime.Terminal) { newest(resize, size) })
		_ = keys.CloseWithError(errors.Join(err, io.EOF))
		cancel() // the client has disconnected
	}()
	err := terminals.Attach(ctx, t.object.GetUID(), counted.read(in, conn), conn, resize)
	gone := ctx.Err() != nil
	_ = in.Close()
	if !gone || s.closing(ctx) {
		if sendErr := conn.end(endMessage(err, t)); sendErr == nil && err != nil {
			s.opts.Log.V(1).Info("A terminal connection ended", "object", t.String(), "cause", err.Error())
		}
	}
	_ = conn.Close() // ends Receive
	<-received
}

// reports matches what a terminal sends although its user presses no key: changes of the focus, movements and the wheel of the mouse, and answers to questions of
// the program. F3 with a modifier looks like the position of the cursor, so it counts as such an answer.
var reports = regexp.MustCompile(`^(\x1b\[[IO]|\x1b\[<(3[2-9]|[4-9]\d|\d{3,})(;\d+)*[Mm]|\x1b\[[?>=]?[\d;]*[cnRtx]|\x1b\[\?[\d;]*(\$y|u)|\x1b[\]P_][^\x07\x1b]*(\x07|\x1b\\))+$`)

// noting is a writer that calls note before each write, except before a write that contains only reports of the terminal.
type noting struct {
	io.Writer
	note func()
}

func (n noting) Write(p []byte) (int, error) {
	if !reports.Match(p) {
		n.note()
	}
	return n.Writer.Write(p)
}

func (s *Server) closing(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errClosing) }

var errClosing = errors.New("the manager is shutting down")

// managerEnds is the end message of a manager that shuts down. Clients of other versions compare it (ManagerEnds), so it must not change.
const managerEnds = "the manager is ending; attach again when it is back"

func endMessage(err error, t target) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, runtime.ErrNoTerminal):
		return t.String() + " has no terminal: use berth logs to see its output"
	case errors.Is(err, runtime.ErrNotFound):
		return t.String() + " is not running"
	case errors.Is(err, runtime.ErrUnknownInput):
		return t.String() + " is another process than the one that received the beginning of the input, so the rest was not typed"
	case errors.Is(err, context.Canceled):
		return managerEnds
	default:
		return "the connection to the terminal was lost: " + err.Error()
	}
}

// newest sends a value and replaces one that was not received yet.
func newest[T any](values chan T, value T) {
	for {
		select {
		case values <- value:
			return
		default:
		}
		select {
		case <-values:
		default:
		}
	}
}

func sizeOf(r *http.Request) *runtime.Terminal {
	columns, err1 := strconv.ParseUint(r.URL.Query().Get("columns"), 10, 16)
	rows, err2 := strconv.ParseUint(r.URL.Query().Get("rows"), 10, 16)
	if err1 != nil || err2 != nil || columns == 0 || rows == 0 {
		return nil
	}
	return &runtime.Terminal{Columns: int32(min(columns, 1000)), Rows: int32(min(rows, 1000))}
}
