// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// FuzzServerResponse lets a server answer the first request with arbitrary bytes, and keep the connection open if they are a complete answer. It checks that
// the second request gets its own answer and none of these bytes.
func FuzzServerResponse(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirstHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthird",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\nTrailer: 1\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\nfirst", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfirst", "nonsense\r\n\r\n", "",
	} {
		f.Add([]byte(text))
	}
	var listeners atomic.Int64 // selects the IP address, because closed connections block the ports of one address for a minute
	f.Fuzz(func(t *testing.T, text []byte) {
		text = text[:min(len(text), 16<<10)] // small enough for one write into the buffer of the socket
		n := listeners.Add(1)
		host := fmt.Sprintf("127.0.%d.%d", n>>7&127, 1+n&127)
		if runtime.GOOS != "linux" {
			host = "127.0.0.1" // other systems have only this address
		}
		listener, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			serveAnswers(listener, text, isComplete(text))
		}()
		w := &connPool{address: listener.Addr().String()}
		defer func() {
			w.CloseIdleConnections()
			_ = listener.Close()
			<-ended
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err = getThrough(ctx, w, "/first")
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("answer %q: %v", text, err)
		}
		status, body, err := getThrough(ctx, w, "/second")
		if err != nil || status != http.StatusOK || body != "second" {
			t.Errorf("after the answer %q the second request got %d %q, %v", text, status, body, err)
		}
	})
}

func getThrough(ctx context.Context, w *connPool, path string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.address+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := w.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// isComplete reports whether a client knows where the answer ends if the connection stays open.
func isComplete(text []byte) bool {
	reader := bufio.NewReader(bytes.NewReader(text))
	for {
		response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodGet})
		switch {
		case err != nil || response.StatusCode == http.StatusSwitchingProtocols:
			return false
		case response.StatusCode < http.StatusOK:
			continue
		}
		_, err = io.Copy(io.Discard, response.Body)
		return err == nil && !response.Close && (response.ContentLength >= 0 || len(response.TransferEncoding) > 0)
	}
}

// serveAnswers answers requests for /first with the text and all others properly. It serves connections concurrently. If stays is false, it closes the
// connection after the text.
func serveAnswers(listener net.Listener, text []byte, stays bool) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = connection.Close() }()
		go func() {
			defer func() { _ = connection.Close() }()
			for reader := bufio.NewReader(connection); ; {
				req, err := http.ReadRequest(reader)
				if err != nil {
					return
				}
				if req.URL.Path != "/first" {
					_, _ = io.WriteString(connection, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond")
					continue
				}
				if _, err := connection.Write(text); err != nil || !stays {
					return
				}
			}
		}()
	}
}
