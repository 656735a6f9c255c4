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

func newCuttableProxy(to string) *cuttableProxy {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	w := &cuttableProxy{to: to, listener: listener, dead: make(chan struct{})}
	w.all.Go(w.accept)
	return w
}

func (p *cuttableProxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		p.mu.Lock()
		p.ends = append(p.ends, near, far)
		dead := p.dead
		p.mu.Unlock()
		p.all.Go(func() { forward(far, near, dead) })
		p.all.Go(func() { forward(near, far, dead) })
	}
}

// forward copies data until the connection is cut. Before the cut, forward also forwards the end of the connection. After the cut it forwards nothing,
// because a pulled cable sends no FIN.
func forward(to, from net.Conn, dead <-chan struct{}) {
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
func (p *cuttableProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.dead)
	p.dead = make(chan struct{})
}

func (p *cuttableProxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for _, end := range p.ends {
		_ = end.Close()
	}
	p.mu.Unlock()
	p.all.Wait()
}

// at returns a copy of config that connects to the API server through the proxy, with connections that no other client shares.
func (p *cuttableProxy) at(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = strings.Replace(config.Host, p.to, p.listener.Addr().String(), 1)
	config.Dial = (&net.Dialer{}).DialContext
	return config
}

// setenvForSpec sets an environment variable until the end of the spec.
func setenvForSpec(name, value string) {
	GinkgoHelper()
	Expect(os.Setenv(name, value)).To(Succeed())
	DeferCleanup(os.Unsetenv, name)
}

var _ = Describe("an interrupted watch", Serial, func() {
	It("is detected although the connection stays open, and no change is lost", func(ctx context.Context) {
		// Shorten the time until a dead connection is detected. The defaults are 30 and 15 seconds.
		setenvForSpec("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
		setenvForSpec("HTTP2_PING_TIMEOUT_SECONDS", "1")
		server, _, err := rest.DefaultServerUrlFor(config)
		Expect(err).NotTo(HaveOccurred())
		proxy := newCuttableProxy(server.Host)
		stopManager()
		stopManager = func() {}
		DeferCleanup(func() {
			stopManager()
			proxy.close()
			stopManager = startManager()
		})
		stopManager = startManagerWith(proxy.at(config))
		namespace := newNamespace(ctx)
		kept, changed := newInstance(namespace, "kept", "claude"), newInstance(namespace, "changed", "claude")
		Expect(k8s.Create(ctx, kept)).To(Succeed())
		Expect(k8s.Create(ctx, changed)).To(Succeed())
		waitForReady(ctx, kept)
		waitForReady(ctx, changed)

		proxy.cut()
		update(ctx, changed, func() { changed.Spec.RestartToken = "while it was cut" })
		late := newInstance(namespace, "late", "claude")
		Expect(k8s.Create(ctx, late)).To(Succeed())
		waitForReady(ctx, late)
		waitForReady(ctx, changed)
		Expect(changed.Status.ObservedRestartToken).To(Equal("while it was cut"))
		Expect(rt.Count(changed.UID, fake.Start)).To(Equal(2))
		Expect(rt.Count(kept.UID, fake.Start)).To(Equal(1), "the unchanged object was not restarted")
	})
})
