// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server whose connections respond with a word and an echo of their input.
type fixture struct {
	*testing.T
	*WithT
	address string
	dir     string
	keys    map[string][]byte
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{T: t, WithT: NewWithT(t), dir: t.TempDir()}
	b.rotateKeys()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	b.Expect(err).NotTo(HaveOccurred())
	b.address = listener.Addr().String()
	clients, managers := Open(listener, b.dir)
	done := make(chan struct{}, 2)
	for word, door := range map[string]net.Listener{"client": clients, "manager": managers} {
		go func() {
			echo(door, word)
			done <- struct{}{}
		}()
	}
	t.Cleanup(func() {
		b.Expect(clients.Close()).To(Succeed())
		b.Expect(managers.Close()).To(Succeed())
		<-done
		<-done
	})
	return b
}

func echo(door net.Listener, word string) {
	for {
		conn, err := door.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, word+" "); err == nil {
				_, _ = io.Copy(conn, conn)
			}
		}()
	}
}

// rotateKeys creates new keys.
func (b *fixture) rotateKeys() {
	b.Helper()
	var err error
	b.keys, err = NewKeys()
	b.Expect(err).NotTo(HaveOccurred())
	for name, content := range b.keys {
		b.Expect(os.WriteFile(filepath.Join(b.dir, name), content, 0o600)).To(Succeed())
	}
}

// newTransport returns a transport in place of the proxy of an API server. The transport trusts only the certificate of the multiplexer; an API server trusts
// every certificate.
func (b *fixture) newTransport() *http.Transport {
	transport := &http.Transport{TLSClientConfig: Trust(b.keys[Certificate]), DisableKeepAlives: true}
	b.Cleanup(transport.CloseIdleConnections)
	return transport
}

func (b *fixture) dialClient(path, token string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second) // the connection must outlive this context
	defer cancel()
	return Through(ctx, b.newTransport(), &url.URL{Scheme: "https", Host: b.address, Path: path}, token)
}

// exchange sends a word and returns the response.
func (b *fixture) exchange(conn net.Conn, word string) string {
	b.Helper()
	_, err := io.WriteString(conn, word)
	b.Expect(err).NotTo(HaveOccurred())
	answer := make([]byte, len("manager ")+len(word))
	n, err := io.ReadAtLeast(conn, answer, len("client ")+len(word))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(conn.Close()).To(Succeed())
	return string(answer[:n])
}

func TestOpen_AcceptsValidTokens(t *testing.T) {
	b := newFixture(t)
	conn, err := b.dialClient(ClientPath, string(b.keys[ClientToken]))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(conn.RemoteAddr().String()).To(Equal(b.address))
	b.Expect(b.exchange(conn, "hello")).To(Equal("client hello"))
	conn, err = Dial(t.Context(), b.address, b.keys)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.exchange(conn, "hello!")).To(HavePrefix("manager hello"))
}

func TestOpen_RefusesInvalidCredentials(t *testing.T) {
	b := newFixture(t)
	_, err := b.dialClient(ClientPath, "guessed")
	b.Expect(err).To(MatchError(errRefused))
	_, err = b.dialClient(ClientPath, "")
	b.Expect(err).To(MatchError(errRefused))
	_, err = b.dialClient(managerPath, string(b.keys[ClientToken]))
	b.Expect(err).To(MatchError(errRefused), "the token of a client is not that of a manager")
	_, err = b.dialClient("/else", string(b.keys[ClientToken]))
	b.Expect(err).To(MatchError(ContainSubstring("The language server is at /lsp")))

	forged, err := NewKeys()
	b.Expect(err).NotTo(HaveOccurred())
	other := maps.Clone(b.keys)
	other[Certificate] = forged[Certificate]
	_, err = Dial(t.Context(), b.address, other)
	b.Expect(err).To(MatchError(ContainSubstring("differs from the one in its Secret")))
	other[Certificate] = nil
	_, err = Dial(t.Context(), b.address, other)
	b.Expect(err).To(MatchError(ContainSubstring("has no certificate in tls.crt")))
	other[Certificate], other[ManagerToken] = b.keys[Certificate], []byte("guessed")
	_, err = Dial(t.Context(), b.address, other)
	b.Expect(err).To(MatchError(errRefused))

	b.Expect(os.Truncate(filepath.Join(b.dir, ClientToken), 0)).To(Succeed())
	_, err = b.dialClient(ClientPath, "")
	b.Expect(err).To(MatchError(errRefused), "an empty token is refused")
}

func TestOpen_ExplainsProtocolToBrowser(t *testing.T) {
	b := newFixture(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+b.address+ClientPath, nil)
	b.Expect(err).NotTo(HaveOccurred())
	response, err := b.newTransport().RoundTrip(request)
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	b.Expect(response.StatusCode).To(Equal(http.StatusUpgradeRequired))
	b.Expect(response.Header.Get("Upgrade")).To(Equal(protocol))
	b.Expect(io.ReadAll(response.Body)).To(ContainSubstring("berth lsp connect"))
}

func TestOpen_UsesRotatedKeys(t *testing.T) {
	b := newFixture(t)
	old := b.keys
	b.rotateKeys()
	_, err := Dial(t.Context(), b.address, old)
	b.Expect(err).To(HaveOccurred())
	conn, err := Dial(t.Context(), b.address, b.keys)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.exchange(conn, "hello!")).To(HavePrefix("manager hello"))
}

func TestDial_StopsAtDeadlineWhenServerIsSilent(t *testing.T) {
	b := newFixture(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, silent.Addr().String(), b.keys)
	b.Expect(err).To(MatchError(context.DeadlineExceeded))
}

func TestOpen_RefusesOldTLSAndPlainText(t *testing.T) {
	b := newFixture(t)
	_, err := tls.Dial("tcp", b.address, &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // the server rejects TLS 1.2
	b.Expect(err).To(HaveOccurred())
	plain := &url.URL{Scheme: "http", Host: b.address, Path: ClientPath}
	_, err = Through(t.Context(), b.newTransport(), plain, string(b.keys[ClientToken]))
	b.Expect(err).To(HaveOccurred())
}
