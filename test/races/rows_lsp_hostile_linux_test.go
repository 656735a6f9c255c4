// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/test/lspclient"
	"github.com/berth-dev/berth/test/lspfake/script"
)

// memoryBound is the limit for the memory of a multiplexer. It is much less than the peers send.
const memoryBound = 256 << 20

// hostileServers lists faults of a server, and whether the server has to be restarted because of the fault.
var hostileServers = []struct {
	name string
	what script.Fault
	ends bool
}{
	{"endless", script.Fault{Do: script.Endless, Bytes: 1 << 40}, true},
	{"header-flood", script.Fault{Do: script.HeaderFlood}, true},
	{"header-line", script.Fault{Do: script.HeaderLine}, true},
	{"lie-short", script.Fault{Do: script.LieShort}, true},
	{"lie-long", script.Fault{Do: script.LieLong}, true},
	{"negative", script.Fault{Do: script.Negative}, true},
	{"mid-frame", script.Fault{Do: script.DieMidFrame}, true},
	{"half", script.Fault{Do: script.Stall, Bytes: 1 << 20}, true},
	{"frozen", script.Fault{Do: script.Freeze}, true},
	{"log-flood", script.Fault{Do: script.LogFlood, Bytes: 64 << 20}, false},
	{"message-flood", script.Fault{Do: script.MessageFlood, Bytes: 128 << 20}, false},
}

var _ = row("R29", "hostile messages and silent peers: memory and time are bounded, and other clients are not affected", func(ctx context.Context) {
	server := newLanguageServer("srv", script.Script{})
	create(ctx, server)
	pid := waitForRunning(ctx, server, 1)
	guard := multiplexerOf(pid)
	good := mustJoin(ctx, server, "good")
	others := startClients(ctx, 1, func(ctx context.Context, _, _ int) error {
		_, err := good.request(context.WithoutCancel(ctx))
		return err
	})
	path, err := endpoint(ctx, server)
	Expect(err).NotTo(HaveOccurred())
	hostileClients(ctx, path)
	others.waitForRounds(ctx, 1, 5)
	others.end()
	Expect(peakMemory(guard.PID)).To(BeNumerically("<", memoryBound), "hostile clients exceed the memory bound")
	Expect(waitForRunning(ctx, server, 1)).To(Equal(pid), "the server was restarted because of its clients")

	// Each server fails in a different way at the first request, while another client of that server waits for a response.
	var servers []*v1alpha1.LanguageServer
	guards := map[string]suiteProcess{}
	for _, hostile := range hostileServers {
		hostile.what.URI = lspclient.URI(env.dir, hostile.name+".txt")
		hostile.what.Method = "textDocument/hover"
		s := newLanguageServer(hostile.name, script.Script{Faults: []script.Fault{hostile.what}})
		s.Spec.Health.PingAfterSeconds, s.Spec.Health.HangTimeoutSeconds = ptr.To[int32](1), ptr.To[int32](3)
		if !hostile.ends {
			s.Spec.Health.HangTimeoutSeconds = ptr.To[int32](30) // slowness must not count as a hang
		}
		s.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](1)
		create(ctx, s)
		guards[hostile.name] = multiplexerOf(waitForRunning(ctx, s, 1))
		servers = append(servers, s)
	}
	inParallel(len(servers), func(i int) error {
		return expectRecovery(ctx, servers[i], hostileServers[i].name, hostileServers[i].ends)
	})
	for _, s := range servers {
		Expect(peakMemory(guards[s.Name].PID)).To(BeNumerically("<", memoryBound), "server %s exceeds the memory bound", s.Name)
	}
})

// expectRecovery provokes the fault of a server with one client while another client waits. The next server or, if ends is false, the same server has
// to answer the client that waits.
func expectRecovery(ctx context.Context, server *v1alpha1.LanguageServer, name string, ends bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	victim, err := joinServer(ctx, server, name)
	if err != nil {
		return err
	}
	defer victim.Close()
	other, err := joinServer(ctx, server, "other")
	if err != nil {
		return err
	}
	defer other.Close()
	first, err := other.request(ctx)
	if err != nil {
		return err
	}
	// The next server is not hostile.
	if err := (script.Script{}).Write(env.dir, name); err != nil {
		return err
	}
	call, err := victim.startFault(script.Fault{})
	if err != nil {
		return err
	}
	for {
		now, err := other.request(ctx)
		if err != nil {
			return fmt.Errorf("the other client of %s: %w", name, err)
		}
		if (now != first) == ends {
			break
		}
	}
	if err := call.Wait(ctx, nil); err != nil && errorResponse(err) == nil {
		return fmt.Errorf("the client that provoked %s: %w", name, err)
	}
	return nil
}

