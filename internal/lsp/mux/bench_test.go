// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// relay returns two functions. The first one relays one request and its answer. It empties the queues itself, so that only the relay is measured. The second
// one returns the size of the last answer.
func relay(size int) (once func(), sent func() int) {
	m := newMux(Options{Config: lsp.Config{}})
	b := &backend{
		out: newQueue(0), health: health{readyAt: time.Now(), indexed: true, timedOut: map[string]bool{}}, flight: newFlight(), work: map[string]*work{},
	}
	m.server = b
	s := &session{key: 1, out: newQueue(8 << 20), stage: ready, asked: map[int64]*serverRequest{}}
	m.clients.sessions[document.Session(1)] = s
	question := []byte(`{"jsonrpc":"2.0","id":"client id","method":"textDocument/hover","params":{"textDocument":{"uri":"file:///a.go"},"position":{"line":1,"character":1}}}`)
	filler := strings.Repeat("x", size)
	var asked, answered wire.Envelope
	var toServer, toClient []byte
	body := []byte(nil)
	return func() {
		if err := wire.Scan(question, &asked); err != nil {
			panic(err)
		}
		m.fromClient(s, question, &asked)
		toServer = b.out.take(toServer)
		body = append(body[:0], `{"jsonrpc":"2.0","result":"`...)
		body = append(body, filler...)
		body = append(body, `","id":`...)
		body = strconv.AppendInt(body, b.flight.next, 10)
		body = append(body, '}')
		if err := wire.Scan(body, &answered); err != nil {
			panic(err)
		}
		m.fromServer(b, body, &answered)
		toClient = s.out.take(toClient)
	}, func() int { return len(toClient) }
}

// typing returns a function that changes one of several open documents, as a keystroke does. If answered is true, the server also answers a request for
// diagnostics after each change. Otherwise one request remains unanswered.
func typing(documents int, how diagnosisMethod, answered bool) (once func()) {
	m := newMux(Options{Config: lsp.Config{}})
	b := &backend{
		out: newQueue(0), health: health{readyAt: time.Now(), indexed: true, timedOut: map[string]bool{}}, flight: newFlight(), work: map[string]*work{},
	}
	m.server = b
	b.pull.offers([]byte(`{"interFileDependencies":true}`), how)
	m.documents.Replay(nil)
	s := &session{key: 1, out: newQueue(8 << 20), stage: ready, asked: map[int64]*serverRequest{}}
	m.clients.sessions[document.Session(1)] = s
	var change, answer wire.Envelope
	var toServer, toClient, body []byte
	send := func(text string) {
		if err := wire.Scan([]byte(text), &change); err != nil {
			panic(err)
		}
		m.fromClient(s, []byte(text), &change)
	}
	for i := range documents {
		send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":"file:///src/package/file%d.ts","version":1,"text":""}}}`, i))
	}
	version := 1
	return func() {
		version++
		send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"textDocument/didChange","params":{"textDocument":{"uri":"file:///src/package/file0.ts","version":%d},"contentChanges":[{"text":"%d"}]}}`, version, version))
		if r := b.flight.ofMux(ownPull); answered && r != nil {
			body = fmt.Appendf(body[:0], `{"jsonrpc":"2.0","id":%d,"result":{"kind":"full","items":[]}}`, b.flight.next)
			if err := wire.Scan(body, &answer); err != nil {
				panic(err)
			}
			m.fromServer(b, body, &answer)
		}
		toServer, toClient = drain(b.out, toServer), drain(s.out, toClient)
	}
}

// drain empties a queue. It does not wait for a message, unlike queue.take.
func drain(q *queue, used []byte) []byte {
	q.mu.Lock()
	empty := len(q.pending) == 0
	q.mu.Unlock()
	if empty {
		return used
	}
	return q.take(used)
}

func BenchmarkChangeWithRequestedDiagnostics(b *testing.B) {
	for name, how := range map[string]diagnosisMethod{"pull": byMarker, "conflicts": byTSServer} {
		for _, documents := range []int{1, 100, 1000} {
			b.Run(fmt.Sprint(name, "/", documents), func(b *testing.B) {
				once := typing(documents, how, true)
				b.ReportAllocs()
				for b.Loop() {
					once()
				}
			})
		}
	}
}

// TestChange_TakesSameTimeForManyDocuments compares the fastest of many changes, so that a busy machine does not matter. When each change made a list of all
// documents, the factor was in the thousands.
func TestChange_TakesSameTimeForManyDocuments(t *testing.T) {
	fastest := func(documents int) time.Duration {
		once, best := typing(documents, byMarker, false), time.Hour
		for range 500 {
			begun := time.Now()
			once()
			best = min(best, time.Since(begun))
		}
		return best
	}
	few, many := fastest(10), fastest(2000)
	NewWithT(t).Expect(many).To(BeNumerically("<", 10*few), "10 documents: %s, 2000 documents: %s", few, many)
}

func TestRelayingDoesNotAllocate(t *testing.T) {
	g := NewWithT(t)
	for _, size := range []int{300, 30 << 10} {
		once, sent := relay(size)
		for range 100 {
			once()
		}
		g.Expect(testing.AllocsPerRun(2000, once)).To(BeZero())
		g.Expect(sent()).To(BeNumerically(">", size))
	}
}

func BenchmarkRelay(b *testing.B) {
	for _, size := range []int{300, 30 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			once, _ := relay(size)
			b.ReportAllocs()
			for b.Loop() {
				once()
			}
		})
	}
}
