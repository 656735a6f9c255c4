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

// stage is one proxied address with a client.
type stage struct {
	*Proxies
	g      Gomega
	port   int32
	client *http.Client
	stop   func()
}

func newStage(t *testing.T, options Options) *stage {
	t.Helper()
	s := &stage{Proxies: New(options), g: NewWithT(t), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Start(ctx)
	}()
	s.stop = sync.OnceFunc(func() {
		s.client.CloseIdleConnections()
		cancel()
		<-ended
	})
	t.Cleanup(s.stop)
	s.port = listenSomewhere(t, s.Proxies, uid)
	return s
}

var nextPort atomic.Int32

// listenSomewhere listens on a free port outside the ephemeral range.
func listenSomewhere(t *testing.T, f *Proxies, uid types.UID) int32 {
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

func (s *stage) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", s.port, path) }

// answer is the result of a client request.
type answer struct {
	Status int
	Body   string
	Header http.Header
	Err    error
}

func (s *stage) do(method, path string, body io.Reader) answer {
	req, err := http.NewRequestWithContext(context.Background(), method, s.url(path), body)
	if err != nil {
		return answer{Err: err}
	}
	response, err := s.client.Do(req)
	if err != nil {
		return answer{Err: err}
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return answer{Status: response.StatusCode, Body: string(text), Header: response.Header, Err: err}
}

// begin sends a request and returns a channel that receives its answer.
func (s *stage) begin(method, path string, body io.Reader) <-chan answer {
	got := make(chan answer, 1)
	go func() { got <- s.do(method, path, body) }()
	return got
}

func (s *stage) waits(n int64) {
	s.g.Eventually(func() int64 { return s.of(uid).waiting.Load() }).WithTimeout(long).Should(Equal(n), "waiting requests")
}

// server answers with its handler, and can die as a process does: its listener is closed first, and then all of its connections.
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
	t.Cleanup(s.die)
	return s
}

// die ends the server as SIGKILL does.
func (s *server) die() {
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

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// swallows returns a server that accepts requests and never answers.
func swallows(t *testing.T) *server {
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

func (s *stage) open(incarnation int64, to *server) {
	s.g.Expect(s.Open(uid, incarnation, "http://"+to.address)).To(Succeed())
}

func TestRequestsAreHeldUntilTheServerIsReady(t *testing.T) {
	s := newStage(t, Options{})
	var held []<-chan answer
	for range 20 {
		held = append(held, s.begin(http.MethodGet, "/", nil), s.begin(http.MethodPost, "/", strings.NewReader("x")))
	}
	s.waits(40)
	s.Hold(uid, Reason{Reason: "BackOff"})
	s.waits(40)
	s.open(1, newServer(t, "127.0.0.1:0", says("one")))
	for _, h := range held {
		s.g.Eventually(h).WithTimeout(long).Should(Receive(HaveField("Body", "one")))
	}
	s.waits(0)
}

func TestNothingIsSentToWhatIsBeingEnded(t *testing.T) {
	s := newStage(t, Options{})
	one, two := newServer(t, "127.0.0.1:0", says("one")), newServer(t, "127.0.0.1:0", says("two"))
	s.open(1, one)
	s.g.Expect(s.do(http.MethodGet, "/", nil).Body).To(Equal("one"))
	s.End(uid, 1)
	held := s.begin(http.MethodPost, "/", strings.NewReader("x"))
	s.waits(1)
	s.open(1, one) // a caller with a stale status
	s.waits(1)
	s.open(2, two)
	s.g.Eventually(held).WithTimeout(long).Should(Receive(HaveField("Body", "two")))
	s.open(1, one)
	s.g.Expect(s.do(http.MethodGet, "/", nil).Body).To(Equal("two"))
	s.g.Expect(one.asked.Load()).To(BeEquivalentTo(1))
}

func TestAnIncarnationMayComeAgainUntilItIsEnded(t *testing.T) {
	s := newStage(t, Options{})
	one := newServer(t, "127.0.0.1:0", says("one"))
	for range 3 {
		s.open(1, one)
		s.g.Expect(s.do(http.MethodGet, "/", nil).Body).To(Equal("one"))
		s.Hold(uid, Reason{Reason: "NotReady"})
		held := s.begin(http.MethodGet, "/", nil)
		s.waits(1)
		s.open(1, one)
		s.g.Eventually(held).WithTimeout(long).Should(Receive(HaveField("Body", "one")))
	}
}

func TestWhatIsBeingAnsweredMayFinish(t *testing.T) {
	s := newStage(t, Options{})
	asked, finish := make(chan struct{}), make(chan struct{})
	one := newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-finish
		_, _ = io.WriteString(w, "finished")
	})
	s.open(1, one)
	got := s.begin(http.MethodPost, "/", strings.NewReader("x"))
	<-asked
	s.End(uid, 1)
	s.Refuse(uid, Reason{Reason: "Stopping"})
	close(finish)
	s.g.Eventually(got).WithTimeout(long).Should(Receive(HaveField("Body", "finished")))
	s.g.Eventually(func() int {
		one.mu.Lock()
		defer one.mu.Unlock()
		return len(one.conns)
	}).WithTimeout(long).Should(BeZero(), "no open connection delays the exit of the server")
}

func TestWhoWaitsTooLongIsTold(t *testing.T) {
	s := newStage(t, Options{HoldTime: 50 * time.Millisecond})
	s.Hold(uid, Reason{Reason: "NotReady", Message: "it compiles"})
	got := s.do(http.MethodGet, "/", nil)
	s.g.Expect(got.Status).To(Equal(http.StatusServiceUnavailable))
	s.g.Expect(got.Header.Get("Retry-After")).To(Equal("1"))
	s.g.Expect(got.Header.Get(HeaderReason)).To(Equal("NotReady"))
	s.g.Expect(got.Body).To(Equal("devservers/default/web is not available: NotReady: it compiles (the server was not ready in time)\n"))
}

func TestWhoCanNotBeServedIsToldAtOnce(t *testing.T) {
	s := newStage(t, Options{})
	held := s.begin(http.MethodGet, "/", nil)
	s.waits(1)
	s.Refuse(uid, Reason{Reason: "CircuitOpen", Until: time.Now().Add(time.Hour)})
	var got answer
	s.g.Eventually(held).WithTimeout(long).Should(Receive(&got))
	s.g.Expect(got.Status).To(Equal(http.StatusServiceUnavailable))
	s.g.Expect(got.Header.Get(HeaderReason)).To(Equal("CircuitOpen"))
	s.g.Expect(got.Header.Get("Retry-After")).To(HavePrefix("3"), "one hour in seconds")

	s.Hold(uid, Reason{Reason: "BackOff", Until: time.Now().Add(time.Hour)})
	got = s.do(http.MethodGet, "/", nil)
	s.g.Expect(got.Header.Get(HeaderReason)).To(Equal("BackOff"), "the server cannot be ready within the hold time")
	s.Hold(uid, Reason{Reason: "BackOff", Until: time.Now().Add(time.Second)})
	held = s.begin(http.MethodGet, "/", nil)
	s.waits(1)
	s.open(1, newServer(t, "127.0.0.1:0", says("back")))
	s.g.Eventually(held).WithTimeout(long).Should(Receive(HaveField("Body", "back")))
}

func TestOnlySoManyWait(t *testing.T) {
	s := newStage(t, Options{HoldRequests: 3})
	var held []<-chan answer
	for range 3 {
		held = append(held, s.begin(http.MethodGet, "/", nil))
	}
	s.waits(3)
	got := s.do(http.MethodGet, "/", nil)
	s.g.Expect(got.Status).To(Equal(http.StatusServiceUnavailable))
	s.g.Expect(got.Body).To(ContainSubstring("too many requests are already waiting"))
	s.open(1, newServer(t, "127.0.0.1:0", says("one")))
	for _, h := range held {
		s.g.Eventually(h).WithTimeout(long).Should(Receive(HaveField("Body", "one")))
	}
}

func TestWhoGoesAwayWaitsNoMore(t *testing.T) {
	s := newStage(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url("/"), nil)
	s.g.Expect(err).NotTo(HaveOccurred())
	ended := make(chan error, 1)
	go func() {
		response, err := s.client.Do(req)
		if err == nil {
			_ = response.Body.Close()
		}
		ended <- err
	}()
	s.waits(1)
	cancel()
	s.g.Eventually(ended).WithTimeout(long).Should(Receive(MatchError(context.Canceled)))
	s.waits(0)
}

func TestSafeRequestsThatAreLostAreSentOnceMore(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		t.Run(method, func(t *testing.T) {
			s := newStage(t, Options{})
			one := swallows(t)
			s.open(1, one)
			got := s.begin(method, "/", nil)
			s.g.Eventually(one.asked.Load).WithTimeout(long).Should(BeEquivalentTo(1))
			one.die()
			s.waits(1)
			two := newServer(t, "127.0.0.1:0", says("two"))
			s.End(uid, 1)
			s.open(2, two)
			s.g.Eventually(got).WithTimeout(long).Should(Receive(And(HaveField("Status", http.StatusOK), HaveField("Err", BeNil()))))
			s.g.Expect(two.asked.Load()).To(BeEquivalentTo(1))
		})
	}
}