// hostileClients connects clients that violate the protocol, and checks that each of them is disconnected, except those that only wait.
func hostileClients(ctx context.Context, path string) {
	GinkgoHelper()
	expectDisconnected := func(words string, times int) {
		GinkgoHelper()
		conn, err := net.Dial("unix", path)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = conn.Close() }()
		Expect(conn.SetDeadline(time.Now().Add(patience))).To(Succeed())
		for range times {
			if _, err = conn.Write([]byte(words)); err != nil {
				break // already disconnected
			}
		}
		_, err = io.Copy(io.Discard, conn)
		if timeout, ok := err.(net.Error); ok { //nolint:errorlint // unwrapped, because it comes from the socket
			Expect(timeout.Timeout()).To(BeFalse(), "not disconnected: %.40q", words)
		}
	}
	expectDisconnected("Content-Length: 1099511627776\r\n\r\n{", 1)
	expectDisconnected("Content-Length: -5\r\n\r\n{", 1)
	expectDisconnected("Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 1)
	expectDisconnected("X-Header: of which there are very many\r\n", 1<<18)
	expectDisconnected("X-Header: "+strings.Repeat("x", 1<<20), 64)
	expectDisconnected("Content-Length: 4096\r\n\r\n"+strings.Repeat("[", 4096), 1)
	expectDisconnected("Content-Length: 20\r\n\r\n[{\"jsonrpc\": \"2.0\"}]", 1)
	// Silent peers announce a long message, send a part of it, and wait. The multiplexer permits that for a while.
	for range 20 {
		conn, err := net.Dial("unix", path)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(conn.Close)
		_, err = fmt.Fprintf(conn, "Content-Length: %d\r\n\r\n%s", 30<<20, strings.Repeat(" ", 1<<20))
		Expect(err).NotTo(HaveOccurred())
	}
	for range 20 {
		conn, err := net.Dial("unix", path)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(conn.Close)
	}
	nonReadingClient(ctx, path)
}

// nonReadingClient requests long responses without reading them, and checks that the connection is closed.
func nonReadingClient(ctx context.Context, path string) {
	GinkgoHelper()
	conn, err := net.Dial("unix", path)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	send := func(body string) error {
		_ = conn.SetWriteDeadline(time.Now().Add(patience))
		_, err := fmt.Fprintf(conn, "Content-Length: %d\r\n\r\n%s", len(body), body)
		return err
	}
	Expect(send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}`)).To(Succeed())
	Expect(send(`{"jsonrpc":"2.0","method":"initialized","params":{}}`)).To(Succeed())
	uri := lspclient.URI(env.dir, "deaf.txt")
	Expect(send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":%q,"languageId":"fake","version":1,"text":"x"}}}`, uri))).To(Succeed())
	for id := range 200 {
		if send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"textDocument/hover","params":{"textDocument":{"uri":%q},"position":{"line":0,"character":0},"fake":{"do":"huge","bytes":1048576}}}`, id+2, uri)) != nil {
			return
		}
	}
	Eventually(ctx, func() error { return send(`{"jsonrpc":"2.0","method":"$/nothing"}`) }).Should(HaveOccurred(), "a client that does not read is disconnected")
}

var _ = row("R30", "a document that a client opens and never closes is closed on its behalf, however the client disconnects", func(ctx context.Context) {
	server := newLanguageServer("srv", script.Script{})
	create(ctx, server)
	pid := waitForRunning(ctx, server, 1)
	holder := mustJoin(ctx, server, "shared")
	leaves := map[string]func(r *documentClient){
		"exits":   func(r *documentClient) { _ = r.Notify("exit", nil) },
		"leaves":  func(r *documentClient) { Expect(r.Shutdown(ctx)).To(Succeed()) },
		"is-lost": func(r *documentClient) { r.Close() },
		"is-cut": func(r *documentClient) {
			Expect(r.WriteFrame([]byte("Content-Length: 1000\r\n\r\n{"))).To(Succeed())
			r.Close()
		},
		"is-hostile": func(r *documentClient) { Expect(r.WriteFrame([]byte("Content-Length: nothing\r\n\r\n"))).To(Succeed()) },
		"is-asking": func(r *documentClient) {
			_, err := r.startFault(script.Fault{Do: script.Silent})
			Expect(err).NotTo(HaveOccurred())
			r.Close()
		},
	}
	for who, leave := range leaves {
		r := mustJoin(ctx, server, who)
		Expect(r.Open(holder.uri, "fake", 1, "shared has not saved this\n")).To(Succeed())
		Expect(r.request(ctx)).To(Equal(pid))
		Expect(openDocuments("srv", pid)).To(ConsistOf(holder.uri, r.uri))
		leave(r)
		Eventually(ctx, func() []string { return openDocuments("srv", pid) }).Should(ConsistOf(holder.uri), "left open: documents of a client that %s", who)
	}
	waitFor(ctx, server, "counts one document", func(o *v1alpha1.LanguageServer) bool { return o.Status.OpenDocuments == 1 && o.Status.Clients == 1 })

	// One client disconnects while there is no server: the next server does not receive the document of this client.
	gone := mustJoin(ctx, server, "gone")
	Expect(gone.request(ctx)).To(Equal(pid))
	Expect(script.Script{InitializeMS: 500}.Write(env.dir, "srv")).To(Succeed())
	victim, err := procstat.Identify(pid)
	Expect(err).NotTo(HaveOccurred())
	killProcess(victim)
	gone.Close()
	next := waitForRunning(ctx, server, 2)
	Expect(holder.request(ctx)).To(Equal(next))
	Eventually(ctx, func() []string { return openDocuments("srv", next) }).Should(ConsistOf(holder.uri), "left open: a document of a client that disconnected between two servers")
	holder.Close()
	Eventually(ctx, func() []string { return openDocuments("srv", next) }).Should(BeEmpty(), "left open: documents without a client")
	waitFor(ctx, server, "counts no documents or clients", func(o *v1alpha1.LanguageServer) bool { return o.Status.OpenDocuments == 0 && o.Status.Clients == 0 })
})
