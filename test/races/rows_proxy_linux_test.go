// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// loadInterval makes 200 requests per second.
	loadInterval = 5 * time.Millisecond
	loadRestarts = 20
	// loadServed is how many requests an incarnation answers before it is restarted.
	loadServed = 40
)

var _ = row("D01", "under load, a restart fails only requests that were in flight and are unsafe to repeat", func(ctx context.Context) {
	dev := newServer("web")
	dev.Spec.Proxy = v1alpha1.ProxyEnabled
	create(ctx, dev)
	pid := waitForRunning(ctx, dev, 1)
	dev = mustGet(ctx, dev)
	port := dev.Status.Port
	if fault != nil && fault.noProxy {
		port = dev.Status.BackendPort
	}
	l := startTraffic(ctx, fmt.Sprintf("http://127.0.0.1:%d/", port))
	for i := range int64(loadRestarts) {
		Eventually(ctx, func() int { return l.servedBy(pid) }).Should(BeNumerically(">=", loadServed), "incarnation %d serves the load", i+1)
		if i%4 == 3 {
			Expect(unix.Kill(pid, unix.SIGKILL)).To(Succeed())
		} else {
			Expect(patchFormatted(ctx, dev, restartPatch, strconv.FormatInt(i, 10))).To(Succeed())
		}
		pid = waitForRunning(ctx, dev, i+2)
	}
	Eventually(ctx, func() int { return l.servedBy(pid) }).Should(BeNumerically(">=", loadServed))
	failures, interrupted, sent := l.stop()
	Expect(failures).To(BeEmpty(), "requests failed that were not in flight or were safe to repeat")
	// Few requests are in flight when a process dies: each request takes far less than a millisecond, and one is sent every five milliseconds.
	Expect(interrupted).To(BeNumerically("<", sent/20), "of %d requests", sent)
	Expect(sent).To(BeNumerically(">", loadRestarts*loadServed))
	after := mustGet(ctx, dev)
	Expect(after.Status.Port).To(Equal(dev.Status.Port))
	Expect(after.Status.BackendPort).To(Equal(dev.Status.BackendPort))
	Expect(notes("collisions", "")).To(BeEmpty())
})

// traffic sends requests until stop is called. Three of four requests use the safe method GET, the fourth uses POST.
type traffic struct {
	url    string
	client *http.Client
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu          sync.Mutex
	served      map[int]int // by PID
	sent        int
	interrupted int
	failures    []string
}

func startTraffic(ctx context.Context, url string) *traffic {
	ctx, cancel := context.WithCancel(ctx)
	l := &traffic{
		url: url, cancel: cancel, served: map[int]int{},
		client: &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
	}
	l.done.Go(func() {
		ticker := time.NewTicker(loadInterval)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				l.done.Go(func() { l.send(i%4 != 0) })
			}
		}
	})
	DeferCleanup(func() { l.stop() })
	return l
}

// send sends one request. If the server dies while the request is in flight and may have taken effect, the response reports that; this is not a failure.
func (l *traffic) send(safe bool) {
	method, body := http.MethodGet, io.Reader(nil)
	if !safe {
		method, body = http.MethodPost, strings.NewReader("x")
	}
	text, status, reason := "", 0, ""
	req, err := http.NewRequest(method, l.url, body)
	if err == nil {
		text, status, reason, err = l.request(req)
	}
	pid, noPID := strconv.Atoi(strings.TrimSpace(text))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	switch {
	case err == nil && status == http.StatusOK && noPID == nil:
		l.served[pid]++
	case err == nil && !safe && status == http.StatusBadGateway && reason == "Interrupted":
		l.interrupted++
	default:
		l.failures = append(l.failures, fmt.Sprintf("%s: %d %s %v %s", method, status, reason, err, text))
	}
}

func (l *traffic) request(req *http.Request) (text string, status int, reason string, err error) {
	response, err := l.client.Do(req)
	if err != nil {
		return "", 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	return string(content), response.StatusCode, response.Header.Get("Berth-Reason"), err
}

func (l *traffic) servedBy(pid int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.served[pid]
}

// stop ends the load and waits for all requests that were sent.
func (l *traffic) stop() (failures []string, interrupted, sent int) {
	l.cancel()
	l.done.Wait()
	l.client.CloseIdleConnections()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures, l.interrupted, l.sent
}