func TestWhatIsLostTwiceIsLost(t *testing.T) {
	s := newStage(t, Options{})
	one, two := swallows(t), swallows(t)
	s.open(1, one)
	got := s.begin(http.MethodGet, "/", nil)
	s.g.Eventually(one.asked.Load).WithTimeout(long).Should(BeEquivalentTo(1))
	one.die()
	s.open(2, two)
	s.g.Eventually(two.asked.Load).WithTimeout(long).Should(BeEquivalentTo(1))
	two.die()
	s.g.Eventually(got).WithTimeout(long).Should(Receive(HaveField("Status", http.StatusBadGateway)))
}

func TestWhatMayHaveHadItsEffectIsNotSentAgain(t *testing.T) {
	s := newStage(t, Options{})
	one := swallows(t)
	s.open(1, one)
	post := s.begin(http.MethodPost, "/", strings.NewReader("x"))
	del := s.begin(http.MethodDelete, "/", nil)
	s.g.Eventually(one.asked.Load).WithTimeout(long).Should(BeEquivalentTo(2))
	one.die()
	for _, lost := range []<-chan answer{post, del} {
		s.g.Eventually(lost).WithTimeout(long).Should(Receive(And(
			HaveField("Status", http.StatusBadGateway), HaveField("Body", ContainSubstring("it is unknown whether the request took effect")))))
	}
}

