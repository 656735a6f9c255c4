// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
)

// long is a timeout that only broken code reaches.
const long = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const uid = types.UID("uid-web")

// fixture is one proxied address with a client.
type fixture struct {
	*Proxies
	g      Gomega
	port   int32
	client *http.Client
	stop   func()
}

func newFixture(t *testing.T, options Options) *fixture {
	t.Helper()
	f := &fixture{Proxies: New(options), g: NewWithT(t), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.Start(ctx)
	}()
	f.stop = sync.OnceFunc(func() {
		f.client.CloseIdleConnections()
		cancel()
		<-ended
	})
	t.Cleanup(f.stop)
	f.port = listenOnFreePort(t, f.Proxies, uid)
	return f
}

var nextPort atomic.Int32

// listenOnFreePort listens on a free port outside the ephemeral range.
func listenOnFreePort(t *testing.T, f *Proxies, uid types.UID) int32 {
	t.Helper()
	for range 2000 {
		port := 11000 + (int32(os.Getpid()%7000)+nextPort.Add(1))%7000
		if err := f.Listen(uid, "devservers/default/web", port); err == nil {
			return port
		}
	}
	t.Fatal("no free port to listen on")
	return 0
}

func (f *fixture) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", f.port, path) }

// answer is the result of a client request.
type answer struct {
	Status int
	Body   string
	Header http.Header
	Err    error
}

func (f *fixture) do(method, path string, body io.Reader) answer {
	req, err := http.NewRequestWithContext(context.Background(), method, f.url(path), body)
	if err != nil {
		return answer{Err: err}
	}
	response, err := f.client.Do(req)
	if err != nil {
		return answer{Err: err}
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return answer{Status: response.StatusCode, Body: string(text), Header: response.Header, Err: err}
}

// startRequest sends a request and returns a channel that receives its answer.
func (f *fixture) startRequest(method, path string, body io.Reader) <-chan answer {
	got := make(chan answer, 1)
	go func() { got <- f.do(method, path, body) }()
	return got
}

func (f *fixture) awaitHeld(n int64) {
	f.g.Eventually(func() int64 { return f.of(uid).waiting.Load() }).WithTimeout(long).Should(Equal(n), "waiting requests")
}

// server answers with its handler, and can be killed like a process: its listener is closed first, and then all of its connections.
type server struct {
	address string
	asked   atomic.Int64
	http    *httptest.Server

	mu    sync.Mutex
	conns map[net.Conn]bool
	block chan struct{}
}

func newServer(t *testing.T, address string, handler http.HandlerFunc) *server {
	t.Helper()
	s := &server{conns: map[net.Conn]bool{}, block: make(chan struct{})}
	var listener net.Listener
	NewWithT(t).Eventually(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}).WithTimeout(long).Should(Succeed())
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		handler(w, r)
	}))
	_ = s.http.Listener.Close()
	s.http.Listener = listener
	s.http.Config.ConnState = func(c net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if state == http.StateClosed || state == http.StateHijacked {
			delete(s.conns, c)
		} else {
			s.conns[c] = true
		}
	}
	s.http.Start()
	s.address = listener.Addr().String()
	t.Cleanup(s.kill)
	return s
}

// kill ends the server as SIGKILL does.
func (s *server) kill() {
	_ = s.http.Listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	select {
	case <-s.block:
	default:
		close(s.block)
	}
	s.mu.Unlock()
	s.http.Close()
}

