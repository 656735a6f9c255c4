// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

// message is an answer with its header lines unchanged.
type message struct {
	Status   string
	Fields   []string
	Body     string
	Trailers []string
}

// conversation holds the answers that a client received on one connection.
type conversation struct {
	Answers []message
	// Open reports whether the connection accepts another request.
	Open bool
}

// script is a sequence of requests that a client sends on one connection.
type script struct {
	name string
	// sent holds the parts to send. The client waits for an answer before each part but the first.
	sent []string
	// answers is the number of expected answers; 0 means 1.
	answers int
	// notPlain means that net/http parses the request or its answer, writes the names of header fields in canonical case, and sorts the fields.
	notPlain bool
}

func getRequest(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n" }

func requestWithBody(method, path, body string, fields ...string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s", method, path, len(body), strings.Join(fields, ""), body)
}

// runScript sends the script to a server and returns the answers.
func runScript(address string, s script) (c conversation, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return c, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(long))
	reader := bufio.NewReader(conn)
	methods := requestMethod.FindAllStringSubmatch(strings.Join(s.sent, ""), -1)
	for i, part := range s.sent {
		if i > 0 {
			m, err := readMessage(reader, "")
			if err != nil {
				return c, err
			}
			c.Answers = append(c.Answers, m)
		}
		if _, err := io.WriteString(conn, part); err != nil {
			return c, err
		}
	}
	for i := range max(s.answers, 1) {
		m, err := readMessage(reader, methods[min(i, len(methods)-1)][1])
		if err != nil {
			return c, fmt.Errorf("answer %d: %w", i, err)
		}
		c.Answers = append(c.Answers, m)
		if strings.HasPrefix(m.Status, "HTTP/1.1 101") {
			rest, err := io.ReadAll(reader)
			c.Answers[i].Body = string(rest)
			return c, err
		}
	}
	if _, err = io.WriteString(conn, getRequest("/length")); err == nil {
		_, err = readMessage(reader, http.MethodGet)
	}
	c.Open = err == nil
	return c, nil
}

var requestMethod = regexp.MustCompile(`(?m)^([A-Z]+) \S+ HTTP/1`)

// readLines reads up to a blank line.
func readLines(from *bufio.Reader) (lines []string, err error) {
	for {
		line, err := from.ReadString('\n')
		line = strings.TrimSuffix(line, "\r\n")
		if err != nil || line == "" {
			return lines, err
		}
		lines = append(lines, line)
	}
}

func readMessage(from *bufio.Reader, method string) (m message, err error) {
	if m.Fields, err = readLines(from); err != nil {
		return m, err
	}
	m.Status, m.Fields = m.Fields[0], m.Fields[1:]
	length := int64(-1)
	for _, field := range m.Fields {
		name, value, _ := strings.Cut(field, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "content-length":
			length, err = strconv.ParseInt(value, 10, 64)
		case "transfer-encoding":
			length = -2
		}
	}
	code := strings.Fields(m.Status)[1]
	switch {
	case err != nil, method == http.MethodHead, code[0] == '1', code == "204", code == "304":
		return m, err
	case length == -1:
		body, err := io.ReadAll(from)
		m.Body = string(body)
		return m, err
	case length >= 0:
		body := make([]byte, length)
		_, err = io.ReadFull(from, body)
		m.Body = string(body)
		return m, err
	}
	err = m.readChunks(from)
	return m, err
}

func (m *message) readChunks(from *bufio.Reader) error {
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			return err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil {
			return err
		}
		if n == 0 {
			m.Trailers, err = readLines(from)
			return err
		}
		chunk := make([]byte, n+2)
		if _, err = io.ReadFull(from, chunk); err != nil {
			return err
		}
		m.Body += string(chunk[:n])
	}
}

var date = regexp.MustCompile(`(?i)^(date): \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$`)