func TestWhatWasNeverSentIsNotLost(t *testing.T) {
	s := newStage(t, Options{})
	one := newServer(t, "127.0.0.1:0", says("one"))
	s.open(1, one)
	one.die() // the exit has not been observed yet
	var held []<-chan answer
	for range 10 {
		held = append(held, s.begin(http.MethodPost, "/", strings.NewReader("x")), s.begin(http.MethodGet, "/", nil))
	}
	s.waits(20)
	s.Hold(uid, Reason{Reason: "Restarting"})
	s.open(2, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.MultiReader(r.Body, strings.NewReader("two")))
	}))
	for _, h := range held {
		s.g.Eventually(h).WithTimeout(long).Should(Receive(HaveField("Body", HaveSuffix("two"))))
	}
}

func TestServerThatComesBackByItself(t *testing.T) {
	s := newStage(t, Options{})
	one := newServer(t, "127.0.0.1:0", says("one"))
	s.open(1, one)
	one.die()
	held := s.begin(http.MethodPost, "/", strings.NewReader("x"))
	s.waits(1)
	s.open(1, one) // its status is Ready all the time
	again := newServer(t, one.address, says("again"))
	s.g.Eventually(held).WithTimeout(long).Should(Receive(HaveField("Body", "again")))
	s.g.Expect(again.asked.Load()).To(BeEquivalentTo(1))
}

