// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	// questionPatience is how long a client may take to answer what the server asks.
	questionPatience = 30 * time.Second
	methodApplyEdit  = "workspace/applyEdit"
	methodShowMsg    = "window/showMessageRequest"
	methodShowDoc    = "window/showDocument"
)

// question is something that a client was asked.
type question struct {
	server   *backend
	id       []byte // of the server that waits for the answer; nil: the answer is dropped
	method   string
	deadline time.Time
}

// serverAsks answers a request of the server, or has the client answer that caused it. None stays without an answer.
func (m *Mux) serverAsks(b *backend, body []byte, e *wire.Envelope) {
	var params json.RawMessage
	if span := e.ParamsSpan; span.End > 0 {
		params = body[span.Start:span.End]
	}
	method := string(e.Method)
	switch method {
	case "workspace/configuration":
		b.put(resultBody(e.ID, m.configuration(params)))
	case "workspace/workspaceFolders":
		b.put(resultBody(e.ID, encode(workspaceFolders(m.config.Folders))))
	case "client/registerCapability":
		b.put(resultBody(e.ID, null))
		m.register(params)
	case "client/unregisterCapability":
		b.put(resultBody(e.ID, null))
		m.unregister(params)
	case "window/workDoneProgress/create":
		b.put(resultBody(e.ID, null))
		m.createWork(b, e.Token, params)
	case methodApplyEdit, methodShowMsg, methodShowDoc:
		m.passOn(b, e, method, params)
	default:
		if kind, ok := refreshed(method); ok {
			b.put(resultBody(e.ID, null))
			m.refresh(b, method, kind)
			return
		}
		b.put(errorBody(e.ID, codeMethodNotFound, method+" is not known here", nil))
	}
}

// refreshed is the feature of a request such as workspace/codeLens/refresh.
func refreshed(method string) (string, bool) {
	kind, ok := strings.CutPrefix(method, "workspace/")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(kind, "/refresh")
}

func (m *Mux) refresh(b *backend, method, kind string) {
	for _, s := range m.sessions {
		if s.stage == ready && capable(s.capabilities, "workspace", kind, "refreshSupport") {
			m.ask(s, b, nil, method, nil)
		}
	}
}

// passOn asks the client that caused the server to ask, if it is known which one that is.
func (m *Mux) passOn(b *backend, e *wire.Envelope, method string, params json.RawMessage) {
	s := m.causer(b, method)
	if s == nil || s.stage != ready {
		b.put(resultBody(e.ID, noAnswer(method, "no client that is connected asked for it")))
		return
	}
	if method == methodApplyEdit {
		params = withoutVersions(params)
	}
	m.ask(s, b, bytes.Clone(e.ID), method, bytes.Clone(params))
}

// noAnswer is what the server gets when no client answers.
func noAnswer(method, why string) json.RawMessage {
	switch method {
	case methodApplyEdit:
		return encode(map[string]any{"applied": false, "failureReason": why})
	case methodShowDoc:
		return json.RawMessage(`{"success":false}`)
	}
	return null
}

// causer is the one client whose request makes the server ask; nil when it could be several, as an edit must not reach another.
func (m *Mux) causer(b *backend, method string) *session {
	var commands, others []*session
	add := func(list *[]*session, s *session) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	for _, r := range b.pending {
		switch {
		case r.own == ofNobody && r.method == methodExecute:
			return nil // the command of a client that has gone
		case r.own != ofClient:
		case r.method == methodExecute:
			add(&commands, r.session)
		case r.method == methodCodeAction || method != methodApplyEdit:
			add(&others, r.session)
		}
	}
	switch {
	case len(commands) == 1:
		return commands[0]
	case len(commands) == 0 && len(others) == 1:
		return others[0]
	}
	return nil
}

// ask sends a client a request; id is that of the server's request if the answer is for the server.
func (m *Mux) ask(s *session, b *backend, id []byte, method string, params json.RawMessage) {
	m.askedOfClients++
	number := m.askedOfClients
	s.asked[number] = &question{server: b, id: id, method: method, deadline: m.now().Add(questionPatience)}
	m.send(s, requestBody(appendToken(nil, number), method, params))
	m.nudge()
}

// clientAnswered takes the answer of a client to what it was asked.
func (m *Mux) clientAnswered(s *session, body []byte, e *wire.Envelope) {
	number, ok := tokenNumber(e.ID)
	q := s.asked[number]
	if !ok || q == nil {
		return // too late
	}
	delete(s.asked, number)
	if q.id == nil || q.server != m.server {
		return
	}
	buffer, _ := m.server.out.begin(needed, "")
	m.server.out.end(e.AppendWithID(buffer, body, q.id), needed, "")
}

