// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is a timeout that only broken code reaches.
const long = time.Minute

// rpcMessage is one decoded JSON-RPC message.
type rpcMessage struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error,omitempty"`
}

// peer is one end of a connection. received contains the messages in order.
type peer struct {
	Gomega
	out      io.Writer
	received chan rpcMessage
}

func newPeer(g Gomega, in io.Reader, out io.Writer) *peer {
	e := &peer{Gomega: g, out: out, received: make(chan rpcMessage, 1000)}
	go func() {
		defer close(e.received)
		reader := wire.NewReader(in, wire.Limits{BodyBase: -1}, nil)
		for {
			body, err := reader.Read()
			if err != nil {
				return
			}
			var n rpcMessage
			if json.Unmarshal(body, &n) != nil {
				return
			}
			e.received <- n
		}
	}()
	return e
}

func (e *peer) send(format string, args ...any) {
	_, err := e.out.Write(wire.AppendFrame(nil, fmt.Appendf(nil, format, args...)))
	e.Expect(err).NotTo(HaveOccurred())
}

func (e *peer) receive() rpcMessage {
	var n rpcMessage
	e.Eventually(e.received, long).Should(Receive(&n))
	return n
}

func (e *peer) receiveMethod(method string) rpcMessage {
	n := e.receive()
	e.Expect(n.Method).To(Equal(method))
	return n
}

// fixture is a bridge between an editor and successive multiplexers.
type fixture struct {
	Gomega
	t      *testing.T
	editor *peer
	hangUp func() error // closes the input from the editor
	dialed chan net.Conn
	refuse atomic.Bool
	gone   atomic.Bool
	ended  chan error
	cancel context.CancelFunc
}

func newFixture(t *testing.T, change func(*Options)) *fixture {
	t.Helper()
	s := &fixture{Gomega: NewWithT(t), t: t, dialed: make(chan net.Conn), ended: make(chan error, 1)}
	fromEditor, toBridge := io.Pipe()
	fromBridge, toEditor := io.Pipe()
	s.editor = newPeer(s, fromBridge, toBridge)
	s.hangUp = toBridge.Close
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	opts := Options{In: fromEditor, Out: toEditor, Dial: s.dial, Say: t.Logf, Slowest: 20 * time.Millisecond}
	if change != nil {
		change(&opts)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ended <- Run(ctx, opts)
		_ = toEditor.Close()
	}()
	t.Cleanup(func() {
		cancel()
		_ = toBridge.Close()
		_ = fromBridge.Close()
		_ = fromEditor.Close()
		<-done
	})
	return s
}

