// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// registration is a feature that the server has registered dynamically.
type registration struct {
	ID      string          `json:"id"`
	Method  string          `json:"method"`
	Options json.RawMessage `json:"registerOptions,omitempty"`
	// stale: an earlier incarnation made the registration, and the current incarnation has not repeated it.
	stale bool
}

func (m *Mux) register(params json.RawMessage) {
	var p struct {
		Registrations []*registration `json:"registrations"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		m.log("cannot parse a registration of the language server: " + err.Error())
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
			m.registrations[i].stale = false // clients know this registration already
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
	m.watchFiles()
}

const maxRegistrations = 10000

func (m *Mux) unregister(params json.RawMessage) {
	var p struct {
		List []registration `json:"unregisterations"` // spelled this way in the protocol
	}
	if err := json.Unmarshal(params, &p); err != nil {
		m.log("cannot parse an unregistration of the language server: " + err.Error())
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
	m.watchFiles()
}

// unregisterStale removes registrations that the current server has not repeated.
func (m *Mux) unregisterStale() {
	m.registrations = slices.DeleteFunc(m.registrations, func(old *registration) bool {
		if old.stale {
			m.announce("client/unregisterCapability", old)
		}
		return old.stale
	})
	m.watchFiles()
}

func (m *Mux) announce(method string, list ...*registration) {
	for _, s := range m.sessions {
		if s.stage == ready {
			m.announceTo(s, method, list)
		}
	}
}

// announceTo sends registrations or unregistrations to a client, limited to the features that this client allows servers to register dynamically.
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

// featurePath returns the path of a feature in the client capabilities.
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

// capable reports whether a flag is set in the capabilities of a client.
func capable(capabilities json.RawMessage, path ...string) bool {
	flag, err := strconv.ParseBool(string(bytes.TrimSpace(capability(capabilities, path...))))
	return err == nil && flag
}

// capability returns the value at a path in the capabilities of a client; empty if it is absent.
func capability(capabilities json.RawMessage, path ...string) json.RawMessage {
	at := capabilities
	for _, key := range path {
		var object map[string]json.RawMessage
		if json.Unmarshal(at, &object) != nil {
			return nil
		}
		at = object[key]
	}
	return at
}
