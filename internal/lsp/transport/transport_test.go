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

// bench is a gate whose streams respond with a word and an echo of their input.
type bench struct {
	*testing.T
	*WithT
	address string
	dir     string
	keys    map[string][]byte
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, WithT: NewWithT(t), dir: t.TempDir()}
	b.rotate()
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

// rotate creates new keys.
func (b *bench) rotate() {
	b.Helper()
	var err error
	b.keys, err = NewKeys()
	b.Expect(err).NotTo(HaveOccurred())
	for name, content := range b.keys {
		b.Expect(os.WriteFile(filepath.Join(b.dir, name), content, 0o600)).To(Succeed())
	}
}

// through returns a transport that trusts the certificate, in place of the proxy of an API server, which trusts any certificate.
func (b *bench) through() *http.Transport {
	transport := &http.Transport{TLSClientConfig: Trust(b.keys[Certificate]), DisableKeepAlives: true}
	b.Cleanup(transport.CloseIdleConnections)
	return transport
}

func (b *bench) client(path, token string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second) // the connection must outlive this context
	defer cancel()
	return Through(ctx, b.through(), &url.URL{Scheme: "https", Host: b.address, Path: path}, token)
}

// says sends a word and returns the response.
func (b *bench) says(conn net.Conn, word string) string {
	b.Helper()
	_, err := io.WriteString(conn, word)
	b.Expect(err).NotTo(HaveOccurred())
	answer := make([]byte, len("manager ")+len(word))
	n, err := io.ReadAtLeast(conn, answer, len("client ")+len(word))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(conn.Close()).To(Succeed())
	return string(answer[:n])
}

func TestWhoHasTheTokenComesIn(t *testing.T) {
	b := newBench(t)
	conn, err := b.client(ClientPath, string(b.keys[ClientToken]))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(conn.RemoteAddr().String()).To(Equal(b.address))
	b.Expect(b.says(conn, "hello")).To(Equal("client hello"))
	conn, err = Dial(t.Context(), b.address, b.keys)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.says(conn, "hello!")).To(HavePrefix("manager hello"))
}

func TestOthersStayOutside(t *testing.T) {
	b := newBench(t)
	_, err := b.client(ClientPath, "guessed")
	b.Expect(err).To(MatchError(ErrRefused))
	_, err = b.client(ClientPath, "")
	b.Expect(err).To(MatchError(ErrRefused))
	_, err = b.client(ManagerPath, string(b.keys[ClientToken]))
	b.Expect(err).To(MatchError(ErrRefused), "the token of a client is not that of a manager")
	_, err = b.client("/else", string(b.keys[ClientToken]))
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
	b.Expect(err).To(MatchError(ErrRefused))

	b.Expect(os.Truncate(filepath.Join(b.dir, ClientToken), 0)).To(Succeed())
	_, err = b.client(ClientPath, "")
	b.Expect(err).To(MatchError(ErrRefused), "an empty token is refused")
}

func TestABrowserIsToldWhatThisIs(t *testing.T) {
	b := newBench(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+b.address+ClientPath, nil)
	b.Expect(err).NotTo(HaveOccurred())
	response, err := b.through().RoundTrip(request)
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	b.Expect(response.StatusCode).To(Equal(http.StatusUpgradeRequired))
	b.Expect(response.Header.Get("Upgrade")).To(Equal(Protocol))
	b.Expect(io.ReadAll(response.Body)).To(ContainSubstring("berth lsp connect"))
}

func TestASecretThatWasMadeAnewCounts(t *testing.T) {
	b := newBench(t)
	old := b.keys
	b.rotate()
	_, err := Dial(t.Context(), b.address, old)
	b.Expect(err).To(HaveOccurred())
	conn, err := Dial(t.Context(), b.address, b.keys)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.says(conn, "hello!")).To(HavePrefix("manager hello"))
}

func TestNobodyWaitsForOneWhoIsSilent(t *testing.T) {
	b := newBench(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, silent.Addr().String(), b.keys)
	b.Expect(err).To(MatchError(context.DeadlineExceeded))
}

func TestPlainTextIsRefused(t *testing.T) {
	b := newBench(t)
	_, err := tls.Dial("tcp", b.address, &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // that it is too old is tested
	b.Expect(err).To(HaveOccurred())
	plain := &url.URL{Scheme: "http", Host: b.address, Path: ClientPath}
	_, err = Through(t.Context(), b.through(), plain, string(b.keys[ClientToken]))
	b.Expect(err).To(HaveOccurred())
}
