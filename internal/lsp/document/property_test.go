// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

const (
	sessionCount = 5
	uriCount     = 4
	steps        = 600
)

// server models a strict language server. Its texts consist of UTF-16 units, as those of editors do.
type server struct {
	t        *testing.T
	texts    map[string][]uint16
	versions map[string]int64            // the last version in this incarnation, also of closed documents
	history  map[string]map[int64]string // the text of each version
}

func newServer(t *testing.T) *server {
	return &server{t, map[string][]uint16{}, map[string]int64{}, map[string]map[int64]string{}}
}

func (s *server) receive(told []Notification) {
	s.t.Helper()
	for _, n := range told {
		var p struct {
			TextDocument struct {
				URI, LanguageID string
				Version         int64
				Text            *string
			}
			ContentChanges []event
			Text           *string
		}
		if err := json.Unmarshal(n.Params, &p); err != nil {
			s.t.Fatal(err)
		}
		uri, _ := url.PathUnescape(p.TextDocument.URI)
		text, open := s.texts[uri]
		if open == (n.Method == "textDocument/didOpen") {
			s.t.Fatalf("%s of %s, which is open: %v", n.Method, uri, open)
		}
		switch n.Method {
		case "textDocument/didOpen":
			if p.TextDocument.LanguageID != "go" {
				s.t.Fatalf("language %q", p.TextDocument.LanguageID)
			}
			s.set(uri, p.TextDocument.Version, utf16.Encode([]rune(*p.TextDocument.Text)))
		case "textDocument/didChange":
			if len(p.ContentChanges) == 0 {
				s.t.Fatal("didChange without a change")
			}
			for _, change := range p.ContentChanges {
				text = applyEdit(text, change, serverLineEnd)
			}
			s.set(uri, p.TextDocument.Version, text)
		case "textDocument/didSave":
			if p.Text != nil && *p.Text != s.text(uri) {
				s.t.Fatalf("saved %q, has %q", *p.Text, s.text(uri))
			}
		case "textDocument/didClose":
			delete(s.texts, uri)
		default:
			s.t.Fatal(n.Method)
		}
	}
}

func (s *server) set(uri string, version int64, text []uint16) {
	s.t.Helper()
	if version <= s.versions[uri] {
		s.t.Fatalf("version %d of %s after %d", version, uri, s.versions[uri])
	}
	s.versions[uri], s.texts[uri] = version, text
	if s.history[uri] == nil {
		s.history[uri] = map[int64]string{}
	}
	s.history[uri][version] = s.text(uri)
}

func (s *server) text(uri string) string { return string(utf16.Decode(s.texts[uri])) }

// editorLineEnd matches the line endings that editors use. serverLineEnd matches those of a server that does not treat a single \r as a line ending.
var (
	editorLineEnd = regexp.MustCompile("\r\n|\r|\n")
	serverLineEnd = regexp.MustCompile("\r?\n")
)

// lineStarts returns the index of the first unit of each line.
func lineStarts(text []uint16, end *regexp.Regexp) []int {
	flat := make([]byte, len(text)) // one byte per unit
	for i, unit := range text {
		flat[i] = 'x'
		if unit == '\r' || unit == '\n' {
			flat[i] = byte(unit)
		}
	}
	starts := []int{0}
	for _, found := range end.FindAllIndex(flat, -1) {
		starts = append(starts, found[1])
	}
	return starts
}

// applyEdit applies one change as an editor does. It shares no code with apply.
func applyEdit(text []uint16, change event, end *regexp.Regexp) []uint16 {
	inserted := utf16.Encode([]rune(change.Text))
	if change.Range == nil {
		return inserted
	}
	starts := lineStarts(text, end)
	from := starts[change.Range.Start.Line] + change.Range.Start.Character
	to := starts[change.Range.End.Line] + change.Range.End.Character
	return slices.Concat(text[:from], inserted, text[to:])
}

// world consists of clients, a server, and the set between them.
type world struct {
	t       *testing.T
	random  *rand.Rand
	set     *Set
	server  *server
	clients [sessionCount]map[string]string // the open documents of each client
	disk    map[string]string               // the saved text of each open document
	kept    map[string]bool                 // documents in quarantine
	author  map[string]int                  // the client that opened, changed or saved a document last
	told    [sessionCount]map[string]bool   // the documents for whose text each client has received diagnostics
	down    bool
}