func (s *fixture) dial(ctx context.Context) (net.Conn, error) {
	if s.gone.Load() {
		return nil, fmt.Errorf("no such object: %w", ErrGone)
	}
	if s.refuse.Load() {
		return nil, errors.New("no multiplexer")
	}
	ours, theirs := net.Pipe()
	select {
	case s.dialed <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// multiplexer accepts the next connection of the bridge.
func (s *fixture) multiplexer() (*peer, net.Conn) {
	s.t.Helper()
	var conn net.Conn
	s.Eventually(s.dialed, long).Should(Receive(&conn))
	s.t.Cleanup(func() { _ = conn.Close() })
	return newPeer(s, conn, conn), conn
}

// newInitializedFixture returns a fixture whose editor has initialized a multiplexer and has one open document, version 7 with the text abXY.
func newInitializedFixture(t *testing.T, change func(*Options)) (*fixture, *peer, net.Conn) {
	s := newFixture(t, change)
	s.editor.send(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"processId":1,"capabilities":{"x":true}}}`)
	mux, conn := s.multiplexer()
	s.Expect(mux.receiveMethod("initialize").ID).To(MatchJSON(`"i"`))
	mux.send(`{"jsonrpc":"2.0","id":"i","result":{"capabilities":{}}}`)
	s.Expect(s.editor.receive().Result).To(MatchJSON(`{"capabilities":{}}`))
	s.editor.send(`{"jsonrpc":"2.0","method":"initialized","params":{}}`)
	s.editor.send(`{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":"file:///a.go","languageId":"go","version":3,"text":"abcd"}}}`)
	s.editor.send(`{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":"file:///b.go","languageId":"go","version":1,"text":""}}}`)
	s.editor.send(`{"jsonrpc":"2.0","method":"textDocument/didChange","params":{"textDocument":{"uri":"file:///a.go","version":7},` +
		`"contentChanges":[{"range":{"start":{"line":0,"character":2},"end":{"line":0,"character":4}},"text":"XY"}]}}`)
	s.editor.send(`{"jsonrpc":"2.0","method":"textDocument/didClose","params":{"textDocument":{"uri":"file:///b.go"}}}`)
	for _, method := range []string{"initialized", "textDocument/didOpen", "textDocument/didOpen", "textDocument/didChange", "textDocument/didClose"} {
		mux.receiveMethod(method)
	}
	return s, mux, conn
}

// acceptReconnect accepts a reconnection and checks that the bridge repeats initialize without involving the editor.
func (s *fixture) acceptReconnect() *peer {
	s.t.Helper()
	mux, _ := s.multiplexer()
	again := mux.receiveMethod("initialize")
	s.Expect(again.Params).To(MatchJSON(`{"processId":1,"capabilities":{"x":true}}`))
	s.Consistently(mux.received, 50*time.Millisecond).ShouldNot(Receive(), "no message may precede the response to initialize")
	mux.send(`{"jsonrpc":"2.0","id":%s,"result":{"capabilities":{"other":1}}}`, again.ID)
	mux.receiveMethod("initialized")
	return mux
}

func TestReconnect_RestoresDocuments(t *testing.T) {
	s, _, conn := newInitializedFixture(t, nil)
	s.Expect(conn.Close()).To(Succeed())
	mux := s.acceptReconnect()
	s.Expect(mux.receiveMethod("textDocument/didOpen").Params).To(MatchJSON(
		`{"textDocument":{"uri":"file:///a.go","languageId":"go","version":7,"text":"abXY"}}`), "the current text of the open document, and no closed documents")
	s.editor.send(`{"jsonrpc":"2.0","id":1,"method":"textDocument/hover","params":{}}`)
	s.Expect(mux.receiveMethod("textDocument/hover").ID).To(MatchJSON("1"))
	mux.send(`{"jsonrpc":"2.0","id":1,"result":"here"}`)
	s.Expect(s.editor.receive().Result).To(MatchJSON(`"here"`), "the editor does not notice the reconnection")
}

func TestReconnect_FailsRequestsInFlight(t *testing.T) {
	s, mux, conn := newInitializedFixture(t, nil)
	s.editor.send(`{"jsonrpc":"2.0","id":5,"method":"textDocument/hover","params":{}}`)
	mux.receiveMethod("textDocument/hover")
	s.Expect(conn.Close()).To(Succeed())
	answer := s.editor.receive()
	s.Expect(answer.ID).To(MatchJSON("5"))
	s.Expect(answer.Error).NotTo(BeNil())
	s.Expect(answer.Error.Code).To(Equal(wire.CodeRequestFailed))
	s.Expect(answer.Error.Data).To(MatchJSON(`{"reason":"Reconnecting","retriable":true,"retryAfterMs":1000}`))
	s.acceptReconnect()
	s.Expect(s.editor.received).NotTo(Receive(), "one response per request")
}

func TestReconnect_CommandsAreNotRetriable(t *testing.T) {
	s, mux, conn := newInitializedFixture(t, nil)
	s.editor.send(`{"jsonrpc":"2.0","id":5,"method":"workspace/executeCommand","params":{"command":"tidy"}}`)
	mux.receiveMethod("workspace/executeCommand")
	s.Expect(conn.Close()).To(Succeed())
	answer := s.editor.receive()
	s.Expect(answer.Error).NotTo(BeNil())
	s.Expect(answer.Error.Data).To(MatchJSON(`{"reason":"Reconnecting","retriable":false,"outcome":"unknown"}`))
	mux = s.acceptReconnect()
	mux.receiveMethod("textDocument/didOpen")
	s.editor.send(`{"jsonrpc":"2.0","id":6,"method":"shutdown"}`)
	mux.receiveMethod("shutdown") // the next request is shutdown: the command was not sent again
}

func TestReadsOnly_ClassifiesMethods(t *testing.T) {
	g := NewWithT(t)
	for method, reads := range map[string]bool{
		"textDocument/hover": true, "workspace/symbol": true, "codeLens/resolve": true, "callHierarchy/incomingCalls": true,
		"workspace/executeCommand": false, "workspace/willRenameFiles": false, "textDocument/willSaveWaitUntil": false, "my/method": false, "reload": false,
	} {
		g.Expect(readsOnly(method)).To(Equal(reads), method)
	}
}

func TestReconnect_SendsQueuedMessagesOnce(t *testing.T) {
	s, _, conn := newInitializedFixture(t, nil)
	s.refuse.Store(true)
	s.Expect(conn.Close()).To(Succeed())
	s.editor.send(`{"jsonrpc":"2.0","method":"textDocument/didChange","params":{"textDocument":{"uri":"file:///a.go","version":8},"contentChanges":[{"text":"new"}]}}`)
	s.editor.send(`{"jsonrpc":"2.0","id":6,"method":"textDocument/hover","params":{}}`)
	s.editor.send(`{"jsonrpc":"2.0","id":7,"method":"textDocument/references","params":{}}`)
	s.editor.send(`{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":7}}`)
	s.refuse.Store(false)

	// The bridge may notice the loss only after some of these messages. Messages that it cannot send fail and are never sent twice.
	mux := s.acceptReconnect()
	s.Expect(mux.receiveMethod("textDocument/didOpen").Params).To(MatchJSON(
		`{"textDocument":{"uri":"file:///a.go","languageId":"go","version":8,"text":"new"}}`))
	s.editor.send(`{"jsonrpc":"2.0","id":8,"method":"last","params":{}}`)
	heard := map[string]bool{}
	for !heard["8"] {
		n := mux.receive()
		s.Expect(n.Method).NotTo(HavePrefix("textDocument/did"), "didOpen already contains the change")
		heard[string(n.ID)] = true
		mux.send(`{"jsonrpc":"2.0","id":%s,"result":null}`, n.ID)
	}
	answered := map[string]int{}
	for range 3 {
		answered[string(s.editor.receive().ID)]++
	}
	s.Expect(answered).To(Equal(map[string]int{"6": 1, "7": 1, "8": 1}))
}

func TestWait_RequestFailsAfterTimeout(t *testing.T) {
	s := newFixture(t, func(o *Options) { o.Wait = 100 * time.Millisecond })
	s.editor.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
	s.editor.send(`{"jsonrpc":"2.0","id":6,"method":"my/method","params":{}}`)
	answer := s.editor.receive()
	s.Expect(answer.ID).To(MatchJSON("6"), "initialize waits as long as the editor does")
	s.Expect(answer.Error).NotTo(BeNil())
	s.Expect(answer.Error.Code).To(Equal(wire.CodeRequestFailed))
	s.Expect(answer.Error.Data).To(ContainSubstring(`"retriable":true`), "the request was never sent")
}

func TestWaitBytes_FailsRequestsBeyondLimit(t *testing.T) {
	s := newFixture(t, func(o *Options) { o.WaitBytes = 200 })
	for id := range 8 {
		s.editor.send(`{"jsonrpc":"2.0","id":%d,"method":"a","params":{"long":"%060d"}}`, 10+id, id)
	}
	for id := range 7 {
		answer := s.editor.receive()
		s.Expect(answer.ID).To(MatchJSON(strconv.Itoa(11 + id)))
		s.Expect(answer.Error).NotTo(BeNil())
		s.Expect(answer.Error.Code).To(Equal(wire.CodeRequestFailed))
	}
}

func TestInitialize_IsRepeatedUntilAnswered(t *testing.T) {
	s := newFixture(t, nil)
	s.refuse.Store(true)
	s.editor.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
	s.refuse.Store(false)
	mux, conn := s.multiplexer()
	mux.receiveMethod("initialize")
	s.Expect(conn.Close()).To(Succeed())

	mux, _ = s.multiplexer()
	s.Expect(mux.receiveMethod("initialize").ID).To(MatchJSON("0"), "initialize is repeated, because the editor has no response yet")
	mux.send(`{"jsonrpc":"2.0","id":0,"result":{}}`)
	s.Expect(s.editor.receive().Result).To(MatchJSON(`{}`))
}

func TestServerRequest_AnswerForOldServerIsDropped(t *testing.T) {
	s, mux, conn := newInitializedFixture(t, nil)
	mux.send(`{"jsonrpc":"2.0","id":1,"method":"workspace/applyEdit","params":{}}`)
	old := s.editor.receiveMethod("workspace/applyEdit")
	s.Expect(conn.Close()).To(Succeed())
	mux = s.acceptReconnect()
	mux.receiveMethod("textDocument/didOpen")
	mux.send(`{"jsonrpc":"2.0","id":1,"method":"workspace/applyEdit","params":{}}`)
	fresh := s.editor.receiveMethod("workspace/applyEdit")
	s.Expect(fresh.ID).NotTo(MatchJSON(string(old.ID)))
	s.editor.send(`{"jsonrpc":"2.0","id":%s,"result":"of the old one"}`, old.ID)
	s.editor.send(`{"jsonrpc":"2.0","id":%s,"result":"of the new one"}`, fresh.ID)
	answer := mux.receive()
	s.Expect(answer.ID).To(MatchJSON("1"))
	s.Expect(answer.Result).To(MatchJSON(`"of the new one"`))
}

func TestRun_EndsWhenObjectIsGone(t *testing.T) {
	s, _, conn := newInitializedFixture(t, nil)
	s.gone.Store(true)
	s.Expect(conn.Close()).To(Succeed())
	var err error
	s.Eventually(s.ended, long).Should(Receive(&err))
	s.Expect(err).To(MatchError(ErrGone))
}

func TestExit_IsForwardedAndEndsRun(t *testing.T) {
	s, mux, _ := newInitializedFixture(t, nil)
	s.editor.send(`{"jsonrpc":"2.0","id":9,"method":"shutdown"}`)
	mux.receiveMethod("shutdown")
	mux.send(`{"jsonrpc":"2.0","id":9,"result":null}`)
	s.editor.receive()
	s.editor.send(`{"jsonrpc":"2.0","method":"exit"}`)
	mux.receiveMethod("exit")
	s.Eventually(s.ended, long).Should(Receive(BeNil()))
}

func TestShutdown_IsAnsweredWithoutServer(t *testing.T) {
	s := newFixture(t, nil)
	s.refuse.Store(true)
	s.editor.send(`{"jsonrpc":"2.0","id":9,"method":"shutdown"}`)
	s.Expect(s.editor.receive().ID).To(MatchJSON("9"))
	s.editor.send(`{"jsonrpc":"2.0","method":"exit"}`)
	s.Eventually(s.ended, long).Should(Receive(BeNil()))
}

func TestEditorHangUp_PendingAnswersAreDelivered(t *testing.T) {
	s, mux, _ := newInitializedFixture(t, nil)
	s.editor.send(`{"jsonrpc":"2.0","id":1,"method":"a"}`)
	mux.receiveMethod("a")
	s.Expect(s.hangUp()).To(Succeed())
	mux.send(`{"jsonrpc":"2.0","id":1,"result":1}`)
	s.Expect(s.editor.receive().Result).To(MatchJSON("1"))
	s.Eventually(s.ended, long).Should(Receive(BeNil()))
}

func TestRun_FailsOnInvalidEditorInput(t *testing.T) {
	s := newFixture(t, nil)
	_, err := s.editor.out.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	s.Expect(err).NotTo(HaveOccurred())
	var ended error
	s.Eventually(s.ended, long).Should(Receive(&ended))
	s.Expect(ended).To(MatchError(ContainSubstring("read from the editor")))
}