// giveUp answers the server in place of a client that doesn't.
func (m *Mux) giveUp(s *session, number int64, q *question) {
	delete(s.asked, number)
	if q.id != nil && q.server == m.server && m.server != nil {
		m.server.put(resultBody(q.id, noAnswer(q.method, "the client did not answer")))
	}
}

func (m *Mux) giveUpLate(now time.Time) {
	for _, s := range m.sessions {
		for number, q := range s.asked {
			if !now.Before(q.deadline) {
				m.giveUp(s, number, q)
			}
		}
	}
}

// registration is a feature that the server turned on later.
type registration struct {
	ID      string          `json:"id"`
	Method  string          `json:"method"`
	Options json.RawMessage `json:"registerOptions,omitempty"`
	// stale: an incarnation that has ended made it.
	stale bool
}

func (m *Mux) register(params json.RawMessage) {
	var p struct {
		Registrations []*registration `json:"registrations"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		m.log("a registration of the language server can't be read: " + err.Error())
		return
	}
	var fresh []*registration
	for _, made := range p.Registrations {
		if made == nil {
			continue
		}
		i := slices.IndexFunc(m.registrations, func(old *registration) bool { return old.ID == made.ID && old.Method == made.Method })
		switch {
		case i >= 0 && bytes.Equal(m.registrations[i].Options, made.Options):
			m.registrations[i].stale = false // clients know it
			continue
		case i >= 0:
			m.announce("client/unregisterCapability", m.registrations[i])
			m.registrations[i] = made
		case len(m.registrations) < maxRegistrations:
			m.registrations = append(m.registrations, made)
		}
		fresh = append(fresh, made)
	}
	m.announce("client/registerCapability", fresh...)
}

const maxRegistrations = 10000

func (m *Mux) unregister(params json.RawMessage) {
	var p struct {
		List []registration `json:"unregisterations"` // the protocol misspells it
	}
	if err := json.Unmarshal(params, &p); err != nil {
		m.log("an unregistration of the language server can't be read: " + err.Error())
		return
	}
	for _, made := range p.List {
		m.registrations = slices.DeleteFunc(m.registrations, func(old *registration) bool {
			if old.ID != made.ID || old.Method != made.Method {
				return false
			}
			m.announce("client/unregisterCapability", old)
			return true
		})
	}
}

// unregisterStale takes back what only servers before the present one registered.
func (m *Mux) unregisterStale() {
	m.registrations = slices.DeleteFunc(m.registrations, func(old *registration) bool {
		if old.stale {
			m.announce("client/unregisterCapability", old)
		}
		return old.stale
	})
}

func (m *Mux) announce(method string, list ...*registration) {
	for _, s := range m.sessions {
		if s.stage == ready {
			m.announceTo(s, method, list)
		}
	}
}

// announceTo tells a client of registrations, of features that it can turn on and off.
func (m *Mux) announceTo(s *session, method string, list []*registration) {
	key := "registrations"
	if method == "client/unregisterCapability" {
		key = "unregisterations"
	}
	var of []any
	for _, r := range list {
		if !capable(s.capabilities, append(featurePath(r.Method), "dynamicRegistration")...) {
			continue
		}
		if key == "registrations" {
			of = append(of, r)
		} else {
			of = append(of, map[string]string{"id": r.ID, "method": r.Method})
		}
	}
	if len(of) > 0 {
		m.ask(s, m.server, nil, method, encode(map[string]any{key: of}))
	}
}

// featurePath is where a client says that it knows a feature.
func featurePath(method string) []string {
	parts := strings.Split(method, "/")
	if len(parts) < 2 {
		return []string{method}
	}
	switch parts[1] {
	case "didOpen", "didChange", "didSave", "didClose", "willSave", "willSaveWaitUntil":
		parts[1] = "synchronization"
	case "prepareCallHierarchy":
		parts[1] = "callHierarchy"
	case "prepareTypeHierarchy":
		parts[1] = "typeHierarchy"
	case "documentColor":
		parts[1] = "colorProvider"
	case "didCreateFiles", "willCreateFiles", "didRenameFiles", "willRenameFiles", "didDeleteFiles", "willDeleteFiles":
		parts[1] = "fileOperations"
	}
	return parts[:2]
}

// capable looks up a flag in the capabilities of a client.
func capable(capabilities json.RawMessage, path ...string) bool {
	at := capabilities
	for _, key := range path {
		var object map[string]json.RawMessage
		if json.Unmarshal(at, &object) != nil {
			return false
		}
		at = object[key]
	}
	flag, err := strconv.ParseBool(string(bytes.TrimSpace(at)))
	return err == nil && flag
}
