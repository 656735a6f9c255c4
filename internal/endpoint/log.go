// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// headerOffset is the response header with the offset at which the response begins, in bytes from the beginning of all output of the object. A client that
	// has read n bytes of the response can continue with ?offset= set to that offset plus n.
	headerOffset = "Berth-Log-Offset"
	// headerScreen is the response header that is "true" if the response is the current content of the terminal, because Berth does not retain the output.
	headerScreen = "Berth-Log-Screen"
	// headerTerminal is the response header with the size of the terminal, as in 120x40. It is missing if there is no terminal, or if its size is not known.
	headerTerminal = "Berth-Terminal-Size"

	chunk = 32 << 10
	// longLine is the maximum length of a line for tail, in bytes. A longer line counts as several lines, so that the response is also bounded for output
	// without newlines.
	longLine = 16 << 10
	// noLogRetry is how often to check for the first output of an object.
	noLogRetry = 250 * time.Millisecond
	// writeTimeout is how long a client may take to accept a chunk before it is considered disconnected.
	writeTimeout = 30 * time.Second
)

// logQuery selects output: from an offset, the last lines, or everything that is retained; followed or not.
type logQuery struct {
	follow bool
	tail   int64 // -1: not set
	offset int64 // -1: not set
}

func parseLogQuery(r *http.Request) (logQuery, error) {
	query := logQuery{tail: -1, offset: -1}
	values := r.URL.Query()
	follow, err := strconv.ParseBool(cmp.Or(values.Get("follow"), "false"))
	if err != nil {
		return query, fmt.Errorf("follow is %q: use true or false", values.Get("follow"))
	}
	query.follow = follow
	for name, field := range map[string]*int64{"tail": &query.tail, "offset": &query.offset} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil || number < 0 {
			return query, fmt.Errorf("%s is %q: use a number that is not negative", name, text)
		}
		*field = number
	}
	if query.tail >= 0 && query.offset >= 0 {
		return query, errors.New("use tail or offset, not both")
	}
	return query, nil
}

func (s *Server) serveLog(w http.ResponseWriter, r *http.Request, t target) *refusal {
	if t.inPod() {
		return refuse(http.StatusNotImplemented, "%s runs in a Pod, and the output of Pods comes from the API server: berth logs and kubectl logs need the permissions to get %s and pods/log", t, t.resource)
	}
	query, err := parseLogQuery(r)
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	s.setSize(w, r, t)
	var log runtime.Log
	logs := s.runtimeOf(t).Capabilities().Logs
	if err = errors.ErrUnsupported; logs != nil {
		log, err = logs.OpenLog(r.Context(), t.object.GetUID())
	}
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		if s.serveScreen(w, r, t) {
			return nil
		}
		// An object without output is not an error. A client that follows the output receives the response headers immediately.
		begin(w, 0)
		if query.follow && http.NewResponseController(w).Flush() == nil {
			s.followNew(w, r, logs, t)
		}
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		return refuse(http.StatusNotImplemented, "this runtime does not keep output")
	case err != nil:
		return s.failed(r.Context(), err, "Cannot open the output", t, refuse(http.StatusInternalServerError, "the output cannot be read"))
	}
	defer func() { _ = log.Close() }()
	start, end, err := span(log, query)
	if err != nil {
		return s.failed(r.Context(), err, "Cannot read the output", t, refuse(http.StatusInternalServerError, "the output cannot be read"))
	}
	begin(w, start)
	s.send(w, r, t, log, start, end, query.follow)
	return nil
}

// send sends the output after the response headers; see copyLog.
func (s *Server) send(w http.ResponseWriter, r *http.Request, t target, log runtime.Log, start, end int64, follow bool) {
	if err := copyLog(r.Context(), http.NewResponseController(w), w, log, start, end, follow); err != nil && r.Context().Err() == nil {
		s.opts.Log.Info("An output stream ended early", "object", t.String(), "cause", err.Error())
	}
}