func respondWith(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// newSilentServer returns a server that accepts requests and never answers.
func newSilentServer(t *testing.T) *server {
	var s *server
	ready := make(chan struct{})
	s = newServer(t, "127.0.0.1:0", func(http.ResponseWriter, *http.Request) {
		<-ready
		<-s.block
		panic(http.ErrAbortHandler)
	})
	close(ready)
	return s
}

func (f *fixture) openServer(incarnation int64, to *server) {
	f.g.Expect(f.Open(uid, incarnation, "http://"+to.address)).To(Succeed())
}

func TestProxy_HoldsRequestsUntilServerIsReady(t *testing.T) {
	f := newFixture(t, Options{})
	var held []<-chan answer
	for range 20 {
		held = append(held, f.startRequest(http.MethodGet, "/", nil), f.startRequest(http.MethodPost, "/", strings.NewReader("x")))
	}
	f.awaitHeld(40)
	f.Hold(uid, Reason{Reason: "BackOff"})
	f.awaitHeld(40)
	f.openServer(1, newServer(t, "127.0.0.1:0", respondWith("one")))
	for _, h := range held {
		f.g.Eventually(h).WithTimeout(long).Should(Receive(HaveField("Body", "one")))
	}
	f.awaitHeld(0)
}

func TestEnd_SendsNothingToEndedIncarnation(t *testing.T) {
	f := newFixture(t, Options{})
	one, two := newServer(t, "127.0.0.1:0", respondWith("one")), newServer(t, "127.0.0.1:0", respondWith("two"))
	f.openServer(1, one)
	f.g.Expect(f.do(http.MethodGet, "/", nil).Body).To(Equal("one"))
	f.End(uid, 1)
	held := f.startRequest(http.MethodPost, "/", strings.NewReader("x"))
	f.awaitHeld(1)
	f.openServer(1, one) // a caller with a stale status
	f.awaitHeld(1)
	f.openServer(2, two)
	f.g.Eventually(held).WithTimeout(long).Should(Receive(HaveField("Body", "two")))
	f.openServer(1, one)
	f.g.Expect(f.do(http.MethodGet, "/", nil).Body).To(Equal("two"))
	f.g.Expect(one.asked.Load()).To(BeEquivalentTo(1))
}

func TestOpen_ReopensIncarnationAfterHold(t *testing.T) {
	f := newFixture(t, Options{})
	one := newServer(t, "127.0.0.1:0", respondWith("one"))
	for range 3 {
		f.openServer(1, one)
		f.g.Expect(f.do(http.MethodGet, "/", nil).Body).To(Equal("one"))
		f.Hold(uid, Reason{Reason: "NotReady"})
		held := f.startRequest(http.MethodGet, "/", nil)
		f.awaitHeld(1)
		f.openServer(1, one)
		f.g.Eventually(held).WithTimeout(long).Should(Receive(HaveField("Body", "one")))
	}
}

func TestEnd_LetsActiveRequestsFinish(t *testing.T) {
	f := newFixture(t, Options{})
	asked, finish := make(chan struct{}), make(chan struct{})
	one := newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-finish
		_, _ = io.WriteString(w, "finished")
	})
	f.openServer(1, one)
	got := f.startRequest(http.MethodPost, "/", strings.NewReader("x"))
	<-asked
	f.End(uid, 1)
	f.Refuse(uid, Reason{Reason: "Stopping"})
	close(finish)
	f.g.Eventually(got).WithTimeout(long).Should(Receive(HaveField("Body", "finished")))
	f.g.Eventually(func() int {
		one.mu.Lock()
		defer one.mu.Unlock()
		return len(one.conns)
	}).WithTimeout(long).Should(BeZero(), "no open connection delays the exit of the server")
}

func TestHold_TimesOutWithReason(t *testing.T) {
	f := newFixture(t, Options{HoldTime: 50 * time.Millisecond})
	f.Hold(uid, Reason{Reason: "NotReady", Message: "it compiles"})
	got := f.do(http.MethodGet, "/", nil)
	f.g.Expect(got.Status).To(Equal(http.StatusServiceUnavailable))
	f.g.Expect(got.Header.Get("Retry-After")).To(Equal("1"))
	f.g.Expect(got.Header.Get(HeaderReason)).To(Equal("NotReady"))
	f.g.Expect(got.Body).To(Equal("devservers/default/web is not available: NotReady: it compiles (the server was not ready in time)\n"))
}

