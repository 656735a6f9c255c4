// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// registration is a feature that the server has registered dynamically.
type registration struct {
	ID      string          `json:"id"`
	Method  string          `json:"method"`
	Options json.RawMessage `json:"registerOptions,omitempty"`
	// stale: an earlier incarnation made the registration, and the current incarnation has not repeated it.
	stale bool
}

// features holds the capabilities and registrations that were announced to clients, and the capabilities that the current server lacks.
type features struct {
	answer        *initializeAnswer          // of the last server; nil until the first one has answered
	promised      map[string]json.RawMessage // capabilities announced to clients
	lost          []string                   // promised capabilities that the current server lacks
	registrations []*registration
}

// compare records which of the capabilities that were announced to clients this server lacks. If known is false, no connected client has received an answer to
// initialize, and the capabilities of this server replace the announced ones.
func (f *features) compare(offered map[string]json.RawMessage, known bool) {
	f.lost = nil
	if f.promised == nil || !known {
		f.promised = offered
		return
	}
	for name, was := range f.promised {
		if on(was) && !on(offered[name]) {
			f.lost = append(f.lost, name)
		}
	}
	slices.Sort(f.lost)
}

// serverGone marks all registrations as those of an earlier incarnation.
func (f *features) serverGone() {
	for _, r := range f.registrations {
		r.stale = true
	}
}

const maxRegistrations = 10000

// add adds registrations of the server. It returns those that clients do not know yet, and those that they replace.
func (f *features) add(list []*registration) (fresh, replaced []*registration) {
	for _, made := range list {
		if made == nil {
			continue
		}
		i := slices.IndexFunc(f.registrations, made.isSame)
		switch {
		case i >= 0 && bytes.Equal(f.registrations[i].Options, made.Options):
			f.registrations[i].stale = false // clients know this registration already
			continue
		case i >= 0:
			replaced = append(replaced, f.registrations[i])
			f.registrations[i] = made
		case len(f.registrations) < maxRegistrations:
			f.registrations = append(f.registrations, made)
		}
		fresh = append(fresh, made)
	}
	return fresh, replaced
}

// remove removes the registrations for which the function returns true, and returns them.
func (f *features) remove(remove func(*registration) bool) (removed []*registration) {
	f.registrations = slices.DeleteFunc(f.registrations, func(r *registration) bool {
		if !remove(r) {
			return false
		}
		removed = append(removed, r)
		return true
	})
	return removed
}

func (r *registration) isSame(other *registration) bool {
	return r.ID == other.ID && r.Method == other.Method
}

func (m *Mux) register(params json.RawMessage) {
	var p struct {
		Registrations []*registration `json:"registrations"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		m.log("cannot parse a registration of the language server: " + err.Error())
		return
	}
	fresh, replaced := m.features.add(p.Registrations)
	m.unannounce(replaced)
	m.announce("client/registerCapability", fresh)
	m.watchFiles()
}

func (m *Mux) unregister(params json.RawMessage) {
	var p struct {
		List []*registration `json:"unregisterations"` // spelled this way in the protocol
	}
	if err := json.Unmarshal(params, &p); err != nil {
		m.log("cannot parse an unregistration of the language server: " + err.Error())
		return
	}
	m.unannounce(m.features.remove(func(r *registration) bool {
		return slices.ContainsFunc(p.List, func(named *registration) bool { return named != nil && named.isSame(r) })
	}))
	m.watchFiles()
}

// unregisterStale removes registrations that the current server has not repeated.
func (m *Mux) unregisterStale() {
	m.unannounce(m.features.remove(func(r *registration) bool { return r.stale }))
	m.watchFiles()
}

func (m *Mux) unannounce(list []*registration) { m.announce("client/unregisterCapability", list) }

func (m *Mux) announce(method string, list []*registration) {
	for s := range m.clients.ready() {
		m.announceTo(s, method, list)
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
		m.ask(s, nil, method, wire.Encode(map[string]any{key: of}))
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
