// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/test/lspfake/script"
)

// message is a request, a response or a notification.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

type server struct {
	plan script.Script
	in   *bufio.Reader
	log  *os.File

	writing sync.Mutex
	out     io.Writer

	mu       sync.Mutex
	cancels  map[string]chan struct{}
	pending  map[string]func(message)
	requests int

	documents documents
	matches   []int // how often each fault of the plan has matched
	stopped   bool  // a shutdown request was received
}

func newServer(plan script.Script, in io.Reader, out io.Writer) *server {
	s := &server{
		plan: plan, in: bufio.NewReaderSize(in, 64<<10), out: out,
		cancels: map[string]chan struct{}{}, pending: map[string]func(message){}, documents: documents{}, matches: make([]int, len(plan.Faults)),
	}
	if !plan.Quiet {
		var err error
		if s.log, err = os.OpenFile(filepath.Join(*dir, *name+".journal"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			fail(3, err)
		}
	}
	return s
}

// journal appends a line to the journal in one write.
func (s *server) journal(line script.Line) {
	if s.log == nil {
		return
	}
	line.PID = os.Getpid()
	text, err := json.Marshal(line)
	if err == nil {
		_, err = s.log.Write(append(text, '\n'))
	}
	if err != nil {
		fail(3, err)
	}
}

// serve handles messages until the end of the input or an exit notification.
func (s *server) serve() {
	var body []byte
	for {
		var err error
		body, err = readFrame(s.in, body)
		if err != nil {
			s.journal(script.Line{What: script.EOF, Message: err.Error()})
			if s.plan.IgnoreEOF || s.plan.Start == script.StartIgnoreEOF {
				blockForever()
			}
			if !errors.Is(err, io.EOF) {
				fail(5, err)
			}
			return
		}
		var m message
		if err := json.Unmarshal(body, &m); err != nil {
			s.journal(script.Line{What: script.Violation, Message: err.Error()})
			continue
		}
		switch {
		case m.Method == "":
			s.handleResponse(m)
		case m.ID == nil:
			if s.handleNotification(m) {
				return
			}
		default:
			s.handleRequest(m)
		}
	}
}

// readFrame reads one message into the buffer.
func readFrame(r *bufio.Reader, buffer []byte) ([]byte, error) {
	header, err := textproto.NewReader(r).ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	length, err := strconv.Atoi(header.Get("Content-Length"))
	if err != nil || length < 0 {
		return nil, fmt.Errorf("invalid Content-Length %q", header.Get("Content-Length"))
	}
	if cap(buffer) < length {
		buffer = make([]byte, length)
	}
	buffer = buffer[:length]
	_, err = io.ReadFull(r, buffer)
	return buffer, err
}

// send writes a message in one write.
func (s *server) send(value any) {
	body, err := json.Marshal(value)
	if err != nil {
		fail(6, err)
	}
	s.write(append(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n", len(body)), body...))
}

func (s *server) write(frame []byte) {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, _ = s.out.Write(frame) // an error means that the client is gone; reading then ends too
}

func (s *server) notify(method string, params any) {
	s.send(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
}

func (s *server) reply(id json.RawMessage, result any) {
	s.send(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

func (s *server) replyError(id json.RawMessage, code int, why string) {
	s.send(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": why}})
}

// requestClient sends a request to the client. When the response arrives, the server calls the function then.
func (s *server) requestClient(method string, params any, then func(message)) {
	s.mu.Lock()
	s.requests++
	id := fmt.Sprintf("fake-%d", s.requests)
	s.pending[strconv.Quote(id)] = then
	s.mu.Unlock()
	s.send(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

func (s *server) handleResponse(m message) {
	s.mu.Lock()
	then := s.pending[string(m.ID)]
	delete(s.pending, string(m.ID))
	s.mu.Unlock()
	if then == nil {
		s.journal(script.Line{What: script.Violation, ID: m.ID, Message: "response to an unknown request"})
		return
	}
	params := m.Result
	if m.Error != nil {
		params = m.Error
	}
	s.journal(script.Line{What: script.Answer, ID: m.ID, Params: params})
	then(m)
}

// handleNotification handles a notification, and reports whether the server must exit after it.
func (s *server) handleNotification(m message) (last bool) {
	var p params
	_ = json.Unmarshal(m.Params, &p) // an invalid notification has no error response
	uri := p.TextDocument.URI
	var err error
	what := script.Notice
	switch m.Method {
	case "exit":
		s.journal(script.Line{What: script.Exit})
		if s.plan.IgnoreShutdown {
			return false
		}
		if !s.stopped {
			os.Exit(1)
		}
		return true
	case "$/cancelRequest":
		s.cancel(string(p.ID))
		s.journal(script.Line{What: script.Cancel, ID: p.ID})
		return false
	case "initialized":
		s.index()
	case "textDocument/didOpen":
		what, err = script.Open, s.documents.open(p)
	case "textDocument/didChange":
		what, err = script.Change, s.documents.change(p)
	case "textDocument/didSave":
		what = script.Save
	case "textDocument/didClose":
		what, err = script.Close, s.documents.close(p)
	}
	s.journal(script.Line{What: what, Method: m.Method, URI: uri, Version: p.TextDocument.Version, Sum: script.Sum(s.documents[uri].text)})
	if err != nil {
		s.journal(script.Line{What: script.Violation, URI: uri, Message: err.Error()})
	}
	if what == script.Open || what == script.Change {
		s.injectFault(m, p, nil)
		s.publish(uri)
	}
	return false
}

func (s *server) cancel(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[id]; cancel != nil {
		close(cancel)
		delete(s.cancels, id)
	}
}

// publish publishes a diagnostic for each line that contains "error".
func (s *server) publish(uri string) {
	if !s.plan.Diagnostics {
		return
	}
	doc := s.documents[uri]
	found := []any{}
	for i, line := range strings.Split(doc.text, "\n") {
		if strings.Contains(line, "error") {
			found = append(found, map[string]any{"range": span{Start: position{Line: i}, End: position{Line: i, Character: len(line)}}, "message": line})
		}
	}
	s.notify("textDocument/publishDiagnostics", map[string]any{"uri": uri, "version": doc.version, "diagnostics": found})
}

// index requests the settings and reports progress for the planned time, as servers do while they load their workspace.
func (s *server) index() {
	s.requestClient("workspace/configuration", map[string]any{"items": []any{map[string]any{"section": "fake"}}}, func(message) {})
	if s.plan.IndexingMS == 0 {
		return
	}
	s.requestClient("window/workDoneProgress/create", map[string]any{"token": "indexing"}, func(message) {
		s.notify("$/progress", map[string]any{"token": "indexing", "value": map[string]any{"kind": "begin", "title": "Indexing"}})
		time.AfterFunc(time.Duration(s.plan.IndexingMS)*time.Millisecond, func() {
			s.notify("$/progress", map[string]any{"token": "indexing", "value": map[string]any{"kind": "end"}})
		})
	})
}
