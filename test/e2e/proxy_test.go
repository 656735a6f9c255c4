// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = Describe("A DevServer behind its proxy", func() {
	It("keeps its address across restarts, a crash, a stop and another manager", Serial, NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		s := newProxiedServer("gohello", "", "gohello").create(ctx).waitUntilReady(ctx)
		url, port, backend := s.server().Status.URL, s.server().Status.Port, s.server().Status.BackendPort
		Expect(url).To(Equal(fmt.Sprintf("http://localhost:%d/", port)))
		Expect(backend).NotTo(Or(Equal(port), BeZero()))
		Expect(s.server().Status.ObservedPorts).To(Equal([]int32{backend}), "the program listens on the backend port")

		By("restarting and killing it during continuous reads")
		r := startPageReader(url)
		for i := range int64(3) {
			suiteBerth.run(ctx, "restart", s.path())
			s.waitForIncarnation(ctx, i+2)
		}
		signalTo(s.status().Process.PID, s.mark, syscall.SIGKILL)
		s.waitForIncarnation(ctx, 5)
		read, failed := r.stop()
		Expect(failed).To(BeEmpty())
		Expect(read).To(BeNumerically(">", 4))

		By("stopping it: requests get an immediate response with the reason")
		suiteBerth.run(ctx, "stop", s.path())
		s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
		Expect(isListening(backend)).To(BeFalse())
		status, reason, text := get(url)
		Expect(status).To(Equal(http.StatusServiceUnavailable))
		Expect(reason).To(Equal(v1alpha1.ReasonStopped))
		Expect(text).To(ContainSubstring(s.GetName()))

		By("starting it again with the same ports")
		suiteBerth.run(ctx, "start", s.path())
		s.waitUntilReady(ctx).waitForResponse("Hello")
		Expect(s.server().Status.Port).To(Equal(port))
		Expect(s.server().Status.BackendPort).To(Equal(backend))

		By("replacing the manager")
		pid := pidOf(s)
		suiteBerth.kill(ctx)
		Expect(isListening(port)).To(BeFalse(), "while no manager runs, no process listens at the address")
		suiteBerth.up(ctx)
		s.waitUntilReady(ctx).waitForResponse("Hello")
		Expect(pidOf(s)).To(Equal(pid))
		Expect(s.server().Status.URL).To(Equal(url))

		By("disabling the proxy: the server listens on the port itself")
		s.patch(ctx, func() { s.server().Spec.Proxy = v1alpha1.ProxyDisabled })
		s.waitUntilReady(ctx).waitForResponse("Hello")
		Expect(s.server().Status.URL).To(Equal(fmt.Sprintf("http://127.0.0.1:%d/", port)), "the URL has the host that the server prints")
		Expect(s.server().Status.ObservedPorts).To(Equal([]int32{port}))

		s.delete(ctx)
		Expect(isListening(port)).To(BeFalse(), "a process still listens on port %d", port)
	})

	It("forwards the modules and the hot module replacement of Vite", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		s := newProxiedServer("vite", installProject(ctx, "samples/vite"), "npm", "run", "dev", "--", "--port", "$(PORT)", "--strictPort").create(ctx).waitUntilReady(ctx)
		s.waitForResponse("Vite in a berth")
		url := s.server().Status.URL
		Expect(firstHotUpdate(url)).To(ContainSubstring(`"connected"`))

		By("restarting it during continuous reads of the page")
		r := startPageReader(url)
		suiteBerth.run(ctx, "restart", s.path())
		s.waitForIncarnation(ctx, 2)
		_, failed := r.stop()
		Expect(failed).To(BeEmpty())
		s.waitForResponse("Vite in a berth")
		Expect(firstHotUpdate(url)).To(ContainSubstring(`"connected"`))
	})
})

func newProxiedServer(name, dir string, command ...string) *testObject {
	s := devServer(name, dir, command...)
	s.server().Spec.Proxy = v1alpha1.ProxyEnabled
	return s
}

// patientClient does not retry. Its timeout is longer than the hold time of the proxy.
var patientClient = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}

// get sends one request.
func get(url string) (status int, reason, text string) {
	GinkgoHelper()
	status, reason, text, err := tryGet(url)
	Expect(err).NotTo(HaveOccurred())
	return status, reason, text
}

func tryGet(url string) (status int, reason, text string, err error) {
	response, err := patientClient.Get(url)
	if err != nil {
		return 0, "", "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, response.Header.Get("Berth-Reason"), string(body), err
}

// pageReader requests a page continuously.
type pageReader struct {
	done   sync.WaitGroup
	ended  chan struct{}
	once   sync.Once
	read   int
	failed []string
}

func startPageReader(url string) *pageReader {
	r := &pageReader{ended: make(chan struct{})}
	r.done.Go(func() {
		for {
			select {
			case <-r.ended:
				return
			default:
			}
			status, reason, text, err := tryGet(url)
			r.read++
			if err != nil || status != http.StatusOK {
				r.failed = append(r.failed, fmt.Sprintf("%d %s %v %s", status, reason, err, text))
			}
		}
	})
	DeferCleanup(func() { r.stop() })
	return r
}

func (r *pageReader) stop() (read int, failed []string) {
	r.once.Do(func() { close(r.ended) })
	r.done.Wait()
	return r.read, r.failed
}

var viteToken = regexp.MustCompile(`wsToken = "([^"]+)"`)

// firstHotUpdate connects to the WebSocket on which Vite announces updates, as the client of Vite does, and returns the first message.
func firstHotUpdate(url string) string {
	GinkgoHelper()
	_, _, client := get(url + "@vite/client")
	token := viteToken.FindStringSubmatch(client)
	Expect(token).To(HaveLen(2), "Vite's client contains a token")
	host := strings.Trim(strings.TrimPrefix(url, "http://"), "/")
	conn, err := net.Dial("tcp", host)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	Expect(conn.SetDeadline(time.Now().Add(startTimeout))).To(Succeed())
	_, err = fmt.Fprintf(conn, "GET /?token=%s HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: vite-hmr\r\n\r\n", token[1], host, host)
	Expect(err).NotTo(HaveOccurred())
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil) //nolint:bodyclose // an upgraded response has no body
	Expect(err).NotTo(HaveOccurred())
	Expect(response.StatusCode).To(Equal(http.StatusSwitchingProtocols))
	return firstMessage(reader)
}

// firstMessage reads an unmasked WebSocket frame, as servers send it: one byte of type, the length and the text.
func firstMessage(from io.Reader) string {
	GinkgoHelper()
	var head [2]byte
	_, err := io.ReadFull(from, head[:])
	Expect(err).NotTo(HaveOccurred())
	length := uint16(head[1] & 0x7f)
	if length == 126 {
		Expect(binary.Read(from, binary.BigEndian, &length)).To(Succeed())
	}
	text := make([]byte, length)
	_, err = io.ReadFull(from, text)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}