func TestRefuse_AnswersHeldRequestsImmediately(t *testing.T) {
	f := newFixture(t, Options{})
	held := f.startRequest(http.MethodGet, "/", nil)
	f.awaitHeld(1)
	f.Refuse(uid, Reason{Reason: "CircuitOpen", Until: time.Now().Add(time.Hour)})
	var got answer
	f.g.Eventually(held).WithTimeout(long).Should(Receive(&got))
	f.g.Expect(got.Status).To(Equal(http.StatusServiceUnavailable))
	f.g.Expect(got.Header.Get(HeaderReason)).To(Equal("CircuitOpen"))
	f.g.Expect(got.Header.Get("Retry-After")).To(HavePrefix("3"), "one hour in seconds")

	f.Hold(uid, Reason{Reason: "BackOff", Until: time.Now().Add(time.Hour)})
	got = f.do(http.MethodGet, "/", nil)
	f.g.Expect(got.Header.Get(HeaderReason)).To(Equal("BackOff"), "the server cannot be ready within the hold time")
	f.Hold(uid, Reason{Reason: "BackOff", Until: time.Now().Add(time.Second)})
	held = f.startRequest(http.MethodGet, "/", nil)
	f.awaitHeld(1)
	f.openServer(1, newServer(t, "127.0.0.1:0", respondWith("back")))
	f.g.Eventually(held).WithTimeout(long).Should(Receive(HaveField("Body", "back")))
}

func TestHold_LimitsNumberOfRequests(t *testing.T) {
	f := newFixture(t, Options{HoldRequests: 3})
	var held []<-chan answer
	for range 3 {
		held = append(held, f.startRequest(http.MethodGet, "/", nil))
	}
	f.awaitHeld(3)
	got := f.do(http.MethodGet, "/", nil)
	f.g.Expect(got.Status).To(Equal(http.StatusServiceUnavailable))
	f.g.Expect(got.Body).To(ContainSubstring("too many requests are already waiting"))
	f.openServer(1, newServer(t, "127.0.0.1:0", respondWith("one")))
	for _, h := range held {
		f.g.Eventually(h).WithTimeout(long).Should(Receive(HaveField("Body", "one")))
	}
}

func TestHold_EndsWhenClientLeaves(t *testing.T) {
	f := newFixture(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url("/"), nil)
	f.g.Expect(err).NotTo(HaveOccurred())
	ended := make(chan error, 1)
	go func() {
		response, err := f.client.Do(req)
		if err == nil {
			_ = response.Body.Close()
		}
		ended <- err
	}()
	f.awaitHeld(1)
	cancel()
	f.g.Eventually(ended).WithTimeout(long).Should(Receive(MatchError(context.Canceled)))
	f.awaitHeld(0)
}

func TestProxy_RetriesLostSafeRequestsOnce(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		t.Run(method, func(t *testing.T) {
			f := newFixture(t, Options{})
			one := newSilentServer(t)
			f.openServer(1, one)
			got := f.startRequest(method, "/", nil)
			f.g.Eventually(one.asked.Load).WithTimeout(long).Should(BeEquivalentTo(1))
			one.kill()
			f.awaitHeld(1)
			two := newServer(t, "127.0.0.1:0", respondWith("two"))
			f.End(uid, 1)
			f.openServer(2, two)
			f.g.Eventually(got).WithTimeout(long).Should(Receive(And(HaveField("Status", http.StatusOK), HaveField("Err", BeNil()))))
			f.g.Expect(two.asked.Load()).To(BeEquivalentTo(1))
		})
	}
}

func TestProxy_FailsRequestLostTwice(t *testing.T) {
	f := newFixture(t, Options{})
	one, two := newSilentServer(t), newSilentServer(t)
	f.openServer(1, one)
	got := f.startRequest(http.MethodGet, "/", nil)
	f.g.Eventually(one.asked.Load).WithTimeout(long).Should(BeEquivalentTo(1))
	one.kill()
	f.openServer(2, two)
	f.g.Eventually(two.asked.Load).WithTimeout(long).Should(BeEquivalentTo(1))
	two.kill()
	f.g.Eventually(got).WithTimeout(long).Should(Receive(HaveField("Status", http.StatusBadGateway)))
}

