// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/internal/lsp/transport"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime/langserver"
)

// newProxyingAPIServer fakes an API server that proxies the requests for one Service to an address.
func newProxyingAPIServer(t *testing.T, path, address string, keys map[string][]byte) *httptest.Server {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: transport.Trust(keys[transport.Certificate]), DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "https", Host: address})
		r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, path)
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, path+"/") {
			http.NotFound(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestMultiplexer_IsReachedThroughAPIServer(t *testing.T) {
	g := NewWithT(t)
	keys, err := transport.NewKeys()
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	for name, content := range keys {
		g.Expect(os.WriteFile(filepath.Join(dir, name), content, 0o600)).To(Succeed())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	clients, managers := transport.Open(listener, dir)
	t.Cleanup(func() {
		_ = clients.Close()
		_ = managers.Close()
	})
	go func() {
		conn, err := clients.Accept()
		if err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	path := "/api/v1/namespaces/team/services/https:lsp-go:7077/proxy"
	server := newProxyingAPIServer(t, path, listener.Addr().String(), keys)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "lsp-go"}, Data: keys}
	to := &connection{config: &rest.Config{Host: server.URL}, client: fakeclient.NewClientBuilder().WithScheme(manager.Scheme()).WithObjects(secret).Build()}

	conn, err := to.multiplexer(t.Context(), "team", "https://lsp-go.team.svc:7077/lsp")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = io.WriteString(conn, "hello")
	g.Expect(err).NotTo(HaveOccurred())
	answer := make([]byte, 5)
	_, err = io.ReadFull(conn, answer)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(answer)).To(Equal("hello"))
	g.Expect(conn.Close()).To(Succeed())

	_, err = to.multiplexer(t.Context(), "team", "https://lsp-other.team.svc:7077/lsp")
	g.Expect(err).To(MatchError(ContainSubstring("read the token of the language server")))
}

func TestMultiplexerImage_DefaultsToManagerImage(t *testing.T) {
	g := NewWithT(t)
	own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "berth-manager-1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "sidecar", Image: "sidecar:1"}, {Name: "manager", Image: "berth:2", ImagePullPolicy: corev1.PullNever},
	}}}
	api := fake.NewClientset(own)
	t.Setenv(podNameVariable, "")
	_, err := multiplexerImage(t.Context(), api, "")
	g.Expect(err).To(MatchError(ContainSubstring("--multiplexer-image")))
	t.Setenv(podNameVariable, own.Name)
	t.Setenv(podNamespaceVariable, own.Namespace)
	g.Expect(multiplexerImage(t.Context(), api, "")).To(Equal(langserver.Image{Name: "berth:2", PullPolicy: corev1.PullNever}))
	g.Expect(multiplexerImage(t.Context(), api, "mine:3")).To(Equal(langserver.Image{Name: "mine:3"}))
	t.Setenv(podNameVariable, "gone")
	_, err = multiplexerImage(t.Context(), api, "")
	g.Expect(err).To(MatchError(ContainSubstring("find the image of this manager")))
}
