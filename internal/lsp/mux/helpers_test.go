// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(60 * time.Second)
	SetDefaultEventuallyPollingInterval(2 * time.Millisecond)
	goleak.VerifyTestMain(m)
}

// message is a decoded message of any kind.
type message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    detail `json:"data"`
	} `json:"error,omitempty"`
}

// peer is one end of a connection. It records everything that it receives.
type peer struct {
	writing sync.Mutex
	to      io.Writer

	mu     sync.Mutex
	got    []message
	closed bool
	// reply, if set, is called for every message by the reading goroutine.
	reply func(message)
}

func (p *peer) read(from io.Reader) {
	reader := wire.NewReader(from, wire.Limits{}, nil)
	for {
		body, err := reader.Read()
		if err != nil {
			p.mu.Lock()
			p.closed = true
			p.mu.Unlock()
			return
		}
		var got message
		if err := json.Unmarshal(body, &got); err != nil {
			panic(fmt.Sprintf("%v: %s", err, body))
		}
		p.mu.Lock()
		p.got = append(p.got, got)
		p.mu.Unlock()
		if p.reply != nil {
			p.reply(got)
		}
	}
}

func (p *peer) send(text string) {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, _ = p.to.Write(wire.AppendFrame(nil, []byte(text)))
}

func (p *peer) all() []message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

func (p *peer) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// received returns the messages with the method.
func (p *peer) received(method string) []message {
	return slices.DeleteFunc(p.all(), func(m message) bool { return m.Method != method })
}

// answers returns the responses to the ID.
func (p *peer) answers(id string) []message {
	return slices.DeleteFunc(p.all(), func(m message) bool { return m.Method != "" || string(m.ID) != id })
}

// methods returns the methods of all received messages; that of a response is "".
func (p *peer) methods() []string {
	var names []string
	for _, m := range p.all() {
		names = append(names, m.Method)
	}
	return names
}

// clock is a clock that tests advance.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is a mux with a clock that the test controls.
type fixture struct {
	*WithT
	t      *testing.T
	mux    *Mux
	clock  *clock
	urgent chan struct{}
	next   int64
}

func newFixture(t *testing.T, config lsp.Config, more ...func(*Options)) *fixture {
	b := &fixture{WithT: NewWithT(t), t: t, clock: &clock{now: time.Unix(1_700_000_000, 0)}, urgent: make(chan struct{}, 1000)}
	options := Options{
		Config: config, ProcessID: 4711, Now: b.clock.Now,
		Urgent: func() { b.urgent <- struct{}{} },
	}
	for _, change := range more {
		change(&options)
	}
	b.mux = newMux(options)
	t.Cleanup(func() { b.mux.Quit("the test is over") })
	return b
}

// tick advances the clock and calls Tick.
func (b *fixture) tick(d time.Duration) {
	b.clock.step(d)
	b.mux.Tick(b.clock.Now())
}

func (b *fixture) report() lsp.Report {
	var r lsp.Report
	b.mux.Fill(&r)
	return r
}

// fakeServer is a language server in the test process.
type fakeServer struct {
	*peer
	incarnation int64
	stdout      io.Closer
	stdin       io.Closer
}

const fakeResult = `{"capabilities":{"hoverProvider":true,"renameProvider":{}},"serverInfo":{"name":"fake","version":"1"}}`

// attach starts a server that answers initialize with the result, and answers pings. If the result is empty, the server answers neither.
func (b *fixture) attach(result string, more func(*fakeServer, message)) *fakeServer {
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	return b.attachOver(inRead, inWrite, outRead, outWrite, result, more)
}

func (b *fixture) attachOver(
	inRead io.ReadCloser, inWrite io.WriteCloser, outRead io.Reader, outWrite io.WriteCloser, result string, more func(*fakeServer, message),
) *fakeServer {
	b.next++
	s := &fakeServer{peer: &peer{to: outWrite}, incarnation: b.next, stdout: outWrite, stdin: inRead}
	s.reply = func(m message) {
		switch {
		case m.Method == "initialize" && result != "":
			s.answer(m, result)
		case m.Method == methodPing && result != "":
			s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID))
		case m.Method == "shutdown":
			s.answer(m, "null")
		}
		if more != nil {
			more(s, m)
		}
	}
	go s.read(inRead)
	b.mux.Attach(b.next, inWrite, outRead)
	b.t.Cleanup(func() { s.closeStreams() })
	return s
}

