// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
)

// effectCounter counts the commands that servers have executed, by the text of the parameters.
type effectCounter struct {
	mu   sync.Mutex
	done map[string]int
}

func (l *effectCounter) add(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[what]++
}

// answerRandomly answers most requests with their own parameters and leaves some unanswered. It records the requests that have effects.
func (l *effectCounter) answerRandomly(s *fakeServer, m message) {
	if m.ID == nil || m.Method == "initialize" || m.Method == methodPing || m.Method == "shutdown" {
		return
	}
	if m.Method == "workspace/executeCommand" || m.Method == "vendor/thing" {
		l.add(string(m.Params))
	}
	if rand.IntN(10) > 0 {
		s.answer(m, string(m.Params))
	}
}

// TestEachRequestIsAnsweredOnce runs 20 clients that send random requests while servers crash and restart.
func TestEachRequestIsAnsweredOnce(t *testing.T) {
	const clients, requests, incarnations = 20, 60, 15
	effects := effectCounter{done: map[string]int{}}
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{InFlight: 4}})
	s := b.serve(effects.answerRandomly)
	methods := []string{"textDocument/hover", "textDocument/definition", "workspace/executeCommand", "completionItem/resolve", "vendor/thing",
		"textDocument/references"}
	peers := make([]*fakeClient, clients)
	for i := range peers {
		peers[i] = b.join()
	}
	var asking sync.WaitGroup
	for i, c := range peers {
		asking.Go(func() {
			uri := fmt.Sprintf("file:///%d.go", i%5)
			for n := range requests {
				switch rand.IntN(8) {
				case 0:
					c.openDocument(uri, fmt.Sprintf("text %d", rand.IntN(3)))
				case 1:
					c.notify("textDocument/didClose", fmt.Sprintf(`{"textDocument":{"uri":%q}}`, uri))
				case 2:
					c.notify("$/cancelRequest", fmt.Sprintf(`{"id":%d}`, rand.IntN(n+1)))
				}
				c.request(fmt.Sprint(n), methods[rand.IntN(len(methods))],
					fmt.Sprintf(`{"textDocument":{"uri":%q},"workDoneToken":%d,"who":"%d/%d"}`, uri, n, i, n))
				// Wait for earlier answers, so that several servers start and crash while the requests are sent.
				if n%8 == 7 {
					b.Eventually(func() int { return len(countAnswers(c)) }).Should(BeNumerically(">=", n-30))
				}
			}
		})
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			if n%2 == 0 {
				b.crash(s)
			} else {
				b.stopForRestart(s)
			}
			b.tick(time.Second)
			s = b.serve(effects.answerRandomly)
			for range 3 {
				b.tick(time.Second)
			}
			select {
			case <-stop:
				if n >= incarnations {
					return
				}
			default:
			}
		}
	}()
	asking.Wait()
	close(stop)
	<-stopped
	// Requests that the last server does not answer time out.
	b.Eventually(func() bool {
		b.tick(10 * time.Second)
		for _, c := range peers {
			if len(countAnswers(c)) < requests {
				return false
			}
		}
		return true
	}).Should(BeTrue())
	for i, c := range peers {
		c.sync()
		for id, times := range countAnswers(c) {
			b.Expect(times).To(Equal(1), "client %d, request %s", i, id)
		}
		for _, m := range c.all() {
			b.Expect(m.Method != "" || m.Error != nil || strings.Contains(string(m.Result), fmt.Sprintf(`"who":"%d/%s"`, i, m.ID)) || string(m.ID) == `"init"`).
				To(BeTrue(), "client %d got the response to another request: %s %s", i, m.ID, m.Result)
		}
	}
	for what, times := range effects.done {
		b.Expect(times).To(Equal(1), what)
	}
	b.Expect(effects.done).NotTo(BeEmpty())
	r := b.report()
	b.Expect(r.InFlight).To(BeZero())
	b.Expect(r.Held).To(BeZero())
	b.Expect(r.Counters.Replayed).NotTo(BeZero())
	b.mux.lock()
	defer b.mux.unlock()
	b.Expect(b.mux.waiting.list).To(BeEmpty())
	b.Expect(b.mux.server.flight.tokens).To(BeEmpty())
	for _, s := range b.mux.clients.sessions {
		b.Expect(s.open).To(BeEmpty())
		b.Expect([]int{s.inFlight, s.waiting, s.waitingBytes}).To(Equal([]int{0, 0, 0}))
	}
}

// countAnswers counts the answers to each numbered request.
func countAnswers(c *fakeClient) map[string]int {
	times := map[string]int{}
	for _, m := range c.all() {
		if m.Method == "" && len(m.ID) > 0 && m.ID[0] != '"' {
			times[string(m.ID)]++
		}
	}
	return times
}
