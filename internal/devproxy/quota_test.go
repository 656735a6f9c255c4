// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// dial opens a connection and sends nothing.
func (f *fixture) dial(t *testing.T, port int32) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	f.g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (f *fixture) awaitConnections(n int64) {
	f.g.Eventually(f.connections.used.Load).WithTimeout(long).Should(Equal(n), "connections")
}

func TestConnections_AreLimitedPerAddressAndInTotal(t *testing.T) {
	f := newFixture(t, Options{Connections: 6})
	first, second := f.port, listenOnFreePort(t, f.Proxies, "other")
	refused := func(port int32) {
		t.Helper()
		response, err := http.ReadResponse(bufio.NewReader(f.dial(t, port)), nil)
		f.g.Expect(err).NotTo(HaveOccurred(), "a response arrives although the client has sent nothing")
		defer func() { _ = response.Body.Close() }()
		f.g.Expect(response.StatusCode).To(Equal(http.StatusServiceUnavailable))
		f.g.Expect(response.Header).To(And(HaveKeyWithValue("Retry-After", []string{"1"}), HaveKeyWithValue(HeaderReason, []string{"TooManyConnections"})))
		_, err = io.ReadAll(response.Body)
		f.g.Expect(err).NotTo(HaveOccurred(), "the connection is closed")
	}
	var idle []net.Conn
	for range 3 {
		idle = append(idle, f.dial(t, first))
	}
	f.awaitConnections(3)
	refused(first)
	for range 3 {
		f.dial(t, second)
	}
	f.awaitConnections(6)

	f.g.Expect(idle[0].Close()).To(Succeed())
	f.awaitConnections(5)
	f.openServer(1, newServer(t, "127.0.0.1:0", echoUpgrade))
	upgraded, _, err := f.openWebSocket()
	f.g.Expect(err).NotTo(HaveOccurred(), "a closed connection makes room")
	refused(first)
	f.g.Expect(upgraded.Close()).To(Succeed())
	f.awaitConnections(5)

	third := listenOnFreePort(t, f.Proxies, "third")
	f.dial(t, third)
	f.awaitConnections(6)
	refused(third)
	f.Close("other")
	f.awaitConnections(3)
}

func TestConnections_LimitDependsOnFileLimit(t *testing.T) {
	g := NewWithT(t)
	for files, want := range map[uint64]int{0: 2048, 1 << 20: 2048, 1 << 63: 2048, 1024: 256, 4: 2} {
		g.Expect(connections(files)).To(Equal(want), "%d files", files)
	}
	g.Expect(New(Options{}).connections.limit).To(And(BeNumerically(">=", 2), BeNumerically("<=", 2048)))
}

func TestRequestHead_IsLimited(t *testing.T) {
	f := newFixture(t, Options{})
	f.openServer(1, newServer(t, "127.0.0.1:0", respondWith("one")))
	f.g.Expect(f.sendHead("GET / HTTP/1.1", "Host: localhost", "X: "+strings.Repeat("x", 60<<10)).StatusCode).To(Equal(http.StatusOK))
	f.g.Expect(f.sendHead("GET / HTTP/1.1", "Host: localhost", "X: "+strings.Repeat("x", 70<<10)).StatusCode).To(Equal(http.StatusRequestHeaderFieldsTooLarge))
	server := f.of(uid).server
	f.g.Expect(server.ReadHeaderTimeout).To(BeNumerically(">", 0))
	f.g.Expect(server.IdleTimeout).To(BeNumerically(">", 0))
}

func TestHold_LimitsBytesOverAllAddresses(t *testing.T) {
	f := newFixture(t, Options{HoldBytes: 128 << 10})
	first, second := f.port, listenOnFreePort(t, f.Proxies, "other")
	begin := func(port int32, kilobytes int) <-chan answer {
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
		f.g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set("X", strings.Repeat("x", kilobytes<<10))
		got := make(chan answer, 1)
		go func() {
			response, err := f.client.Do(req)
			if err != nil {
				got <- answer{Err: err}
				return
			}
			defer func() { _ = response.Body.Close() }()
			text, err := io.ReadAll(response.Body)
			got <- answer{Status: response.StatusCode, Body: string(text), Header: response.Header, Err: err}
		}()
		return got
	}
	held := begin(first, 50)
	f.awaitHeld(1)
	tooMuch := begin(second, 50)
	var got answer
	f.g.Eventually(tooMuch).WithTimeout(long).Should(Receive(&got))
	f.g.Expect(got).To(And(HaveField("Status", http.StatusServiceUnavailable), HaveField("Body", ContainSubstring("use too much memory"))))
	f.g.Expect(got.Header.Get("Retry-After")).To(Equal("1"))
	small := begin(second, 1)
	f.g.Eventually(func() int64 { return f.of("other").waiting.Load() }).WithTimeout(long).Should(Equal(int64(1)), "a smaller request fits")

	one := newServer(t, "127.0.0.1:0", respondWith("one"))
	f.openServer(1, one)
	f.g.Expect(f.Open("other", 1, "http://"+one.address)).To(Succeed())
	for _, h := range []<-chan answer{held, small} {
		f.g.Eventually(h).WithTimeout(long).Should(Receive(HaveField("Body", "one")))
	}
	f.g.Eventually(f.heldBytes.used.Load).WithTimeout(long).Should(BeZero(), "the memory is released")
}