func TestProxy_DoesNotRetryUnsafeRequests(t *testing.T) {
	f := newFixture(t, Options{})
	one := newSilentServer(t)
	f.openServer(1, one)
	post := f.startRequest(http.MethodPost, "/", strings.NewReader("x"))
	del := f.startRequest(http.MethodDelete, "/", nil)
	f.g.Eventually(one.asked.Load).WithTimeout(long).Should(BeEquivalentTo(2))
	one.kill()
	for _, lost := range []<-chan answer{post, del} {
		f.g.Eventually(lost).WithTimeout(long).Should(Receive(And(
			HaveField("Status", http.StatusBadGateway), HaveField("Body", ContainSubstring("it is unknown whether the request took effect")))))
	}
}

func TestProxy_HoldsRequestsThatWereNeverSent(t *testing.T) {
	f := newFixture(t, Options{})
	one := newServer(t, "127.0.0.1:0", respondWith("one"))
	f.openServer(1, one)
	one.kill() // the exit has not been observed yet
	var held []<-chan answer
	for range 10 {
		held = append(held, f.startRequest(http.MethodPost, "/", strings.NewReader("x")), f.startRequest(http.MethodGet, "/", nil))
	}
	f.awaitHeld(20)
	f.Hold(uid, Reason{Reason: "Restarting"})
	f.openServer(2, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.MultiReader(r.Body, strings.NewReader("two")))
	}))
	for _, h := range held {
		f.g.Eventually(h).WithTimeout(long).Should(Receive(HaveField("Body", HaveSuffix("two"))))
	}
}

func TestProxy_RetriesServerThatReturnsByItself(t *testing.T) {
	f := newFixture(t, Options{})
	one := newServer(t, "127.0.0.1:0", respondWith("one"))
	f.openServer(1, one)
	one.kill()
	held := f.startRequest(http.MethodPost, "/", strings.NewReader("x"))
	f.awaitHeld(1)
	f.openServer(1, one) // its status is Ready all the time
	again := newServer(t, one.address, respondWith("again"))
	f.g.Eventually(held).WithTimeout(long).Should(Receive(HaveField("Body", "again")))
	f.g.Expect(again.asked.Load()).To(BeEquivalentTo(1))
}

// A server that reloads closes its connections and keeps its listener.
func TestProxy_RetriesGetsDroppedDuringReload(t *testing.T) {
	f := newFixture(t, Options{})
	var reloading atomic.Int64
	one := newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if reloading.Add(-1) < 0 {
			_, _ = io.WriteString(w, "answer")
			return
		}
		if r.URL.Path == "/header" {
			w.Header().Set("Content-Length", "6")
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	})
	f.openServer(1, one)
	for _, path := range []string{"/nothing", "/header"} {
		for drops := range int64(maxDrops) {
			reloading.Store(drops)
			f.g.Expect(f.do(http.MethodGet, path, nil)).To(And(HaveField("Body", "answer"), HaveField("Err", BeNil())), "%s, dropped %d times", path, drops)
		}
	}
}

