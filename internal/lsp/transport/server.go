// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bufio"
	"bytes"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// knockTime is how long a client may take to send its request.
	knockTime = 10 * time.Second
	// knockBytes is the maximum size of the request header.
	knockBytes = 16 << 10
)

// Open accepts clients and managers on l and authenticates them with the files in dir. It reads the files at each request, so a recreated Secret takes effect
// as soon as the kubelet has updated the volume. The returned listeners accept the authenticated streams. Closing the managers listener closes l.
func Open(l net.Listener, dir string) (clients, managers net.Listener) {
	g := &gate{dir: dir}
	config := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, GetCertificate: g.certificate}
	server := &http.Server{
		Handler: g, ReadHeaderTimeout: knockTime, IdleTimeout: knockTime, MaxHeaderBytes: knockBytes,
		ErrorLog: log.New(io.Discard, "", 0), // anyone who can reach the port could flood the log
	}
	g.clients = newDoor(l.Addr(), func() error { return nil })
	g.managers = newDoor(l.Addr(), server.Close)
	go func() {
		err := server.Serve(tls.NewListener(l, config))
		g.clients.shut(err)
		g.managers.shut(err)
	}()
	return g.clients, g.managers
}

type gate struct {
	dir               string
	clients, managers *door
}

func (g *gate) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(g.dir, Certificate), filepath.Join(g.dir, privateKey))
	return &pair, err
}

// ServeHTTP upgrades an authenticated request to a stream, and returns an error response to others.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, token := g.clients, ClientToken
	switch r.URL.Path {
	case ClientPath:
	case managerPath:
		to, token = g.managers, ManagerToken
	default:
		http.Error(w, "Not found. The language server is at "+ClientPath+".", http.StatusNotFound)
		return
	}
	switch {
	case !strings.EqualFold(r.Header.Get("Upgrade"), protocol):
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", protocol)
		http.Error(w, "This address is not a web page. To connect to its language server, use berth lsp connect.", http.StatusUpgradeRequired)
		return
	case !g.admits(r.Header.Get(tokenHeader), token):
		http.Error(w, "The token differs from the one in the Secret of the language server.", http.StatusUnauthorized)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "HTTP/1.1 is required.", http.StatusHTTPVersionNotSupported)
		return
	}
	_, err = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n"))
	if err = errors.Join(err, conn.SetDeadline(time.Time{})); err != nil || !to.pass(&stream{Conn: conn, read: buffered.Reader}) {
		_ = conn.Close()
	}
}

// admits reports whether the token equals the contents of the file.
func (g *gate) admits(token, file string) bool {
	known, err := os.ReadFile(filepath.Join(g.dir, file))
	known = bytes.TrimSpace(known)
	return err == nil && len(known) > 0 && subtle.ConstantTimeCompare(known, []byte(token)) == 1
}

// stream is a connection whose first bytes may be buffered already.
type stream struct {
	net.Conn
	read *bufio.Reader
}

func (s *stream) Read(p []byte) (int, error) { return s.read.Read(p) }

// door is a listener for authenticated connections.
type door struct {
	addr    net.Addr
	onClose func() error
	passed  chan net.Conn
	closed  chan struct{}
	once    sync.Once
	err     error // the error that Accept returns once the door is closed
}

func newDoor(addr net.Addr, onClose func() error) *door {
	return &door{addr: addr, onClose: onClose, passed: make(chan net.Conn), closed: make(chan struct{})}
}

// pass hands the connection to Accept. It returns false if the listener is closed.
func (d *door) pass(conn net.Conn) bool {
	select {
	case d.passed <- conn:
		return true
	case <-d.closed:
		return false
	}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.passed:
		return conn, nil
	case <-d.closed:
		return nil, d.err
	}
}

func (d *door) shut(err error) {
	d.once.Do(func() {
		d.err = err
		close(d.closed)
	})
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.shut(net.ErrClosed)
	return d.onClose()
}

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return d.addr }