// A server that reloads closes its connections and keeps its listener.
func TestGetsThatAServerDropsWhileItReloadsAreSentAgain(t *testing.T) {
	s := newStage(t, Options{})
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
	s.open(1, one)
	for _, path := range []string{"/nothing", "/header"} {
		for drops := range int64(maxDrops) {
			reloading.Store(drops)
			s.g.Expect(s.do(http.MethodGet, path, nil)).To(And(HaveField("Body", "answer"), HaveField("Err", BeNil())), "%s, dropped %d times", path, drops)
		}
	}
}

func TestServerThatDropsARequestOnPurpose(t *testing.T) {
	s := newStage(t, Options{})
	one := newServer(t, "127.0.0.1:0", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	s.open(1, one)
	s.g.Expect(s.do(http.MethodGet, "/", nil).Status).To(Equal(http.StatusBadGateway), "without retries for half a minute")
	s.g.Expect(one.asked.Load()).To(BeEquivalentTo(maxDrops))
	s.g.Expect(s.do(http.MethodPost, "/", strings.NewReader("x")).Status).To(Equal(http.StatusBadGateway))
}

func TestRequestsPassAsTheyAre(t *testing.T) {
	s := newStage(t, Options{})
	s.open(1, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, r.Method, " ", r.Host, " ", r.RequestURI, " ", r.Header.Get("X-Forwarded-Proto"), " ",
			r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("Accept-Encoding"), " ", string(body))
	}))
	got := s.do(http.MethodPut, "/a%2Fb//c?x=1;y&import", strings.NewReader("body"))
	s.g.Expect(got.Body).To(Equal(fmt.Sprintf("PUT 127.0.0.1:%d /a%%2Fb//c?x=1;y&import http 127.0.0.1 gzip body", s.port)))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url("/"), nil)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.Listen(uid, "web", s.port, "app.example")).To(Succeed())
	req.Host = "app.example"
	req.Header.Set("X-Forwarded-Proto", "https")
	req.Header.Set("X-Forwarded-For", "10.1.1.1")
	req.Header.Set("Accept-Encoding", "br")
	response, err := s.client.Do(req)
	s.g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(string(text)).To(Equal("GET app.example / https 10.1.1.1, 127.0.0.1 br "))
}

func TestServerThatSpeaksTLS(t *testing.T) {
	s := newStage(t, Options{})
	secure := httptest.NewTLSServer(says("secure"))
	t.Cleanup(secure.Close)
	s.g.Expect(s.Open(uid, 1, secure.URL)).To(Succeed())
	s.g.Expect(s.do(http.MethodGet, "/", nil).Body).To(Equal("secure"))
}

