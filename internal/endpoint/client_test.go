// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/runtime"
)

var someObject = Object{Namespace: "default", Resource: "devservers", Name: "web"}

// TestClient_GivesUpOnAManagerThatDoesNotAnswer connects to a program that never accepts. The kernel completes the connection, as for a suspended manager.
func TestClient_GivesUpOnAManagerThatDoesNotAnswer(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = listener.Close() }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := &Client{
		base: &url.URL{Scheme: "https", Host: listener.Addr().String()}, http: &http.Client{Transport: transport},
		patience: patience{connect: 50 * time.Millisecond, answer: time.Minute},
	}
	for name, ask := range map[string]func() error{
		"logs":   func() error { _, err := c.Log(t.Context(), someObject, LogOptions{Follow: true, Tail: -1}); return err },
		"attach": func() error { _, err := c.Attach(t.Context(), someObject, nil); return err },
		"send":   func() error { return c.Type(t.Context(), someObject, runtime.Keystrokes{Text: "text"}) },
	} {
		g.Expect(ask()).To(MatchError(ContainSubstring("does not respond: is it suspended or overloaded?")), name)
	}
}

func TestClient_LimitsWaitForAnswerNotStream(t *testing.T) {
	g := NewWithT(t)
	proceed := make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("follow") {
			begin(w, 0)
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-proceed:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "late")
	}))
	defer server.Close()
	base, err := url.Parse(server.URL)
	g.Expect(err).NotTo(HaveOccurred())
	c := &Client{base: base, http: server.Client(), patience: patience{connect: time.Minute, answer: 100 * time.Millisecond}}
	_, err = c.Log(t.Context(), someObject, LogOptions{Tail: -1})
	g.Expect(err).To(MatchError(ContainSubstring("does not respond")))

	stream, err := c.Log(t.Context(), someObject, LogOptions{Follow: true, Tail: -1})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = stream.Close() }()
	close(proceed)
	g.Expect(io.ReadAll(stream)).To(BeEquivalentTo("late"))
}