func TestProxy_LimitsRetriesOfDroppedRequests(t *testing.T) {
	f := newFixture(t, Options{})
	one := newServer(t, "127.0.0.1:0", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	f.openServer(1, one)
	f.g.Expect(f.do(http.MethodGet, "/", nil).Status).To(Equal(http.StatusBadGateway), "without retries for half a minute")
	f.g.Expect(one.asked.Load()).To(BeEquivalentTo(maxDrops))
	f.g.Expect(f.do(http.MethodPost, "/", strings.NewReader("x")).Status).To(Equal(http.StatusBadGateway))
}

func TestProxy_ForwardsRequestsUnchanged(t *testing.T) {
	f := newFixture(t, Options{})
	f.openServer(1, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, r.Method, " ", r.Host, " ", r.RequestURI, " ", r.Header.Get("X-Forwarded-Proto"), " ",
			r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("Accept-Encoding"), " ", string(body))
	}))
	got := f.do(http.MethodPut, "/a%2Fb//c?x=1;y&import", strings.NewReader("body"))
	f.g.Expect(got.Body).To(Equal(fmt.Sprintf("PUT 127.0.0.1:%d /a%%2Fb//c?x=1;y&import http 127.0.0.1 gzip body", f.port)))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url("/"), nil)
	f.g.Expect(err).NotTo(HaveOccurred())
	f.g.Expect(f.Listen(uid, "web", f.port, "app.example")).To(Succeed())
	req.Host = "app.example"
	req.Header.Set("X-Forwarded-Proto", "https")
	req.Header.Set("X-Forwarded-For", "10.1.1.1")
	req.Header.Set("Accept-Encoding", "br")
	response, err := f.client.Do(req)
	f.g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	f.g.Expect(err).NotTo(HaveOccurred())
	f.g.Expect(string(text)).To(Equal("GET app.example / https 10.1.1.1, 127.0.0.1 br "))
}

func TestProxy_ForwardsToTLSServer(t *testing.T) {
	f := newFixture(t, Options{})
	secure := httptest.NewTLSServer(respondWith("secure"))
	t.Cleanup(secure.Close)
	f.g.Expect(f.Open(uid, 1, secure.URL)).To(Succeed())
	f.g.Expect(f.do(http.MethodGet, "/", nil).Body).To(Equal("secure"))
}