// followNew waits for the first output of an object and then streams all output.
func (s *Server) followNew(w http.ResponseWriter, r *http.Request, logs runtime.Logs, t target) {
	var log runtime.Log
	err := wait.PollUntilContextCancel(r.Context(), noLogRetry, true, func(ctx context.Context) (opened bool, err error) {
		log, err = logs.OpenLog(ctx, t.object.GetUID())
		if errors.Is(err, runtime.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		_ = s.failed(r.Context(), err, "Cannot open the output", t, nil)
		return
	}
	defer func() { _ = log.Close() }()
	s.send(w, r, t, log, 0, 0, true)
}

// serveScreen responds with the current content of the terminal, if there is one: the output of an adopted session is not retained. It returns false if it did
// not respond.
func (s *Server) serveScreen(w http.ResponseWriter, r *http.Request, t target) bool {
	terminals := s.runtimeOf(t).Capabilities().Terminals
	if terminals == nil {
		return false
	}
	view, err := terminals.Capture(r.Context(), t.object.GetUID())
	if err != nil {
		return false
	}
	w.Header().Set(headerScreen, "true")
	begin(w, 0)
	_, _ = io.WriteString(w, view.Text+"\n")
	return true
}

// setSize sets headerTerminal for an Instance; other objects have no terminal.
func (s *Server) setSize(w http.ResponseWriter, r *http.Request, t target) {
	if _, is := t.object.(*v1alpha1.Instance); !is {
		return
	}
	if size, known := s.runtimeOf(t).Capabilities().Size(r.Context(), t.object.GetUID()); known {
		w.Header().Set(headerTerminal, fmt.Sprintf("%dx%d", size.Columns, size.Rows))
	}
}

func begin(w http.ResponseWriter, offset int64) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set(headerOffset, strconv.FormatInt(offset, 10))
	w.WriteHeader(http.StatusOK)
}

// span returns the range of the available output that the query selects.
func span(log runtime.Log, query logQuery) (start, end int64, err error) {
	first, end, err := log.Bounds()
	if err != nil {
		return 0, 0, err
	}
	switch {
	case query.tail >= 0:
		start, err = tailOffset(log, first, end, query.tail)
	case query.offset >= 0:
		start = min(max(query.offset, first), end)
	default:
		start = first
	}
	return start, end, err
}

// tailOffset returns the offset at which the last lines begin. It reads backwards in chunks, so that memory use does not grow with the output. An incomplete
// line counts as one line. A line of more than longLine bytes counts as several lines, each of at most longLine bytes.
func tailOffset(log io.ReaderAt, first, end, lines int64) (int64, error) {
	if lines == 0 {
		return end, nil
	}
	buffer := make([]byte, chunk)
	seen, lineEnd := int64(0), end
	for high := end; high > first; {
		low := max(first, high-chunk)
		piece := buffer[:high-low]
		n, err := log.ReadAt(piece, low)
		if int64(n) < high-low {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return high, nil // older output was removed in the meantime
			}
			return 0, fmt.Errorf("read the output: %w", err)
		}
		for i := len(piece) - 1; i >= 0; i-- {
			begin := low + int64(i) + 1 // start of a line, if preceded by a newline
			newline := piece[i] == '\n' && begin != end
			if !newline && lineEnd-begin < longLine {
				continue
			}
			if seen++; seen == lines {
				return begin, nil
			}
			lineEnd = begin
		}
		high = low
	}
	return first, nil
}

// copyLog writes the output between two offsets, at and end. If follow is true, it continues until the log or the context ends. Otherwise it stops at the
// second offset even if the output has grown, because the response would never end if the output grew faster than it was sent.
func copyLog(ctx context.Context, control *http.ResponseController, w io.Writer, log runtime.Log, at, end int64, follow bool) error {
	buffer := make([]byte, chunk)
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }() // the connection may serve another request
	for {
		for at < end {
			n, err := log.ReadAt(buffer[:min(chunk, end-at)], at)
			if n > 0 {
				// The deadline is renewed for each chunk, so a slow client is not disconnected as long as it accepts each chunk in time.
				_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
				if _, err := w.Write(buffer[:n]); err != nil {
					return err
				}
				at += int64(n)
			}
			if err != nil && n == 0 {
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					return endOfLog(err)
				}
				first, _, err := log.Bounds()
				if err != nil {
					return endOfLog(err)
				}
				at = max(at, first)
			}
		}
		if !follow {
			return nil
		}
		if err := control.Flush(); err != nil {
			return err
		}
		if err := log.Wait(ctx, at); err != nil {
			return endOfLog(err)
		}
		first, now, err := log.Bounds()
		if err != nil {
			return endOfLog(err)
		}
		at, end = max(at, first), now
	}
}

// endOfLog returns nil for regular ends of a log, such as the deletion of the object, and err otherwise.
func endOfLog(err error) error {
	if errors.Is(err, runtime.ErrNotFound) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
