// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// peer is a server that runs the script on each connection. A script controls every byte, so it can do what no real server does.
type peer struct {
	*fixture
	taken  atomic.Int64 // number of accepted connections
	asked  atomic.Int64
	script func(n int64, conn net.Conn, next func() bool)
}

const hello = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

// newPeer opens the address to a peer. next reads a request and reports whether there was one.
func newPeer(t *testing.T, script func(n int64, conn net.Conn, next func() bool)) *peer {
	t.Helper()
	p := &peer{fixture: newFixture(t, Options{}), script: script}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	p.g.Expect(err).NotTo(HaveOccurred())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.stop() // closes the connections that the scripts wait for
		all.Wait()
	})
	p.g.Expect(p.Open(uid, 1, "http://"+listener.Addr().String())).To(Succeed())
	return p
}

func (p *peer) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	p.script(p.taken.Add(1), conn, func() bool {
		_, err := http.ReadRequest(reader)
		if err == nil {
			p.asked.Add(1)
		}
		return err == nil
	})
}

func (p *peer) pool() *connPool { return p.of(uid).state.Load().backend.wire }

func (p *peer) get() answer { return p.do(http.MethodGet, "/", nil) }

func writeText(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }

func TestConnPool_ReusesConnections(t *testing.T) {
	p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
		for next() {
			writeText(conn, hello)
		}
	})
	for range 10 {
		p.g.Expect(p.get().Body).To(Equal("hello"))
	}
	p.g.Expect(p.taken.Load()).To(BeEquivalentTo(1))

	w := p.pool()
	w.mu.Lock()
	p.g.Expect(w.idle).To(HaveLen(1))
	w.idle[0].since = time.Now().Add(-keepTime)
	w.mu.Unlock()
	p.g.Expect(p.get().Body).To(Equal("hello"))
	p.g.Expect(p.taken.Load()).To(BeEquivalentTo(2), "an idle connection is not reused after keepTime, because the server may close it at any moment")
}

func TestConnPool_ClosesIdleConnections(t *testing.T) {
	closed := make(chan struct{})
	p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
		for next() {
			writeText(conn, hello)
		}
		closed <- struct{}{}
	})
	w := p.pool()
	for name, end := range map[string]func(){
		"idle for keepTime": func() {
			w.mu.Lock()
			w.idle[0].since = time.Now().Add(-keepTime)
			w.mu.Unlock()
			w.expire()
		},
		"the server is about to stop": func() { p.Hold(uid, Reason{}) },
	} {
		p.reopen(w)
		p.g.Expect(p.get().Body).To(Equal("hello"))
		w.expire() // too early
		w.mu.Lock()
		p.g.Expect(w.idle).To(HaveLen(1), name)
		w.mu.Unlock()
		end()
		p.g.Eventually(closed).WithTimeout(long).Should(Receive(), name)
		w.mu.Lock()
		p.g.Expect(w.idle).To(BeEmpty(), name)
		p.g.Expect(w.sweep).To(BeNil(), name)
		w.mu.Unlock()
	}
}

// reopen opens the address to the same server again.
func (p *peer) reopen(w *connPool) { p.g.Expect(p.Open(uid, 1, "http://"+w.address)).To(Succeed()) }

func TestConnPool_HandlesConnectionsClosedByServer(t *testing.T) {
	t.Run("while it is idle", func(t *testing.T) {
		ended := make(chan struct{})
		p := newPeer(t, func(n int64, conn net.Conn, next func() bool) {
			next()
			writeText(conn, hello)
			if n == 1 {
				_ = conn.Close()
				close(ended)
				return
			}
			next()
		})
		p.g.Expect(p.get().Body).To(Equal("hello"))
		<-ended
		p.g.Expect(p.get().Body).To(Equal("hello"))
		p.g.Expect(p.taken.Load()).To(BeEquivalentTo(2))
	})
	t.Run("during a request", func(t *testing.T) {
		p := newPeer(t, func(n int64, conn net.Conn, next func() bool) {
			for i := 0; next() && (n != 1 || i == 0); i++ {
				writeText(conn, hello)
			}
		})
		p.g.Expect(p.get().Body).To(Equal("hello"))
		p.g.Expect(p.get().Body).To(Equal("hello"))
		p.g.Expect(p.taken.Load()).To(BeEquivalentTo(2))
	})
	t.Run("during an answer", func(t *testing.T) {
		p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
			next()
			writeText(conn, hello)
			next()
			writeText(conn, "HTTP/1.1 2")
		})
		p.g.Expect(p.get().Body).To(Equal("hello"))
		p.g.Expect(p.get().Status).To(Equal(http.StatusBadGateway))
		p.g.Expect(p.asked.Load()).To(BeEquivalentTo(2), "a request with an answer that is not HTTP is not repeated")
	})
}

