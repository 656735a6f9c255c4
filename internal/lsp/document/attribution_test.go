// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// lateServer publishes the diagnostics of each text some time after it has received the text, and does not state the version.
type lateServer struct {
	*server
	random  *rand.Rand
	pending []publication
}

type publication struct {
	at   time.Time
	text string
}

// attributed consists of sessions with one document, and a server that does not state versions.
type attributed struct {
	t      *testing.T
	set    *Set
	server lateServer
	now    time.Time
	texts  map[Session]string
	had    map[Session]map[string]bool // all texts that the session has had
	shown  map[Session]string          // the text of the newest diagnostics that the session has received
	made   int
}

func (a *attributed) deliver(told []Notification, err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
	a.server.receive(told)
	for _, n := range told {
		if !a.set.IsOpen(file) { // a server sends nothing for a document that was closed
			a.server.pending = nil
		}
		if n.Method == "textDocument/didOpen" || n.Method == "textDocument/didChange" {
			at := a.now.Add(time.Duration(a.server.random.IntN(400)) * time.Millisecond)
			if n := len(a.server.pending); n > 0 && at.Before(a.server.pending[n-1].at) {
				at = a.server.pending[n-1].at
			}
			a.server.pending = append(a.server.pending, publication{at, strings.TrimSuffix(a.server.text(file), "\n")})
		}
	}
}

// pass lets time pass, and the server publish what is due.
func (a *attributed) pass(d time.Duration) {
	a.t.Helper()
	for end := a.now.Add(d); a.now.Before(end); {
		a.now = a.now.Add(50 * time.Millisecond)
		a.set.SetTime(a.now)
		a.deliver(a.set.Recheck(), nil)
		a.deliver(a.set.Restore(), nil)
		kept := a.server.pending[:0]
		for _, p := range a.server.pending {
			if p.at.After(a.now) {
				kept = append(kept, p)
				continue
			}
			sessions, all := a.set.Published(file, nil)
			if all {
				sessions = slices.Collect(maps.Keys(a.texts))
			}
			for _, s := range sessions {
				if !a.had[s][p.text] {
					a.t.Fatalf("session %d receives the diagnostics of %q, which it never had", s, p.text)
				}
				a.shown[s] = p.text
			}
			a.set.Delivered(file, nil)
		}
		a.server.pending = kept
	}
}

func (a *attributed) newText(s Session) string {
	a.made++
	text := fmt.Sprintf("text %d of %d", a.made, s)
	a.texts[s] = text
	if a.had[s] == nil {
		a.had[s] = map[string]bool{}
	}
	a.had[s][text] = true
	return text
}

func (a *attributed) step() {
	s := Session(1 + a.server.random.IntN(3))
	_, open := a.texts[s]
	switch dice := a.server.random.IntN(10); {
	case !open && dice < 3:
		a.deliver(a.set.Open(s, file, "go", 1, a.newText(s)))
	case open && dice < 6:
		change, _ := json.Marshal(event{Text: a.newText(s)})
		a.deliver(a.set.Change(s, file, int64(a.made), []json.RawMessage{change}))
	case open && dice < 7:
		a.deliver(a.set.Close(s, file), nil)
		delete(a.texts, s)
		delete(a.shown, s)
	case dice < 8:
		a.deliver(a.set.ViewOne(s, file), nil)
	case dice < 9:
		a.deliver(a.set.View(s, file), nil)
	}
}

// A session never receives diagnostics of a text that only another session has had. When nothing else happens, each session receives those of its text.
func FuzzAttribution(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 1))
		a := &attributed{
			t: t, set: NewSet(Limits{}), server: lateServer{server: newServer(t), random: random}, now: time.Unix(1_700_000_000, 0),
			texts: map[Session]string{}, had: map[Session]map[string]bool{}, shown: map[Session]string{},
		}
		a.set.SetTime(a.now)
		for round := range 40 {
			for range random.IntN(10) {
				a.step()
				a.pass(time.Duration(random.IntN(500)) * time.Millisecond)
			}
			a.pass(40 * time.Second)
			for s, text := range a.texts {
				if a.shown[s] != text {
					t.Fatalf("round %d: session %d has %q, and has received the diagnostics of %q", round, s, text, a.shown[s])
				}
			}
			if a.set.Awaits() || a.set.Unattributed() {
				t.Fatalf("round %d: the document is not settled", round)
			}
		}
	})
}
