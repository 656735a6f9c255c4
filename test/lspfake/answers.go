// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-dev/berth/test/lspfake/script"
)

// methodNotFound, requestFailed and requestCancelled are error codes of the Language Server Protocol.
const (
	methodNotFound   = -32601
	requestFailed    = -32803
	requestCancelled = -32800
)

// handleRequest handles one request. It computes the answer from the current documents, even if the answer is sent later.
func (s *server) handleRequest(m message) {
	var p params
	if err := json.Unmarshal(m.Params, &p); err != nil && len(m.Params) > 0 {
		// The server needs only the params that it knows; vendor-specific params may have any format.
		p = params{}
	}
	line := script.Line{What: script.Request, Method: m.Method, ID: m.ID, URI: p.TextDocument.URI}
	if m.Method == "initialize" {
		line.Params = m.Params
	}
	s.journal(line)
	answer := s.answer(m, p)
	if answer != nil {
		s.injectFault(m, p, answer)
	}
}

// answer returns the function that sends the answer, or nil if none is sent.
func (s *server) answer(m message, p params) func() {
	reply := func(result any) func() { return func() { s.reply(m.ID, result) } }
	text := s.documents[p.TextDocument.URI].text
	_, open := s.documents[p.TextDocument.URI]
	switch m.Method {
	case "initialize":
		return s.initialize(m)
	case "shutdown":
		s.journal(script.Line{What: script.Shutdown})
		s.stopped = true
		if s.plan.IgnoreShutdown {
			return nil
		}
		return reply(nil)
	case "textDocument/hover":
		if !open {
			return reply(nil)
		}
		return reply(hover(text, p))
	case "textDocument/definition", "textDocument/references":
		all := []location{}
		for _, at := range occurrences(text, word(text, p.Position)) {
			all = append(all, location{URI: p.TextDocument.URI, Range: at})
		}
		if m.Method == "textDocument/definition" && len(all) > 0 {
			return reply(all[0])
		}
		return reply(all)
	case "textDocument/documentSymbol":
		return reply(symbols(text))
	case "workspace/executeCommand":
		return s.execute(m, p)
	}
	return func() { s.replyError(m.ID, methodNotFound, "the fake server does not support "+m.Method) }
}

// hover returns the word at the position, the first line of the text, and the pid of this server.
func hover(text string, p params) any {
	value := fmt.Sprintf("%s in %s by %d", word(text, p.Position), firstLine(text), os.Getpid())
	if p.Fake != nil && p.Fake.Pad > 0 {
		value += "\n" + strings.Repeat("x", p.Fake.Pad)
	}
	return map[string]any{"contents": map[string]any{"kind": "plaintext", "value": value}}
}

func symbols(text string) any {
	all := []any{}
	for i, line := range strings.Split(text, "\n") {
		if rest, ok := strings.CutPrefix(line, "func "); ok {
			at := span{Start: position{Line: i, Character: 5}, End: position{Line: i, Character: 5 + len(word(rest, position{}))}}
			all = append(all, map[string]any{"name": word(rest, position{}), "kind": 12, "range": at, "selectionRange": at})
		}
	}
	return all
}

func (s *server) initialize(m message) func() {
	switch s.plan.Start {
	case script.StartSilent, script.StartIgnoreEOF, script.StartIgnoreTERM:
		return nil
	case script.StartError:
		return func() { s.replyError(m.ID, requestFailed, "fails to initialize, as planned") }
	case script.StartLogFirst:
		for range 100 {
			s.notify("window/logMessage", map[string]any{"type": 3, "message": "about to fail, as planned"})
		}
		fail(9, errors.New("exits before it answers, as planned"))
	}
	return func() {
		time.Sleep(time.Duration(s.plan.InitializeMS) * time.Millisecond)
		s.reply(m.ID, map[string]any{
			"serverInfo": map[string]any{"name": "lspfake", "version": "1"},
			"capabilities": map[string]any{
				"textDocumentSync": map[string]any{"openClose": true, "change": 2, "save": map[string]any{"includeText": true}},
				"hoverProvider":    true, "definitionProvider": true, "referencesProvider": true, "documentSymbolProvider": true,
				"executeCommandProvider": map[string]any{"commands": []string{"effect", "ask"}},
			},
		})
		if s.plan.Start == script.StartInitExit {
			fail(10, errors.New("exits right after initialize, as planned"))
		}
	}
}

// execute runs the command "effect", which records an irreversible effect, or "ask", which sends a request to the client and returns its response.
func (s *server) execute(m message, p params) func() {
	switch {
	case p.Command == "effect" && len(p.Arguments) == 1:
		if err := appendTo(filepath.Join(*dir, *name+".effects"), []byte(p.Arguments[0]+"\n")); err != nil {
			fail(3, err)
		}
		return func() { s.reply(m.ID, map[string]any{"done": p.Arguments[0]}) }
	case p.Command == "ask" && len(p.Arguments) == 2:
		id := append(json.RawMessage(nil), m.ID...)
		return func() {
			s.requestClient(p.Arguments[0], json.RawMessage(p.Arguments[1]), func(answer message) {
				s.reply(id, map[string]any{"result": answer.Result, "error": answer.Error})
			})
		}
	}
	return func() { s.replyError(m.ID, requestFailed, "no such command: "+p.Command) }
}
