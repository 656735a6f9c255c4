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