// FuzzViews performs a few hundred random operations on documents. The seed determines the operations.
func FuzzViews(f *testing.F) {
	for seed := range uint64(24) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		t.Logf("seed %d", seed)
		w := &world{t: t, random: rand.New(rand.NewPCG(seed, 0)), set: NewSet(Limits{}), server: newServer(t), disk: map[string]string{}, kept: map[string]bool{}, author: map[string]int{}}
		for i := range w.clients {
			w.clients[i], w.told[i] = map[string]string{}, map[string]bool{}
		}
		for range steps {
			w.step()
			w.check()
		}
		w.replay()
		w.checkDiagnosticsArrive()
		for i := range w.clients {
			w.drop(i)
			w.check()
		}
		if documents, bytes, _ := w.set.Stats(); documents != 0 || bytes != 0 || len(w.server.texts) != 0 || len(w.set.sessions) != 0 || len(w.set.unsettled)+len(w.set.undelivered) != 0 {
			t.Fatalf("left: %d documents, %d bytes, the server has %v", documents, bytes, w.server.texts)
		}
	})
}

func (w *world) step() {
	i, uri := w.random.IntN(sessionCount), fmt.Sprintf("file:///w/a+b%d.go", w.random.IntN(uriCount))
	_, holds := w.clients[i][uri]
	switch dice := w.random.IntN(100); {
	case dice < 20 && !holds:
		w.open(i, uri)
	case dice < 50 && holds:
		w.change(i, uri)
	case dice < 55 && holds:
		w.save(i, uri)
	case dice < 62:
		w.close(i, uri)
	case dice < 63:
		w.drop(i)
	case dice < 64:
		w.set.Detach()
		w.server, w.down = newServer(w.t), true
		w.nothingTold()
	case dice < 67 && (w.down || dice == 66):
		w.replay()
	case dice < 74:
		w.publish(uri)
	case dice < 80:
		w.checkViewOne(i, uri)
	case dice < 88:
		w.checkRestore()
	default:
		w.checkView(i, uri)
	}
}

func (w *world) deliver(told []Notification) {
	w.t.Helper()
	if w.down && len(told) > 0 {
		w.t.Fatalf("got the notifications %v while no server is attached", told)
	}
	w.server.receive(told)
}

// clientSpelling returns the URI in the spelling that client i uses.
func clientSpelling(i int, uri string) string {
	if i%2 == 0 {
		return strings.ReplaceAll(uri, "+", "%2B")
	}
	return uri
}

func (w *world) randomText() string {
	parts := []string{"", "a", "ä", "日", "😀", "\n", "\r\n", "line\n", "<&>", "\"\\", "\r"}
	var text strings.Builder
	for range w.random.IntN(6) {
		text.WriteString(parts[w.random.IntN(len(parts))])
	}
	return text.String()
}

func (w *world) holders(uri string) (n int) {
	for _, client := range w.clients {
		if _, ok := client[uri]; ok {
			n++
		}
	}
	return n
}

func (w *world) open(i int, uri string) {
	text := w.randomText()
	if disk, ok := w.disk[uri]; ok && w.random.IntN(3) > 0 {
		text = disk
	}
	told, err := w.set.Open(Session(i), clientSpelling(i, uri), "go", w.random.Int64N(9), text)
	if err != nil {
		w.t.Fatal(err)
	}
	w.clients[i][uri], w.disk[uri], w.author[uri] = text, text, i
	delete(w.told[i], uri)
	w.deliver(told)
}

// change edits the document of one client at random places.
func (w *world) change(i int, uri string) {
	var changes []json.RawMessage
	units := utf16.Encode([]rune(w.clients[i][uri]))
	for range 1 + w.random.IntN(3) {
		change := event{Text: w.randomText()}
		if w.random.IntN(6) > 0 {
			starts := lineStarts(units, editorLineEnd)
			from, to := w.randomOffset(units), w.randomOffset(units)
			if from > to {
				from, to = to, from
			}
			change.Range = &span{toPosition(starts, from), toPosition(starts, to)}
		}
		raw, err := json.Marshal(change)
		if err != nil {
			w.t.Fatal(err)
		}
		changes = append(changes, raw)
		units = applyEdit(units, change, editorLineEnd)
	}
	told, err := w.set.Change(Session(i), clientSpelling(i, uri), 5, changes)
	if err != nil {
		w.t.Fatal(err)
	}
	if text := string(utf16.Decode(units)); text != w.clients[i][uri] {
		w.clients[i][uri], w.author[uri] = text, i
		delete(w.told[i], uri)
	}
	w.deliver(told)
}