func TestConnPool_DiscardsUnsolicitedResponse(t *testing.T) {
	more, sent := make(chan struct{}), make(chan struct{})
	p := newPeer(t, func(n int64, conn net.Conn, next func() bool) {
		next()
		writeText(conn, hello)
		if n == 1 {
			<-more
			writeText(conn, strings.Replace(hello, "hello", "stray", 1))
			close(sent)
		}
		next()
	})
	p.g.Expect(p.get().Body).To(Equal("hello"))
	close(more)
	<-sent
	p.g.Expect(p.get().Body).To(Equal("hello"))
	p.g.Expect(p.taken.Load()).To(BeEquivalentTo(2))
}

func TestConnPool_ForwardsResponsesOfAllForms(t *testing.T) {
	for name, test := range map[string]struct {
		method, text, body string
		status             int
		kept               bool
	}{
		"length":             {http.MethodGet, hello, "hello", 200, true},
		"nothing":            {http.MethodGet, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", 200, true},
		"no content":         {http.MethodGet, "HTTP/1.1 204 No Content\r\n\r\n", "", 204, true},
		"not modified":       {http.MethodGet, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "", 304, true},
		"head":               {http.MethodHead, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "", 200, true},
		"options":            {http.MethodOptions, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", 200, true},
		"chunks":             {http.MethodGet, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", "hello", 200, true},
		"until its end":      {http.MethodGet, "HTTP/1.1 200 OK\r\n\r\nhello", "hello", 200, false},
		"connection closed":  {http.MethodGet, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, false},
		"HTTP/1.0":           {http.MethodGet, "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, false},
		"too much":           {http.MethodGet, hello + "and more", "hello", 200, false},
		"switched protocols": {http.MethodGet, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", errSwitched.Error(), 502, false},
		"not HTTP":           {http.MethodGet, "SSH-2.0-OpenSSH\r\n", "malformed", 502, false},
		"endless header":     {http.MethodGet, "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", headerRoom) + "\r\n\r\n", errHeader.Error(), 502, false},
		"continue first":     {http.MethodGet, "HTTP/1.1 100 Continue\r\n\r\n" + hello, "hello", 200, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
				for next() {
					writeText(conn, test.text)
					if name == "until its end" {
						return
					}
				}
			})
			for range 2 {
				got := p.do(test.method, "/", nil)
				p.g.Expect(got.Err).NotTo(HaveOccurred())
				p.g.Expect(got.Status).To(Equal(test.status))
				p.g.Expect(got.Body).To(ContainSubstring(test.body))
				p.g.Expect(test.status != 200 || got.Body == test.body).To(BeTrue(), got.Body)
			}
			if test.kept {
				p.g.Expect(p.taken.Load()).To(BeEquivalentTo(1))
			} else {
				p.g.Expect(p.taken.Load()).To(BeNumerically(">", 1))
			}
		})
	}
}

func TestProxy_ForwardsTrailersAndEarlyHints(t *testing.T) {
	p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
		for next() {
			writeText(conn, "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\nHTTP/1.1 200 OK\r\nTrailer: Sum\r\nTransfer-Encoding: chunked\r\n\r\n"+
				"5\r\nhello\r\n0\r\nSum: 42\r\n\r\n")
		}
	})
	var hint string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
		hint = fmt.Sprint(code, header.Get("Link"))
		return nil
	}})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url("/"), nil)
	p.g.Expect(err).NotTo(HaveOccurred())
	response, err := p.client.Do(req)
	p.g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	p.g.Expect(err).NotTo(HaveOccurred())
	p.g.Expect(response.Trailer.Get("Sum")).To(Equal("42"))
	p.g.Expect(hint).To(Equal("103</style.css>"))
}

