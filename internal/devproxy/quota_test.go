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
func (s *stage) dial(t *testing.T, port int32) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	s.g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *stage) connected(n int64) {
	s.g.Eventually(s.connections.used.Load).WithTimeout(long).Should(Equal(n), "connections")
}

func TestConnectionsAreLimited(t *testing.T) {
	s := newStage(t, Options{Connections: 6})
	first, second := s.port, listenSomewhere(t, s.Proxies, "other")
	refused := func(port int32) {
		t.Helper()
		response, err := http.ReadResponse(bufio.NewReader(s.dial(t, port)), nil)
		s.g.Expect(err).NotTo(HaveOccurred(), "a response arrives although the client has sent nothing")
		defer func() { _ = response.Body.Close() }()
		s.g.Expect(response.StatusCode).To(Equal(http.StatusServiceUnavailable))
		s.g.Expect(response.Header).To(And(HaveKeyWithValue("Retry-After", []string{"1"}), HaveKeyWithValue(HeaderReason, []string{"TooManyConnections"})))
		_, err = io.ReadAll(response.Body)
		s.g.Expect(err).NotTo(HaveOccurred(), "the connection is closed")
	}
	var idle []net.Conn
	for range 3 {
		idle = append(idle, s.dial(t, first))
	}
	s.connected(3)
	refused(first)
	for range 3 {
		s.dial(t, second)
	}
	s.connected(6)

	s.g.Expect(idle[0].Close()).To(Succeed())
	s.connected(5)
	s.open(1, newServer(t, "127.0.0.1:0", echoes))
	upgraded, _, err := s.upgraded()
	s.g.Expect(err).NotTo(HaveOccurred(), "a closed connection makes room")
	refused(first)
	s.g.Expect(upgraded.Close()).To(Succeed())
	s.connected(5)

	third := listenSomewhere(t, s.Proxies, "third")
	s.dial(t, third)
	s.connected(6)
	refused(third)
	s.Close("other")
	s.connected(3)
}

func TestConnectionsLeaveFilesForProcesses(t *testing.T) {
	g := NewWithT(t)
	for files, want := range map[uint64]int{0: 2048, 1 << 20: 2048, 1 << 63: 2048, 1024: 256, 4: 2} {
		g.Expect(connections(files)).To(Equal(want), "%d files", files)
	}
	g.Expect(New(Options{}).connections.limit).To(And(BeNumerically(">=", 2), BeNumerically("<=", 2048)))
}

func TestHeadsAreLimited(t *testing.T) {
	s := newStage(t, Options{})
	s.open(1, newServer(t, "127.0.0.1:0", says("one")))
	s.g.Expect(s.head("GET / HTTP/1.1", "Host: localhost", "X: "+strings.Repeat("x", 60<<10)).StatusCode).To(Equal(http.StatusOK))
	s.g.Expect(s.head("GET / HTTP/1.1", "Host: localhost", "X: "+strings.Repeat("x", 70<<10)).StatusCode).To(Equal(http.StatusRequestHeaderFieldsTooLarge))
	server := s.of(uid).server
	s.g.Expect(server.ReadHeaderTimeout).To(BeNumerically(">", 0))
	s.g.Expect(server.IdleTimeout).To(BeNumerically(">", 0))
}

func TestBytesThatWaitAreLimitedOverAllAddresses(t *testing.T) {
	s := newStage(t, Options{HoldBytes: 128 << 10})
	first, second := s.port, listenSomewhere(t, s.Proxies, "other")
	begin := func(port int32, kilobytes int) <-chan answer {
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
		s.g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set("X", strings.Repeat("x", kilobytes<<10))
		got := make(chan answer, 1)
		go func() {
			response, err := s.client.Do(req)
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
	s.waits(1)
	tooMuch := begin(second, 50)
	var got answer
	s.g.Eventually(tooMuch).WithTimeout(long).Should(Receive(&got))
	s.g.Expect(got).To(And(HaveField("Status", http.StatusServiceUnavailable), HaveField("Body", ContainSubstring("use too much memory"))))
	s.g.Expect(got.Header.Get("Retry-After")).To(Equal("1"))
	small := begin(second, 1)
	s.g.Eventually(func() int64 { return s.of("other").waiting.Load() }).WithTimeout(long).Should(Equal(int64(1)), "a smaller request fits")

	one := newServer(t, "127.0.0.1:0", says("one"))
	s.open(1, one)
	s.g.Expect(s.Open("other", 1, "http://"+one.address)).To(Succeed())
	for _, h := range []<-chan answer{held, small} {
		s.g.Eventually(h).WithTimeout(long).Should(Receive(HaveField("Body", "one")))
	}
	s.g.Eventually(s.heldBytes.used.Load).WithTimeout(long).Should(BeZero(), "the memory is released")
}