func TestProxy_StreamsServerSentEvents(t *testing.T) {
	f := newFixture(t, Options{})
	more := make(chan string)
	f.openServer(1, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for text := range more {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	response := make(chan *http.Response, 1)
	go func() {
		defer close(response)
		if got, err := f.client.Get(f.url("/")); err == nil { //nolint:bodyclose // the receiver closes it
			response <- got
		}
	}()
	more <- "1"
	got := <-response
	f.g.Expect(got).NotTo(BeNil())
	defer func() { _ = got.Body.Close() }()
	lines := bufio.NewScanner(got.Body)
	for _, want := range []string{"1", "2", "3"} {
		if want != "1" {
			more <- want
		}
		f.g.Expect(lines.Scan()).To(BeTrue())
		f.g.Expect(lines.Text()).To(Equal("data: " + want))
		f.g.Expect(lines.Scan()).To(BeTrue())
	}
	close(more)
	f.g.Expect(lines.Scan()).To(BeFalse())
}

// openWebSocket opens a WebSocket and returns the connection.
func (f *fixture) openWebSocket() (net.Conn, *bufio.Reader, error) {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.port))
	if err != nil {
		return nil, nil, err
	}
	_, err = io.WriteString(conn, "GET /hmr HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	reader := bufio.NewReader(conn)
	if err == nil {
		var response *http.Response
		response, err = http.ReadResponse(reader, nil) //nolint:bodyclose // a connection that was upgraded has none
		if err == nil && response.StatusCode != http.StatusSwitchingProtocols {
			err = errors.New(response.Status)
		}
	}
	if err != nil {
		_ = conn.Close()
	}
	return conn, reader, err
}

// echoUpgrade upgrades a connection and echoes its input.
func echoUpgrade(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
	_, _ = io.Copy(conn, rw)
}

func TestProxy_ForwardsWebSockets(t *testing.T) {
	f := newFixture(t, Options{})
	f.openServer(1, newServer(t, "127.0.0.1:0", echoUpgrade))
	conn, reader, err := f.openWebSocket()
	f.g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	for _, word := range []string{"hello\n", "again\n"} {
		_, err = io.WriteString(conn, word)
		f.g.Expect(err).NotTo(HaveOccurred())
		line, err := reader.ReadString('\n')
		f.g.Expect(err).NotTo(HaveOccurred())
		f.g.Expect(line).To(Equal(word))
	}
	// An upgrade during a restart of the server is held.
	f.End(uid, 1)
	connected := make(chan error, 1)
	go func() {
		late, _, err := f.openWebSocket()
		if err == nil {
			_ = late.Close()
		}
		connected <- err
	}()
	f.awaitHeld(1)
	f.openServer(2, newServer(t, "127.0.0.1:0", echoUpgrade))
	f.g.Eventually(connected).WithTimeout(long).Should(Receive(BeNil()))
	// Open connections are closed with the address.
	f.Close(uid)
	_, err = reader.ReadByte()
	f.g.Expect(err).To(HaveOccurred())
}

func TestListen_MovesAndReleasesPort(t *testing.T) {
	f := newFixture(t, Options{})
	f.openServer(1, newServer(t, "127.0.0.1:0", respondWith("one")))
	f.g.Expect(f.Listen(uid, "web", f.port)).To(Succeed(), "it already listens on the port")
	f.g.Expect(f.Listens(uid, f.port)).To(BeTrue())
	f.g.Expect(f.Listen("other", "other", f.port)).To(MatchError(syscall.EADDRINUSE))
	f.g.Expect(f.Listens("other", f.port)).To(BeFalse())

	before := f.port
	f.port = listenOnFreePort(t, f.Proxies, uid)
	f.g.Expect(f.port).NotTo(Equal(before))
	f.g.Expect(f.do(http.MethodGet, "/", nil).Body).To(Equal("one"))
	f.g.Expect(checkPortFree(before)).To(Succeed())

	held := f.port
	f.Close(uid)
	f.g.Expect(checkPortFree(held)).To(Succeed())
	f.Close(uid)
	f.Hold(uid, Reason{})
	f.Refuse(uid, Reason{})
	f.End(uid, 1)
	f.g.Expect(f.Open(uid, 1, "http://127.0.0.1:1")).To(Succeed())
	f.g.Expect(f.Listens(uid, held)).To(BeFalse())
}

func checkPortFree(port int32) error {
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	return listener.Close()
}

func TestShutdown_EndsHeldRequestsAndReleasesPort(t *testing.T) {
	f := newFixture(t, Options{})
	held := f.startRequest(http.MethodGet, "/", nil)
	f.awaitHeld(1)
	f.stop()
	f.g.Eventually(held).WithTimeout(long).Should(Receive(Or(
		HaveField("Status", http.StatusServiceUnavailable), HaveField("Err", Not(BeNil())))))
	f.g.Expect(checkPortFree(f.port)).To(Succeed())
	f.g.Expect(f.Listen(uid, "web", f.port)).To(MatchError(ErrEnded))
}

func TestProxy_LosesNoRequestOverManyRestarts(t *testing.T) {
	f := newFixture(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var asked atomic.Int64
	failures := make(chan string, 1000)
	for range 8 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if got := f.do(http.MethodGet, "/", nil); got.Err != nil || got.Status != http.StatusOK {
					failures <- fmt.Sprintf("%d %v %s", got.Status, got.Err, got.Body)
				}
				asked.Add(1)
			}
		})
	}
	for i := range int64(20) {
		here := newServer(t, "127.0.0.1:0", respondWith("here"))
		f.openServer(i+1, here)
		f.g.Eventually(here.asked.Load).WithTimeout(long).Should(BeNumerically(">=", 50))
		if i%2 == 0 { // a requested restart; in the other rounds the server crashes before Hold
			f.End(uid, i+1)
		}
		here.kill()
		f.Hold(uid, Reason{Reason: "Restarting"})
	}
	f.openServer(100, newServer(t, "127.0.0.1:0", respondWith("last")))
	cancel()
	clients.Wait()
	close(failures)
	for failure := range failures {
		t.Error(failure)
	}
	f.g.Expect(asked.Load()).To(BeNumerically(">=", 1000))
}