// expected returns the answer that the proxy should send for an answer of the server. It contains every change that the proxy makes on purpose.
func (s script) expected(c conversation) conversation {
	last := len(c.Answers) - 1
	for i, m := range c.Answers {
		// The proxy has separate connections to the client and to the server, and speaks HTTP/1.1 on both. When the server closes its connection, the proxy
		// keeps the connection to the client.
		code := strings.Fields(m.Status)[1]
		asked, old := strings.Contains(s.sent[0], "Connection: close"), strings.Contains(s.sent[0], "HTTP/1.0\r\n")
		m.Status = s.status(m.Status, code, old)
		m.Fields = slices.Clone(m.Fields)
		framed := code[0] == '1' || code == "204" || code == "304" || strings.HasPrefix(s.sent[0], http.MethodHead)
		m.Fields = slices.DeleteFunc(m.Fields, func(field string) bool {
			name := strings.ToLower(field[:strings.Index(field, ":")])
			framed = framed || name == "content-length" || name == "transfer-encoding"
			return (name == "connection" || name == "keep-alive") && code != "101"
		})
		switch {
		case i < last, code == "101":
		case old:
			c.Open = false
		case asked:
			c.Open = false
			m.Fields = append(m.Fields, "Connection: close")
		case framed:
			c.Open = true
		case s.notPlain: // net/http sends the body in chunks
			c.Open = true
			m.Fields = append(m.Fields, "Transfer-Encoding: chunked")
		default:
			c.Open = false
			m.Fields = append(m.Fields, "Connection: close")
		}
		c.Answers[i] = m
	}
	return c
}

// status returns the status line that the proxy should send for the status line of the server.
func (s script) status(line, code string, old bool) string {
	if s.notPlain { // net/http uses its own reason phrases, and answers HTTP/1.0 with HTTP/1.0
		number, _ := strconv.Atoi(code)
		line = "HTTP/1.1 " + code + " " + http.StatusText(number)
	}
	if old {
		return strings.Replace(line, "HTTP/1.1", "HTTP/1.0", 1)
	}
	return strings.Replace(line, "HTTP/1.0", "HTTP/1.1", 1)
}

// comparable removes values that differ between two requests. If notPlain is set, it also ignores the case and order of header names.
func (s script) comparable(c conversation) conversation {
	for i, m := range c.Answers {
		for n, field := range m.Fields {
			field = date.ReplaceAllString(field, "$1: now")
			if s.notPlain {
				name, value, _ := strings.Cut(field, ":")
				field = http.CanonicalHeaderKey(name) + ":" + value
			}
			m.Fields[n] = field
		}
		if s.notPlain {
			slices.SortStableFunc(m.Fields, func(a, b string) int {
				return strings.Compare(a[:strings.Index(a, ":")], b[:strings.Index(b, ":")])
			})
		}
		c.Answers[i] = m
	}
	return c
}

// startProgram starts a server that prints its port and exits at the end of its input. It returns the address.
func startProgram(t *testing.T, command ...string) string {
	t.Helper()
	g := NewWithT(t)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = "testdata"
	in, err := cmd.StdinPipe()
	g.Expect(err).NotTo(HaveOccurred())
	out, err := cmd.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	g.Expect(err).NotTo(HaveOccurred())
	return "127.0.0.1:" + strings.TrimSpace(port)
}