// Without countermeasures, net/http would guess a Content-Type and send a second 100 Continue.
func TestProxy_AddsNothingToResponse(t *testing.T) {
	f := newFixture(t, Options{})
	f.openServer(1, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // this sends 100 Continue
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "<html>")
	}))
	f.g.Expect(f.do(http.MethodGet, "/", nil).Header).NotTo(HaveKey("Content-Type"))

	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.port))
	f.g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	writeText(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
	answer, err := io.ReadAll(conn)
	f.g.Expect(err).NotTo(HaveOccurred())
	f.g.Expect(string(answer)).To(HavePrefix("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"))
	f.g.Expect(string(answer)).NotTo(ContainSubstring("Content-Type"))
}

// A server that refuses a large body without reading it may close the connection immediately.
func TestProxy_ForwardsRefusalBeforeBody(t *testing.T) {
	p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
		next()
		writeText(conn, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	for range 20 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url("/"), strings.NewReader(strings.Repeat("x", 1<<20)))
		p.g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set("Expect", "100-continue")
		client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: long, DisableKeepAlives: true}}
		response, err := client.Do(req)
		p.g.Expect(err).NotTo(HaveOccurred())
		_ = response.Body.Close()
		p.g.Expect(response.StatusCode).To(Equal(http.StatusExpectationFailed))
	}
}

func TestProxy_ForwardsPartialResponseImmediately(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} { // each method has its own code path
		t.Run(method, func(t *testing.T) {
			rest := make(chan struct{})
			p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
				next()
				writeText(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
				<-rest
				writeText(conn, "world")
				next()
			})
			req, err := http.NewRequestWithContext(t.Context(), method, p.url("/"), nil)
			p.g.Expect(err).NotTo(HaveOccurred())
			response, err := p.client.Do(req)
			p.g.Expect(err).NotTo(HaveOccurred())
			defer func() { _ = response.Body.Close() }()
			p.g.Expect(response.ContentLength).To(BeEquivalentTo(10))
			part := make([]byte, 5)
			_, err = io.ReadFull(response.Body, part)
			p.g.Expect(err).NotTo(HaveOccurred())
			close(rest)
			last, err := io.ReadAll(response.Body)
			p.g.Expect(err).NotTo(HaveOccurred())
			p.g.Expect(string(part) + string(last)).To(Equal("helloworld"))
		})
	}
}

func TestProxy_ClosesConnectionWhenClientLeaves(t *testing.T) {
	for name, begun := range map[string]string{"before the answer": "", "during the answer": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"} {
		t.Run(name, func(t *testing.T) {
			asked, ended := make(chan struct{}), make(chan struct{})
			p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
				next()
				writeText(conn, begun)
				close(asked)
				next()
				close(ended)
			})
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url("/"), nil)
			p.g.Expect(err).NotTo(HaveOccurred())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if response, err := p.client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
			}()
			<-asked
			cancel()
			p.g.Eventually(ended).WithTimeout(long).Should(BeClosed())
			<-gone
			p.g.Expect(p.pool().take()).To(BeNil())
		})
	}
}

func TestConnPool_CarriesOnlyPlainRequests(t *testing.T) {
	g := NewWithT(t)
	b := newBackend(1, &url.URL{Scheme: "http", Host: "127.0.0.1:1"})
	request := func(method string, header ...string) *http.Request {
		req := httptest.NewRequest(method, "http://127.0.0.1:1/", nil)
		for _, name := range header {
			req.Header.Set(name, "x")
		}
		return req
	}
	g.Expect(b.wire.carries(request(http.MethodGet))).To(BeTrue())
	g.Expect(b.wire.carries(request(http.MethodPost))).To(BeFalse())
	g.Expect(b.wire.carries(request(http.MethodGet, "Upgrade"))).To(BeFalse())
	g.Expect(b.wire.carries(request(http.MethodGet, "Expect"))).To(BeFalse())
	g.Expect(newBackend(1, &url.URL{Scheme: "https", Host: "127.0.0.1:1"}).wire.carries(request(http.MethodGet))).To(BeFalse())
}