// randomOffset returns a random position that an editor can address: not within a surrogate pair, not between \r and \n.
func (w *world) randomOffset(units []uint16) int {
	at := w.random.IntN(len(units) + 1)
	if at > 0 && at < len(units) && (utf16.IsSurrogate(rune(units[at])) && units[at] >= 0xdc00 || units[at-1] == '\r' && units[at] == '\n') {
		at--
	}
	return at
}

func toPosition(starts []int, at int) position {
	line := len(starts) - 1
	for starts[line] > at {
		line--
	}
	return position{line, at - starts[line]}
}

func (w *world) save(i int, uri string) {
	text := w.clients[i][uri]
	told := w.set.Save(Session(i), clientSpelling(i, uri), &text)
	w.disk[uri], w.author[uri] = text, i
	w.deliver(told)
	if !w.down && !w.kept[uri] && w.server.text(uri) != text {
		w.t.Fatalf("saved %q, the server has %q", text, w.server.text(uri))
	}
}

func (w *world) close(i int, uri string) {
	told := w.set.Close(Session(i), clientSpelling(i, uri))
	delete(w.clients[i], uri)
	delete(w.told[i], uri)
	w.forget()
	w.deliver(told)
}

func (w *world) drop(i int) {
	told := w.set.Drop(Session(i))
	clear(w.clients[i])
	clear(w.told[i])
	w.forget()
	w.deliver(told)
}

// forget removes documents that no client has open, and authors that have closed their document.
func (w *world) forget() {
	for uri, author := range w.author {
		if _, holds := w.clients[author][uri]; holds {
			continue
		}
		delete(w.author, uri) // any other client may succeed
	}
	for uri := range w.disk {
		if w.holders(uri) == 0 {
			delete(w.disk, uri)
			delete(w.kept, uri)
		}
	}
}

func (w *world) replay() {
	w.server, w.down = newServer(w.t), false
	w.nothingTold()
	clear(w.kept)
	w.deliver(w.set.Replay(func(uri string) bool {
		uri, _ = url.PathUnescape(uri)
		w.kept[uri] = w.random.IntN(8) == 0
		return w.kept[uri]
	}))
	for uri := range w.disk {
		if _, open := w.server.texts[uri]; open == w.kept[uri] || open && w.server.versions[uri] != 1 {
			w.t.Fatalf("%s after the replay: open %v, version %d", uri, open, w.server.versions[uri])
		}
	}
}

// checkView checks the invariant: before a request of a client is sent, the server has the texts of that client, and no unsaved text of other clients.
func (w *world) checkView(i int, uri string) {
	w.deliver(w.set.View(Session(i), clientSpelling(i, uri)))
	if w.down {
		return
	}
	for uri := range w.disk {
		text, holds := w.clients[i][uri]
		_, open := w.server.texts[uri]
		has := w.server.text(uri)
		switch {
		case w.kept[uri]:
		case holds && (!open || has != text):
			w.t.Fatalf("client %d has %q of %s, the server has %q (open: %v)", i, text, uri, has, open)
		case !holds && open && has != w.disk[uri]:
			w.t.Fatalf("client %d has not opened %s, on disk is %q, the server has %q", i, uri, w.disk[uri], has)
		case holds:
			version := w.server.versions[uri]
			if sessions, all := w.set.Published(uri, &version); !all && !slices.Contains(sessions, Session(i)) {
				w.t.Fatalf("client %d does not see the diagnostics of its text", i)
			}
		}
	}
}

