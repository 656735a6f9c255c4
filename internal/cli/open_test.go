// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const servicePath = "/api/v1/namespaces/default/services/http:web:5173/proxy"

// serviceProxy fakes the proxy of an API server for a Service. Its responses echo the request and the credentials.
func serviceProxy(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == servicePath+"/moved" {
			http.Redirect(w, r, servicePath+"/there?x=1", http.StatusFound)
			return
		}
		if websocket.IsWebSocketUpgrade(r) {
			answerOnce(t, w, r)
			return
		}
		w.Header().Set("As", r.Header.Get("Authorization")+r.Header.Get("Impersonate-User"))
		_, _ = io.WriteString(w, r.Method+" "+r.URL.RequestURI())
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// runOpen runs berth open and returns the address that it prints.
func runOpen(t *testing.T, change func(*v1alpha1.DevServer)) (address string) {
	g := NewWithT(t)
	f, host := newFixture(web(webInPod, change)), serviceProxy(t)
	f.app.connect = func(*connectionFlags) (*connection, error) {
		return &connection{config: &rest.Config{Host: host, BearerToken: "mine"}, client: f.api, namespace: "default"}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- f.run(ctx, "open", "devserver/web") }()
	t.Cleanup(func() {
		cancel()
		g.Eventually(ended, timeout).Should(Receive(BeZero()), f.err.String)
	})
	g.Eventually(f.out.String, timeout).Should(HaveSuffix("/\n"), f.err.String)
	return strings.TrimSuffix(f.out.String(), "/\n")
}

func inService(server *v1alpha1.DevServer) { server.Status.URL = "http://web.default.svc:5173/" }

func TestOpenForwardsToTheService(t *testing.T) {
	g := NewWithT(t)
	address := runOpen(t, inService)
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ask := func(method, path string, change ...func(*http.Request)) (status int, body string, header http.Header) {
		r, err := http.NewRequestWithContext(t.Context(), method, address+path, nil)
		g.Expect(err).NotTo(HaveOccurred())
		r.Header.Set("Authorization", "Bearer of-the-page")
		r.Header.Set("Impersonate-User", "admin")
		for _, do := range change {
			do(r)
		}
		response, err := browser.Do(r)
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		g.Expect(err).NotTo(HaveOccurred())
		return response.StatusCode, string(text), response.Header
	}
	status, body, header := ask(http.MethodPost, "/a%2Fb/c?d=e")
	g.Expect(status).To(Equal(http.StatusOK))
	g.Expect(body).To(Equal("POST " + servicePath + "/a%2Fb/c?d=e"))
	g.Expect(header.Get("As")).To(Equal("Bearer mine"), "the credentials are those of the user, not those of the request")

	_, body, _ = ask(http.MethodGet, servicePath+"/style.css")
	g.Expect(body).To(Equal("GET "+servicePath+"/style.css"), "the API server rewrites links in pages to this form")
	status, _, header = ask(http.MethodGet, "/moved")
	g.Expect(status).To(Equal(http.StatusFound))
	g.Expect(header.Get("Location")).To(Equal("/there?x=1"))

	for _, path := range []string{"/../../../secrets", "/%2e%2e/%2e%2e/secrets", "/a/..%2f..%2fsecrets"} {
		status, _, _ = ask(http.MethodGet, path)
		g.Expect(status).To(Equal(http.StatusBadRequest), path)
	}
	status, _, _ = ask(http.MethodGet, "/", func(r *http.Request) { r.Host = "evil.example" })
	g.Expect(status).To(Equal(http.StatusForbidden), "a foreign name that resolves to this address (DNS rebinding)")
}

// answerOnce answers one message on a WebSocket, which dev servers use to reload pages.
func answerOnce(t *testing.T, w http.ResponseWriter, r *http.Request) {
	conn, err := (&websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}).Upgrade(w, r, nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	kind, text, err := conn.ReadMessage()
	if err != nil || conn.WriteMessage(kind, append([]byte(r.URL.RequestURI()+" "+r.Header.Get("Authorization")+" "), text...)) != nil {
		t.Error("no message was received or sent:", err)
	}
}

func TestOpenForwardsWebSockets(t *testing.T) {
	g := NewWithT(t)
	conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(runOpen(t, inService), "http")+"/?token=a", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(response.Body.Close()).To(Succeed())
	defer func() { _ = conn.Close() }()
	g.Expect(conn.WriteMessage(websocket.TextMessage, []byte("hello"))).To(Succeed())
	_, text, err := conn.ReadMessage()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(text)).To(Equal(servicePath + "/?token=a Bearer mine hello"))
}

func TestOpenRefusesWebSocketsOfOtherSites(t *testing.T) {
	g := NewWithT(t)
	address := runOpen(t, inService)
	for origin, want := range map[string]int{
		"https://evil.example": http.StatusForbidden, "null": http.StatusForbidden, address: http.StatusSwitchingProtocols,
	} {
		header := http.Header{"Origin": {origin}}
		conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(address, "http")+"/", header)
		g.Expect(response).NotTo(BeNil(), "%v", err)
		g.Expect(response.Body.Close()).To(Succeed())
		g.Expect(response.StatusCode).To(Equal(want), origin)
		if err == nil {
			g.Expect(conn.WriteMessage(websocket.TextMessage, []byte("hello"))).To(Succeed())
			_, _, err = conn.ReadMessage()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(conn.Close()).To(Succeed())
		}
	}
}

func TestOpenPrintsTheAddressOnTheHost(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web())
	g.Expect(f.run(t.Context(), "open", "devserver/web")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(Equal("http://127.0.0.1:5173/\n"))
	f = newFixture(web(func(server *v1alpha1.DevServer) { server.Status.URL = "" }))
	g.Expect(f.run(t.Context(), "open", "devserver/web")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring("has no address yet"))
	f = newFixture(shell())
	g.Expect(f.run(t.Context(), "open", "-n", "other", "instance/shell")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring("is not a dev server"))
}