func TestEventsPassAtOnce(t *testing.T) {
	s := newStage(t, Options{})
	more := make(chan string)
	s.open(1, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for text := range more {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	response := make(chan *http.Response, 1)
	go func() {
		defer close(response)
		if got, err := s.client.Get(s.url("/")); err == nil { //nolint:bodyclose // the receiver closes it
			response <- got
		}
	}()
	more <- "1"
	got := <-response
	s.g.Expect(got).NotTo(BeNil())
	defer func() { _ = got.Body.Close() }()
	lines := bufio.NewScanner(got.Body)
	for _, want := range []string{"1", "2", "3"} {
		if want != "1" {
			more <- want
		}
		s.g.Expect(lines.Scan()).To(BeTrue())
		s.g.Expect(lines.Text()).To(Equal("data: " + want))
		s.g.Expect(lines.Scan()).To(BeTrue())
	}
	close(more)
	s.g.Expect(lines.Scan()).To(BeFalse())
}

// upgraded opens a WebSocket and returns the connection.
func (s *stage) upgraded() (net.Conn, *bufio.Reader, error) {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
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

// echoes upgrades a connection and echoes its input.
func echoes(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
	_, _ = io.Copy(conn, rw)
}

func TestWebSocketsPass(t *testing.T) {
	s := newStage(t, Options{})
	s.open(1, newServer(t, "127.0.0.1:0", echoes))
	conn, reader, err := s.upgraded()
	s.g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	for _, word := range []string{"hello\n", "again\n"} {
		_, err = io.WriteString(conn, word)
		s.g.Expect(err).NotTo(HaveOccurred())
		line, err := reader.ReadString('\n')
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(line).To(Equal(word))
	}
	// An upgrade during a restart of the server is held.
	s.End(uid, 1)
	connected := make(chan error, 1)
	go func() {
		late, _, err := s.upgraded()
		if err == nil {
			_ = late.Close()
		}
		connected <- err
	}()
	s.waits(1)
	s.open(2, newServer(t, "127.0.0.1:0", echoes))
	s.g.Eventually(connected).WithTimeout(long).Should(Receive(BeNil()))
	// Open connections are closed with the address.
	s.Close(uid)
	_, err = reader.ReadByte()
	s.g.Expect(err).To(HaveOccurred())
}

func TestPortIsHeldMovedAndGivenBack(t *testing.T) {
	s := newStage(t, Options{})
	s.open(1, newServer(t, "127.0.0.1:0", says("one")))
	s.g.Expect(s.Listen(uid, "web", s.port)).To(Succeed(), "it already listens on the port")
	s.g.Expect(s.Listens(uid, s.port)).To(BeTrue())
	s.g.Expect(s.Listen("other", "other", s.port)).To(MatchError(syscall.EADDRINUSE))
	s.g.Expect(s.Listens("other", s.port)).To(BeFalse())

	before := s.port
	s.port = listenSomewhere(t, s.Proxies, uid)
	s.g.Expect(s.port).NotTo(Equal(before))
	s.g.Expect(s.do(http.MethodGet, "/", nil).Body).To(Equal("one"))
	s.g.Expect(free(before)).To(Succeed())

	held := s.port
	s.Close(uid)
	s.g.Expect(free(held)).To(Succeed())
	s.Close(uid)
	s.Hold(uid, Reason{})
	s.Refuse(uid, Reason{})
	s.End(uid, 1)
	s.g.Expect(s.Open(uid, 1, "http://127.0.0.1:1")).To(Succeed())
	s.g.Expect(s.Listens(uid, held)).To(BeFalse())
}

func free(port int32) error {
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	return listener.Close()
}

func TestManagerThatEnds(t *testing.T) {
	s := newStage(t, Options{})
	held := s.begin(http.MethodGet, "/", nil)
	s.waits(1)
	s.stop()
	s.g.Eventually(held).WithTimeout(long).Should(Receive(Or(
		HaveField("Status", http.StatusServiceUnavailable), HaveField("Err", Not(BeNil())))))
	s.g.Expect(free(s.port)).To(Succeed())
	s.g.Expect(s.Listen(uid, "web", s.port)).To(MatchError(ErrEnded))
}

func TestNoRequestIsLostOverManyRestarts(t *testing.T) {
	s := newStage(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var asked atomic.Int64
	failures := make(chan string, 1000)
	for range 8 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if got := s.do(http.MethodGet, "/", nil); got.Err != nil || got.Status != http.StatusOK {
					failures <- fmt.Sprintf("%d %v %s", got.Status, got.Err, got.Body)
				}
				asked.Add(1)
			}
		})
	}
	for i := range int64(20) {
		here := newServer(t, "127.0.0.1:0", says("here"))
		s.open(i+1, here)
		s.g.Eventually(here.asked.Load).WithTimeout(long).Should(BeNumerically(">=", 50))
		if i%2 == 0 { // a requested restart; in the other rounds the server crashes before Hold
			s.End(uid, i+1)
		}
		here.die()
		s.Hold(uid, Reason{Reason: "Restarting"})
	}
	s.open(100, newServer(t, "127.0.0.1:0", says("last")))
	cancel()
	clients.Wait()
	close(failures)
	for failure := range failures {
		t.Error(failure)
	}
	s.g.Expect(asked.Load()).To(BeNumerically(">=", 1000))
}
