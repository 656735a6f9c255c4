// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// clientCapabilities are sent to every server, whatever clients are connected. Capabilities that affect the form of results are therefore limited to those that
// every client supports, or whose results are converted for the other clients (convert.go). They contain no dynamic registration of features for documents, so that
// servers state these features in their answer to initialize, which every client understands.
//
//go:embed capabilities.json
var clientCapabilities []byte

// initializeAnswer is the server's initialize result, for clients.
type initializeAnswer struct {
	body     []byte
	envelope wire.Envelope
	result   initializeResult
}

// pull is the capability of servers that return diagnostics on request.
const pull = "diagnosticProvider"

// withoutPull removes the capability pull from the answer, because clients receive all diagnostics as notifications; see pulling.
func (a *initializeAnswer) withoutPull() error {
	if !on(a.result.Capabilities[pull]) {
		return nil
	}
	var result map[string]json.RawMessage
	if err := json.Unmarshal(a.envelope.Result, &result); err != nil {
		return err
	}
	delete(a.result.Capabilities, pull)
	result["capabilities"] = wire.Encode(a.result.Capabilities)
	a.body = wire.Encode(map[string]any{"jsonrpc": "2.0", "id": 0, "result": result})
	return wire.Scan(a.body, &a.envelope)
}

type initializeResult struct {
	Capabilities map[string]json.RawMessage `json:"capabilities"`
	ServerInfo   struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"serverInfo"`
	// OffsetEncoding is what clangd reports in place of the capability positionEncoding.
	OffsetEncoding string `json:"offsetEncoding"`
}

// utf16 is the unit of positions that every client and server supports.
const utf16 = "utf-16"

// encoding returns the unit of the positions that the server uses.
func (r *initializeResult) encoding() string {
	var said string
	if json.Unmarshal(r.Capabilities["positionEncoding"], &said) != nil || said == "" {
		said = r.OffsetEncoding
	}
	return cmp.Or(said, utf16)
}

// version returns the server's version, without extra data that some servers include: gopls lists its whole build information.
func (r *initializeResult) version() string {
	said := r.ServerInfo.Version
	var build struct{ Main struct{ Version string } }
	if json.Unmarshal([]byte(said), &build) == nil && build.Main.Version != "" {
		said = build.Main.Version
	}
	return abridged([]byte(said))
}

type folder struct {
	URI  string `json:"uri"`
	Name string `json:"name"`
}

func fileURI(path string) string {
	return (&url.URL{Scheme: "file", Path: path}).String()
}

func workspaceFolders(paths []string) []folder {
	folders := make([]folder, 0, len(paths))
	for _, path := range paths {
		folders = append(folders, folder{URI: fileURI(path), Name: filepath.Base(path)})
	}
	return folders
}

func (m *Mux) initializeParams() json.RawMessage {
	params := map[string]any{
		"processId":        nil,
		"clientInfo":       map[string]string{"name": "berth-lsp"},
		"rootPath":         nil,
		"rootUri":          nil,
		"capabilities":     json.RawMessage(clientCapabilities),
		"workspaceFolders": nil,
	}
	if m.options.ProcessID != 0 {
		params["processId"] = m.options.ProcessID
	}
	if folders := m.config.Folders; len(folders) > 0 {
		params["rootPath"], params["rootUri"], params["workspaceFolders"] = folders[0], fileURI(folders[0]), workspaceFolders(folders)
	}
	if len(m.config.InitializationOptions) > 0 {
		params["initializationOptions"] = m.config.InitializationOptions
	}
	return wire.Encode(params)
}

// answeredOwn handles the answer to a request of the multiplexer.
func (m *Mux) answeredOwn(b *backend, what requestOwner, body []byte, e *wire.Envelope) {
	switch what {
	case ownInitialize:
		m.introduced(b, body, e)
	case ownPing:
		b.health.pinged = false
		b.health.responsive = true
	case ownCanary:
		m.canaryResponse(b, e)
	case ownShutdown:
		close(b.shut)
	case ownPull:
		m.pulled(b, e)
	}
}

// introduced handles the server's answer to initialize. It sends the server the settings and documents, and then starts to send requests.
func (m *Mux) introduced(b *backend, body []byte, e *wire.Envelope) {
	made := &initializeAnswer{body: append([]byte(nil), body...)}
	err := wire.Scan(made.body, &made.envelope)
	if err == nil && !e.IsError {
		err = json.Unmarshal(made.envelope.Result, &made.result)
	}
	if e.IsError || err != nil || made.result.Capabilities == nil {
		m.markFaulty(b, lsp.ReasonProtocolError, "the language server did not return a usable result for initialize: "+abridged(e.Result))
		return
	}
	if used := made.result.encoding(); used != utf16 {
		m.markFaulty(b, lsp.ReasonProtocolError, "the language server counts positions in "+abridged([]byte(used))+
			", but all clients support utf-16 only: remove the option that selects another encoding, such as --offset-encoding")
		return
	}
	b.foldersChange = changesFolders(made.result.Capabilities["workspace"])
	b.pull.offers(made.result.Capabilities[pull], diagnosisOf(made.result.Capabilities))
	if err := made.withoutPull(); err != nil {
		m.log("cannot change the answer of the language server to initialize: " + err.Error())
	}
	m.features.answer = made
	m.features.compare(made.result.Capabilities, m.clients.haveInitialized())
	b.put(wire.NotificationBody("initialized", json.RawMessage("{}")))
	if settings := m.config.Settings; len(settings) > 0 && string(settings) != "null" {
		b.put(wire.NotificationBody("workspace/didChangeConfiguration", wire.Encode(map[string]any{"settings": settings})))
	}
	if b.stopping {
		return // the server is already being stopped
	}
	m.cleared(m.quarantine.due(m.now()))
	// The queue needs no limit for the open documents, because the limits of the clients bound their size.
	b.out.setLimit(0)
	m.emit(m.documents.Replay(m.quarantine.withholds))
	m.quarantine.started(m.now())
	b.out.setLimit(b.out.backlog() + m.options.UnreadBytes)
	b.health.readyAt = m.now()
	m.syncFolders()
	b.filesAt = b.health.readyAt
	m.watchFiles()
	b.health.workAt = b.health.readyAt
	b.health.silence = silence{}
	m.counters.StartupNanos = int64(b.health.readyAt.Sub(b.health.attachedAt))
	m.reason, m.changed = "", true
	// The answer to this ping shows that the server has processed the initialized notification.
	m.request(b, ownPing, methodPing, nil)
	for _, s := range m.clients.sessions {
		if s.stage == initializing {
			m.welcome(s)
		}
	}
	m.pump()
}

func abridged(text []byte) string {
	if len(text) > 300 {
		return strings.ToValidUTF8(string(text[:300]), "") + "…"
	}
	return string(text)
}

// on reports whether a capability is set.
func on(value json.RawMessage) bool {
	text := string(value)
	return text != "" && text != "false" && text != "null"
}

// configurationItems limits the number of items in one workspace/configuration request, and configurationBytes limits the size of the result. The limits are
// needed because a server could request the same settings in any number of items.
const (
	configurationItems = 1000
	configurationBytes = 4 << 20
)

// configuration returns the result of workspace/configuration from the settings of the spec, with null for a section that the settings lack. It returns an
// error if the request exceeds the limits of items or bytes.
func (m *Mux) configuration(params json.RawMessage) (json.RawMessage, error) {
	var p struct {
		Items []struct {
			Section string `json:"section"`
		} `json:"items"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, fmt.Errorf("read the requested items: %w", err)
	}
	if len(p.Items) > configurationItems {
		return nil, fmt.Errorf("%d items of configuration were requested; request at most %d at once", len(p.Items), configurationItems)
	}
	sections := make([]json.RawMessage, 0, len(p.Items))
	known := map[string]json.RawMessage{}
	size := 0
	for _, item := range p.Items {
		found, asked := known[item.Section]
		if !asked {
			found = section(m.config.Settings, item.Section)
			known[item.Section] = found
		}
		if size += len(found); size > configurationBytes {
			return nil, fmt.Errorf("the requested configuration is larger than %d bytes; request fewer sections at once", configurationBytes)
		}
		sections = append(sections, found)
	}
	return wire.Encode(sections), nil
}

// section returns the value at a path such as a.b.c in the settings, or null. The keys of the settings may contain dots themselves.
func section(settings json.RawMessage, path string) json.RawMessage {
	if len(settings) == 0 {
		return wire.Null
	}
	if path == "" {
		return settings
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(settings, &object) != nil {
		return wire.Null
	}
	if value, ok := object[path]; ok {
		return value
	}
	for i := 0; i < len(path); i++ {
		if path[i] != '.' {
			continue
		}
		if value, ok := object[path[:i]]; ok {
			if found := section(value, path[i+1:]); string(found) != "null" {
				return found
			}
		}
	}
	return wire.Null
}

// catchUp sends a new client the registrations and diagnostics that the other clients have received.
func (m *Mux) catchUp(s *session) {
	m.announceTo(s, "client/registerCapability", m.features.registrations)
	for _, p := range m.published {
		m.showTo(p, s)
	}
}