// TestProxy_ForwardsResponsesUnchanged sends the same bytes to a server directly and through the proxy, and compares the answers header by header.
func TestProxy_ForwardsResponsesUnchanged(t *testing.T) {
	plain := []script{
		{name: "length", sent: []string{getRequest("/length")}},
		{name: "chunks", sent: []string{getRequest("/chunked")}},
		{name: "trailers", sent: []string{getRequest("/trailers")}},
		{name: "no content", sent: []string{getRequest("/none")}},
		{name: "not modified", sent: []string{getRequest("/same")}},
		{name: "cookies", sent: []string{getRequest("/cookies")}},
		{name: "gzip", sent: []string{getRequest("/gzip")}},
		{name: "500 kB", sent: []string{getRequest("/many")}},
		{name: "missing", sent: []string{getRequest("/missing")}},
		{name: "the server closes", sent: []string{getRequest("/close")}},
		{name: "the client closes", sent: []string{"GET /length HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"}},
		{name: "HEAD", sent: []string{"HEAD /length HTTP/1.1\r\nHost: localhost\r\n\r\n"}},
		{name: "HEAD of chunks", sent: []string{"HEAD /chunked HTTP/1.1\r\nHost: localhost\r\n\r\n"}},
		{name: "OPTIONS", sent: []string{"OPTIONS /length HTTP/1.1\r\nHost: localhost\r\n\r\n"}},
		{name: "query and escapes", sent: []string{getRequest("/length?a=%2F&b;c")}},
	}
	others := []script{
		{name: "large header of the request", notPlain: true, sent: []string{"GET /length HTTP/1.1\r\nHost: localhost\r\nX-Large: " + strings.Repeat("x", 12<<10) + "\r\n\r\n"}},
		{name: "absolute form", notPlain: true, sent: []string{getRequest("http://localhost/length")}},
		{name: "HTTP/1.0", notPlain: true, sent: []string{"GET /length HTTP/1.0\r\nHost: localhost\r\n\r\n"}},
		{name: "POST", notPlain: true, sent: []string{requestWithBody("POST", "/echo", "body")}},
		{name: "PUT", notPlain: true, sent: []string{requestWithBody("PUT", "/echo", "body")}},
		{name: "PATCH", notPlain: true, sent: []string{requestWithBody("PATCH", "/echo", "body")}},
		{name: "DELETE", notPlain: true, sent: []string{"DELETE /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"}},
		{name: "PROPFIND", notPlain: true, sent: []string{requestWithBody("PROPFIND", "/echo", "body")}},
		{name: "POST in chunks", notPlain: true, sent: []string{"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"}},
	}
	early := []script{
		{name: "early hints", notPlain: true, sent: []string{getRequest("/hints")}, answers: 2},
		{name: "refused early", notPlain: true, sent: []string{requestWithBody("POST", "/early", "body")}},
		{name: "expectation refused", notPlain: true, sent: []string{"POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: something\r\nContent-Length: 4\r\n\r\n"}},
	}
	expecting := []script{
		{name: "continue", notPlain: true, sent: []string{"POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", "body"}},
	}
	upgrading := []script{
		{name: "upgrade", notPlain: true, sent: []string{"GET /socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"}},
	}
	pipelined := []script{
		{name: "large header", notPlain: true, sent: []string{getRequest("/large")}},
		{name: "pipelined", sent: []string{getRequest("/length") + getRequest("/chunked") + getRequest("/none") + getRequest("/length")}, answers: 4},
	}
	for name, test := range map[string]struct {
		server  func(t *testing.T) string
		scripts [][]script
	}{
		"node":        {startNode, [][]script{plain, others, early[:2], expecting, upgrading, pipelined}},
		"net/http":    {func(t *testing.T) string { return newServer(t, "127.0.0.1:0", serveRequest).address }, [][]script{plain, others, expecting, upgrading, pipelined}},
		"Flask":       {func(t *testing.T) string { return startProgram(t, need.Python(t, "flask"), "flask_server.py") }, [][]script{plain, others, pipelined[:1]}},
		"http.server": {func(t *testing.T) string { return startProgram(t, need.Python(t), "http_server.py") }, [][]script{plain, others}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compareWithProxy(t, test.server(t), slices.Concat(test.scripts...))
		})
	}
}

// startNode starts the server that uses Node.js.
func startNode(t *testing.T) string {
	t.Helper()
	need.Programs(t, "node")
	return startProgram(t, "node", "server.js")
}

// compareWithProxy runs each script against the server directly and through the proxy.
func compareWithProxy(t *testing.T, address string, scripts []script) {
	t.Helper()
	f := newFixture(t, Options{})
	f.g.Expect(f.Open(uid, 1, "http://"+address)).To(Succeed())
	for _, script := range scripts {
		t.Run(script.name, func(t *testing.T) {
			g := NewWithT(t)
			direct, err := runScript(address, script)
			g.Expect(err).NotTo(HaveOccurred(), "without the proxy")
			through, err := runScript(fmt.Sprintf("127.0.0.1:%d", f.port), script)
			g.Expect(err).NotTo(HaveOccurred(), "through the proxy")
			if !direct.Open && strings.HasPrefix(script.sent[0], "P") {
				through.Open = true // not compared: the server keeps the connection only if it has read the body before it answers, which depends on timing
			}
			g.Expect(script.comparable(through)).To(Equal(script.comparable(script.expected(direct))))
		})
	}
}

// serveRequest is the handler of the server that uses net/http.
func serveRequest(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	switch r.URL.Path {
	case "/length":
		header["x-mixed-Case"] = []string{"kept"}
	case "/chunked", "/trailers":
		header.Set("Trailer", "Sum")
		_, _ = io.WriteString(w, "one ")
		_ = http.NewResponseController(w).Flush()
		header.Set("Sum", "42")
	case "/none":
		w.WriteHeader(http.StatusNoContent)
		return
	case "/same":
		header["Etag"] = []string{`"1"`}
		w.WriteHeader(http.StatusNotModified)
		return
	case "/cookies":
		header["Set-Cookie"] = []string{"a=1; Path=/", "b=2", "a=3"}
	case "/gzip":
		header.Set("Content-Encoding", "gzip")
		header["Content-Type"] = nil
	case "/large":
		header.Set("X-Large", strings.Repeat("x", 32<<10))
	case "/many":
		_, _ = io.WriteString(w, strings.Repeat("0123456789", 50000))
	case "/close":
		header.Set("Connection", "close")
	case "/echo":
		_, _ = io.Copy(w, r.Body)
		return
	case "/socket":
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\nhello")
			_ = conn.Close()
		}
		return
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = io.WriteString(w, "answer")
}

