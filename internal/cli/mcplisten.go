// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// mcpPath is the path at which MCP is served over HTTP.
	mcpPath = "/mcp"
	// maxMCPRequest is the maximum size of a request body, in bytes.
	maxMCPRequest = 1 << 20
	// mcpShutdown bounds how long the server waits for requests in progress when it ends.
	mcpShutdown = 5 * time.Second
)

// mcpListen serves MCP over HTTP until the context is done. Every program and every web page of the machine can reach a loopback address, but the tools have the
// permissions of this user. Therefore each request needs a token, which only this user sees.
func (a *app) mcpListen(ctx context.Context, server *mcp.Server, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--listen %q is not HOST:PORT: %w", address, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen %q is not a loopback address: use 127.0.0.1, and for access from other machines an SSH tunnel", address)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	token := rand.Text()
	serving := &http.Server{Handler: mcpHandler(server, token), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	a.say("MCP server: http://%s%s", listener.Addr(), mcpPath)
	a.say("clients must send the header: Authorization: Bearer %s", token)
	ended := make(chan error, 1)
	go func() { ended <- serving.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve MCP on %s: %w", address, err)
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), mcpShutdown)
	defer cancel()
	if err := serving.Shutdown(limited); errors.Is(err, context.DeadlineExceeded) {
		_ = serving.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve MCP on %s: %w", address, err)
	}
	return nil
}

// mcpHandler serves MCP to clients that have the token. It rejects requests of web pages of other origins; the library rejects those with another Host, which a
// rebound DNS name causes.
func mcpHandler(server *mcp.Server, token string) http.Handler {
	streams := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
		// Without sessions, a client that disappears leaves nothing behind. The tools need none.
		Stateless: true, MaxRequestBodyBytes: maxMCPRequest,
	})
	mux := http.NewServeMux()
	mux.Handle(mcpPath, http.NewCrossOriginProtection().Handler(streams))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !bearer || subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the token is missing or wrong: send the header Authorization with the token that berth mcp printed", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