// serve calls attach and waits until the server is initialized.
func (b *fixture) serve(more func(*fakeServer, message)) *fakeServer {
	s := b.attach(fakeResult, more)
	b.Eventually(func() bool { return b.report().Initialized }).Should(BeTrue())
	return s
}

func (s *fakeServer) answer(m message, result string) {
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result))
}

// closeStreams closes the streams, as the exit of a process does.
func (s *fakeServer) closeStreams() {
	_ = s.stdout.Close()
	_ = s.stdin.Close()
}

// crash ends the server and reports the crash to the mux.
func (b *fixture) crash(s *fakeServer) {
	s.closeStreams()
	b.mux.Detach(s.incarnation, lsp.Crashed)
}

// stopForRestart ends the server as a requested restart does.
func (b *fixture) stopForRestart(s *fakeServer) {
	b.mux.Hold("Requested")
	s.closeStreams()
	b.mux.Detach(s.incarnation, lsp.Asked)
}

type fakeClient struct {
	*peer
	b    *fixture
	conn net.Conn
}

// connect returns a client that has not sent anything.
func (b *fixture) connect() *fakeClient {
	return b.connectOver(net.Pipe())
}

func (b *fixture) connectOver(ours, theirs net.Conn) *fakeClient {
	c := &fakeClient{peer: &peer{to: ours}, b: b, conn: ours}
	go c.read(ours)
	go b.mux.Serve(theirs)
	b.t.Cleanup(func() { _ = ours.Close() })
	return c
}

const fullCapabilities = `{"window":{"workDoneProgress":true},"workspace":{"codeLens":{"refreshSupport":true},"workspaceEdit":{"documentChanges":true}},"textDocument":{"hover":{"dynamicRegistration":true}}}`

// join returns an initialized client. It blocks until a server has answered initialize.
func (b *fixture) join() *fakeClient { return b.connect().join() }

func (c *fakeClient) join() *fakeClient {
	c.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"processId":1,"capabilities":` + fullCapabilities + `}}`)
	c.b.Eventually(func() int { return len(c.answers(`"init"`)) }).Should(Equal(1))
	c.send(`{"jsonrpc":"2.0","method":"initialized","params":{}}`)
	c.sync()
	return c
}

// sync waits until all messages of the client have been processed.
func (c *fakeClient) sync() {
	c.b.next++
	id := fmt.Sprintf(`"sync%d"`, c.b.next+1_000_000)
	c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"initialize","params":{}}`)
	c.b.Eventually(func() int { return len(c.answers(id)) }).Should(Equal(1))
}

func (c *fakeClient) request(id, method, params string) {
	c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`)
}

func (c *fakeClient) notify(method, params string) {
	c.send(`{"jsonrpc":"2.0","method":"` + method + `","params":` + params + `}`)
}

func (c *fakeClient) openDocument(uri, text string) {
	c.notify("textDocument/didOpen", fmt.Sprintf(`{"textDocument":{"uri":%q,"languageId":"go","version":7,"text":%q}}`, uri, text))
}

// awaitAnswer waits for the only response to an ID.
func (c *fakeClient) awaitAnswer(id string) message {
	c.b.t.Helper()
	c.b.Eventually(func() []message { return c.answers(id) }).Should(HaveLen(1), "answers to "+id)
	return c.answers(id)[0]
}

// await waits for n messages of a method.
func (b *fixture) await(p *peer, method string, n int) message {
	b.t.Helper()
	b.Eventually(func() []message { return p.received(method) }).Should(HaveLen(n), method)
	return p.received(method)[n-1]
}

func hoverParams(uri string) string {
	return fmt.Sprintf(`{"textDocument":{"uri":%q},"position":{"line":1,"character":2}}`, uri)
}