// checkViewOne checks that a question about one document switches only this document.
func (w *world) checkViewOne(i int, uri string) {
	before := map[string]string{}
	for other := range w.server.texts {
		before[other] = w.server.text(other)
	}
	w.deliver(w.set.ViewOne(Session(i), clientSpelling(i, uri)))
	for other, text := range before {
		if other != uri && w.server.text(other) != text {
			w.t.Fatalf("a question about %s changed %s", uri, other)
		}
	}
	if text, holds := w.clients[i][uri]; holds && !w.down && !w.kept[uri] && w.server.text(uri) != text {
		w.t.Fatalf("client %d has %q of %s, the server has %q", i, text, uri, w.server.text(uri))
	}
}

func (w *world) nothingTold() {
	for i := range w.told {
		clear(w.told[i])
	}
}

// publish sends the diagnostics of the server's text of a document. It reports whether there are any.
func (w *world) publish(uri string) bool {
	version, open := w.server.versions[uri], false
	if _, open = w.server.texts[uri]; !open || w.down {
		return false
	}
	sessions, all := w.set.Published(uri, &version)
	for i, client := range w.clients {
		if _, holds := client[uri]; holds && (all || slices.Contains(sessions, Session(i))) {
			w.told[i][uri] = true
		}
	}
	w.set.Delivered(uri, &version)
	return true
}

// checkDiagnosticsArrive checks that each client receives the diagnostics of its text when nothing else happens, and that the server then has the texts of the
// authors and changes no more.
func (w *world) checkDiagnosticsArrive() {
	for range 4 * sessionCount {
		for uri := range w.disk {
			w.publish(uri)
		}
		w.deliver(w.set.Restore())
	}
	for i, client := range w.clients {
		for uri, text := range client {
			if !w.kept[uri] && !w.told[i][uri] {
				w.t.Fatalf("client %d has %q of %s, and has received no diagnostics for it", i, text, uri)
			}
		}
	}
	w.checkRestore()
	if told := w.set.Restore(); len(told) > 0 || w.set.Awaits() {
		w.t.Fatalf("Restore returns %v although all diagnostics are delivered", told)
	}
}

// checkRestore checks that the server has the text of the author of each document, or a text whose diagnostics are due.
func (w *world) checkRestore() {
	w.deliver(w.set.Restore())
	if w.down {
		return
	}
	for uri := range w.disk {
		author, known := w.author[uri]
		if text := w.clients[author][uri]; known && !w.kept[uri] && w.server.text(uri) != text && !w.due(uri) {
			w.t.Fatalf("client %d wrote %q of %s last, the server has %q", author, text, uri, w.server.text(uri))
		}
		if _, open := w.server.texts[uri]; open == w.kept[uri] {
			w.t.Fatalf("%s is open at the server: %v", uri, open)
		}
	}
}

// due reports whether the server has the text of a client that has not received its diagnostics, and the author has.
func (w *world) due(uri string) bool {
	for i, client := range w.clients {
		if text, holds := client[uri]; holds && text == w.server.text(uri) && !w.told[i][uri] {
			return w.told[w.author[uri]][uri]
		}
	}
	return false
}

func (w *world) check() {
	for n := range uriCount {
		uri := fmt.Sprintf("file:///w/a+b%d.go", n)
		if _, open := w.server.texts[uri]; open && (w.holders(uri) == 0 || w.kept[uri]) {
			w.t.Fatalf("%s is open at the server, held by %d", uri, w.holders(uri))
		}
		for i, client := range w.clients {
			if _, holds := client[uri]; w.set.Holds(Session(i), uri) != holds {
				w.t.Fatalf("client %d holds %s: %v", i, uri, holds)
			}
		}
		for version, text := range w.server.history[uri] {
			w.checkPublished(uri, version, text)
		}
	}
	if documents, _, _ := w.set.Stats(); documents != len(w.disk) || len(w.set.URIs()) != documents {
		w.t.Fatalf("%d documents, want %d", documents, len(w.disk))
	}
}

// checkPublished checks that a client sees diagnostics only if it has the text that they describe.
func (w *world) checkPublished(uri string, version int64, text string) {
	if w.holders(uri) == 0 {
		return
	}
	sessions, all := w.set.Published(uri, &version)
	for i, client := range w.clients {
		has, holds := client[uri]
		if !holds {
			has = w.disk[uri]
		}
		if (all || slices.Contains(sessions, Session(i))) && has != text {
			w.t.Fatalf("client %d has %q of %s, and sees diagnostics of %q", i, has, uri, text)
		}
	}
}