// The server receives the bytes of the client unchanged, without the header Connection, plus the headers that a proxy adds.
func TestPlainRequest_IsForwardedByteForByte(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t, Options{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = listener.Close() }()
	g.Expect(f.Open(uid, 1, "http://"+listener.Addr().String())).To(Succeed())
	client, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.port))
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = client.Close() }()
	writeText(client, "GET /a%2fb//c?x=1;y&[] HTTP/1.1\r\nhost: LOCALHOST:1\r\nX-b: 1\r\nx-a:  2 \r\nConnection: Keep-Alive\r\nx-B: caf\xe9\r\n\r\n")
	server, err := listener.Accept()
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = server.Close() }()
	var got strings.Builder
	for reader := bufio.NewReader(server); !strings.HasSuffix(got.String(), "\r\n\r\n"); {
		line, err := reader.ReadString('\n')
		g.Expect(err).NotTo(HaveOccurred())
		got.WriteString(line)
	}
	g.Expect(got.String()).To(Equal("GET /a%2fb//c?x=1;y&[] HTTP/1.1\r\nhost: LOCALHOST:1\r\nX-b: 1\r\nx-a:  2 \r\nx-B: caf\xe9\r\n" +
		"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Host: LOCALHOST:1\r\nX-Forwarded-Proto: http\r\n\r\n"))
	writeText(server, hello)
	_, err = readMessage(bufio.NewReader(client), http.MethodGet)
	g.Expect(err).NotTo(HaveOccurred())
}

// Requests that two programs may understand differently are left to net/http.
func TestParseRequest_RejectsUnusualRequests(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t, Options{})
	c := &client{address: f.of(uid), ip: "127.0.0.1"}
	const fields = "Host: localhost\r\n\r\n"
	for text, plain := range map[string]bool{
		"GET / HTTP/1.1\r\n" + fields:                      true,
		"GET / HTTP/1.1\r\nConnection: close\r\n" + fields: true,
		"":                                                           false,
		"GET / HTTP/1.1\r\n\r\n":                                     false,
		"GET / HTTP/1.0\r\n" + fields:                                false,
		"GET  / HTTP/1.1\r\n" + fields:                               false,
		"GET / HTTP/1.1 \r\n" + fields:                               false,
		"GET /\x01 HTTP/1.1\r\n" + fields:                            false,
		"GET http://localhost/ HTTP/1.1\r\n" + fields:                false,
		"POST / HTTP/1.1\r\n" + fields:                               false,
		"get / HTTP/1.1\r\n" + fields:                                false,
		"OPTIONS * HTTP/1.1\r\n" + fields:                            false,
		"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n":                false,
		"GET / HTTP/1.1\r\nHost: localhost\r\n" + fields:             false,
		"GET / HTTP/1.1\r\nContent-Length: 1\r\n" + fields:           false,
		"GET / HTTP/1.1\r\ncontent-length: 0\r\n" + fields:           false,
		"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + fields:  false,
		"GET / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n" + fields: false,
		"GET / HTTP/1.1\r\nX: 1\r\n Content-Length: 1\r\n" + fields:  false,
		"GET / HTTP/1.1\r\nX: 1\nContent-Length: 1\r\n" + fields:     false,
		"GET / HTTP/1.1\r\nX: 1\rContent-Length: 1\r\n" + fields:     false,
		"GET / HTTP/1.1\r\nX: 1\x00\r\n" + fields:                    false,
		"GET / HTTP/1.1\r\nX\r\n" + fields:                           false,
		"GET / HTTP/1.1\r\n: 1\r\n" + fields:                         false,
		"GET / HTTP/1.1\r\nUpgrade: x\r\n" + fields:                  false,
		"GET / HTTP/1.1\r\nExpect: 100-continue\r\n" + fields:        false,
		"GET / HTTP/1.1\r\nTE: trailers\r\n" + fields:                false,
		"GET / HTTP/1.1\r\nConnection: X-Secret\r\n" + fields:        false,
		"GET / HTTP/1.1\r\nx-forwarded-for: 1\r\n" + fields:          false,
		"GET / HTTP/1.1\r\nForwarded: for=1\r\n" + fields:            false,
		"GET / HTTP/1.1\r\nProxy-Authorization: x\r\n" + fields:      false,
	} {
		_, got := c.parseRequest([]byte(text))
		g.Expect(got).To(Equal(plain), "%q", text)
	}
}

