// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/runtime/fake"
)

// cuttableProxy forwards connections from a manager to its API server. The method cut simulates a network failure.
type cuttableProxy struct {
	to       string
	listener net.Listener
	all      sync.WaitGroup

	mu   sync.Mutex
	ends []net.Conn
	dead chan struct{} // closed when the existing connections are cut, and then replaced for new connections
}

func newWire(to string) *cuttableProxy {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	w := &cuttableProxy{to: to, listener: listener, dead: make(chan struct{})}
	w.all.Go(w.accept)
	return w
}

func (w *cuttableProxy) accept() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		w.mu.Lock()
		w.ends = append(w.ends, near, far)
		dead := w.dead
		w.mu.Unlock()
		w.all.Go(func() { carry(far, near, dead) })
		w.all.Go(func() { carry(near, far, dead) })
	}
}

// carry copies data until the connection is cut. Before the cut, carry also forwards the end of the connection. After the cut it forwards nothing,
// because a pulled cable sends no FIN.
func carry(to, from net.Conn, dead <-chan struct{}) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		select {
		case <-dead:
			_, _ = io.Copy(io.Discard, from)
			return
		default:
		}
		if n > 0 {
			_, _ = to.Write(buffer[:n])
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

// cut stops all traffic on the existing connections without closing them. Connections that are opened later work.
func (w *cuttableProxy) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.dead)
	w.dead = make(chan struct{})
}

func (w *cuttableProxy) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	for _, end := range w.ends {
		_ = end.Close()
	}
	w.mu.Unlock()
	w.all.Wait()
}

// at returns a copy of config that connects to the API server through the proxy, with connections that no other client shares.
func (w *cuttableProxy) at(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = strings.Replace(config.Host, w.to, w.listener.Addr().String(), 1)
	config.Dial = (&net.Dialer{}).DialContext
	return config
}

// setForSpec sets an environment variable until the end of the spec.
func setForSpec(name, value string) {
	GinkgoHelper()
	Expect(os.Setenv(name, value)).To(Succeed())
	DeferCleanup(os.Unsetenv, name)
}

var _ = Describe("an interrupted watch", Serial, func() {
	It("is detected although the connection stays open, and no change is lost", func(ctx context.Context) {
		// Shorten the time until a dead connection is detected. The defaults are 30 and 15 seconds.
		setForSpec("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
		setForSpec("HTTP2_PING_TIMEOUT_SECONDS", "1")
		server, _, err := rest.DefaultServerUrlFor(config)
		Expect(err).NotTo(HaveOccurred())
		between := newWire(server.Host)
		stopManager()
		stopManager = func() {}
		DeferCleanup(func() {
			stopManager()
			between.close()
			stopManager = startManager()
		})
		stopManager = startManagerWith(between.at(config))
		namespace := newNamespace(ctx)
		kept, changed := newInstance(namespace, "kept", "claude"), newInstance(namespace, "changed", "claude")
		Expect(k8s.Create(ctx, kept)).To(Succeed())
		Expect(k8s.Create(ctx, changed)).To(Succeed())
		becomesReady(ctx, kept)
		becomesReady(ctx, changed)

		between.cut()
		change(ctx, changed, func() { changed.Spec.RestartToken = "while it was cut" })
		late := newInstance(namespace, "late", "claude")
		Expect(k8s.Create(ctx, late)).To(Succeed())
		becomesReady(ctx, late)
		becomesReady(ctx, changed)
		Expect(changed.Status.ObservedRestartToken).To(Equal("while it was cut"))
		Expect(rt.Count(changed.UID, fake.Start)).To(Equal(2))
		Expect(rt.Count(kept.UID, fake.Start)).To(Equal(1), "the unchanged object was not restarted")
	})
})
