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

// wire is what lies between a manager and its API server.
type wire struct {
	to       string
	listener net.Listener
	all      sync.WaitGroup

	mu   sync.Mutex
	ends []net.Conn
	dead chan struct{} // closed when what is on the wire now gets no further
}

func newWire(to string) *wire {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	w := &wire{to: to, listener: listener, dead: make(chan struct{})}
	w.all.Go(w.accept)
	return w
}

func (w *wire) accept() {
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

// carry copies until the wire is dead, and hangs up unless it is: nobody is told of a cable that somebody has pulled.
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

// cut lets nothing through on the connections that there are. New ones work.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.dead)
	w.dead = make(chan struct{})
}

func (w *wire) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	for _, end := range w.ends {
		_ = end.Close()
	}
	w.mu.Unlock()
	w.all.Wait()
}

// at is a configuration that leads over the wire, with connections of its own.
func (w *wire) at(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = strings.Replace(config.Host, w.to, w.listener.Addr().String(), 1)
	config.Dial = (&net.Dialer{}).DialContext
	return config
}

// setForSpec sets a variable for as long as a spec takes.
func setForSpec(name, value string) {
	GinkgoHelper()
	Expect(os.Setenv(name, value)).To(Succeed())
	DeferCleanup(os.Unsetenv, name)
}

var _ = Describe("a watch that is cut", Serial, func() {
	It("is noticed although nobody hangs up, and nothing of what was said meanwhile is lost", func(ctx context.Context) {
		// The defaults are 30 and 15 seconds.
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
		Expect(rt.Count(kept.UID, fake.Start)).To(Equal(1), "nothing has happened to it")
	})
})