// Answers that two programs may understand differently are left to net/http.
func TestParseAnswer_RejectsUnusualResponses(t *testing.T) {
	g := NewWithT(t)
	for text, plain := range map[string]bool{
		"200 OK\r\nContent-Length: 1\r\n\r\n": true,
		"200\r\n\r\n":                         true,
		"200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n": true,
		"20 OK\r\n\r\n":                                                     false,
		"103 Early Hints\r\n\r\n":                                           false,
		"101 Switching Protocols\r\nUpgrade: x\r\n\r\n":                     false,
		"200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n":          false,
		"200 OK\r\nContent-Length: 1, 1\r\n\r\n":                            false,
		"200 OK\r\nContent-Length: +1\r\n\r\n":                              false,
		"200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n": false,
		"200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n": false,
		"200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n":                false,
		"200 OK\r\nConnection: X-Secret\r\n\r\n":                            false,
		"200 OK\r\nX: 1\r\n y\r\n\r\n":                                      false,
		"200 OK\r\nX : 1\r\n\r\n":                                           false,
		"200 OK\x00\r\n\r\n":                                                false,
	} {
		_, got := new(client).parseAnswer([]byte("HTTP/1.1 "+text), plainRequest{})
		g.Expect(got).To(Equal(plain), "%q", text)
	}
}

// TestProxy_ForwardsUnusualResponsesUnchanged lets a server send unusual responses that no HTTP library produces.
func TestProxy_ForwardsUnusualResponsesUnchanged(t *testing.T) {
	answers := map[string]string{
		"/length":        "HTTP/1.1 200 Fine\r\nx-b: 1\r\nX-A:2\r\nx-b:  3 \r\nSERVER: me\r\nX-Empty:\r\ncontent-LENGTH: 6\r\n\r\nanswer",
		"/reason":        "HTTP/1.1 299 \r\nContent-Length: 6\r\n\r\nanswer",
		"/extensions":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nans\r\n3\r\nwer\r\n0\r\nSum: 42\r\nsum: 43\r\n\r\n",
		"/two":           "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nWarning: a\r\nWarning: b\r\n\r\nanswer",
		"/empty":         "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"/same":          "HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\netag: 1\r\n\r\n",
		"/proxy-nothing": "HTTP/1.1 200 OK\r\nX-Name: caf\xe9\r\nContent-Length: 6\r\n\r\nanswer",
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for reader := bufio.NewReader(conn); ; {
					request, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					writeText(conn, answers[request.URL.Path])
				}
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	var scripts []script
	for path := range answers {
		scripts = append(scripts, script{name: path, sent: []string{getRequest(path)}})
	}
	compareWithProxy(t, listener.Addr().String(), scripts)
}

// TestProxy_ForwardsRefusalDuringUpload lets servers refuse a large body and close the connection while the client is still sending it.
func TestProxy_ForwardsRefusalDuringUpload(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large",
		"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	} {
		p := newPeer(t, func(_ int64, conn net.Conn, next func() bool) {
			next()
			writeText(conn, answer)
		})
		for range 40 {
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
			p.g.Expect(err).NotTo(HaveOccurred())
			sent := make(chan error, 1)
			go func() {
				_, err := io.WriteString(conn, requestWithBody("POST", "/", strings.Repeat("x", 4<<20)))
				sent <- err
			}()
			m, err := readMessage(bufio.NewReader(conn), http.MethodPost)
			p.g.Expect(err).NotTo(HaveOccurred())
			p.g.Expect(m.Status).To(HavePrefix(answer[:len("HTTP/1.1 413 ")]), m.Body)
			p.g.Expect(answer).To(HaveSuffix("\r\n\r\n" + m.Body))
			_ = conn.Close()
			if err := <-sent; err != nil {
				var failed *net.OpError
				p.g.Expect(errors.As(err, &failed)).To(BeTrue())
			}
		}
	}
}
