// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"time"
)

// pooledConn is one connection. It has a single user until it is returned to the pool.
type pooledConn struct {
	wire       *connPool
	connection net.Conn
	in         *bufio.Reader
	out        *bufio.Writer
	since      time.Time // when the connection was returned to the pool
	// room is how many bytes of a header may still be received. heard reports whether part of the response was received.
	room  int64
	heard bool
}

// headerRoom is the maximum length of the header of a response, in bytes. It is the default of http.Transport.
const headerRoom = 10 << 20

var (
	errHeader   = errors.New("the response header is too long")
	errSwitched = errors.New("the server switched to a protocol that was not requested")
)

func newLine(w *connPool, connection net.Conn) *pooledConn {
	l := &pooledConn{wire: w, connection: connection, out: bufio.NewWriter(connection)}
	l.in = bufio.NewReaderSize(l, clientBuffer)
	return l
}

// Read implements io.Reader.
func (l *pooledConn) Read(p []byte) (int, error) {
	if l.room <= 0 {
		return 0, errHeader
	}
	n, err := l.connection.Read(p)
	l.room -= int64(n)
	l.heard = l.heard || n > 0
	return n, err
}

// forward sends the head of a request and returns the head of the response, which remains in the buffer. The returned head is empty if the response is not
// HTTP, or if its head is too long for the buffer.
func (l *pooledConn) forward(head []byte) ([]byte, error) {
	l.room, l.heard = headerRoom, false
	if _, err := l.connection.Write(head); err != nil {
		return nil, err
	}
	for {
		text, err := l.in.Peek(max(l.in.Buffered(), 1))
		if size := headSize(text); size > 0 || len(text) == l.in.Size() || !bytes.HasPrefix(text, protocol[:min(len(text), len(protocol))]) {
			return text[:size], nil
		}
		if err == nil {
			_, err = l.in.Peek(len(text) + 1)
		}
		if err != nil {
			return nil, err
		}
	}
}

var protocol = []byte("HTTP/")

func (l *pooledConn) close() { _ = l.connection.Close() }

// exchange sends a request and reads the response up to its body. The connection returns to the pool when the body has been read completely.
func (l *pooledConn) exchange(req *http.Request) (*http.Response, error) {
	l.room, l.heard = headerRoom, false
	stop := context.AfterFunc(req.Context(), l.close)
	err := req.Write(l.out)
	if err == nil {
		err = l.out.Flush()
	}
	return l.receive(req, stop, err)
}

// receive reads the response to a request up to its body. err is the error of sending the request, or nil. stop releases the hook that closes the connection
// when the context of the request is done.
func (l *pooledConn) receive(req *http.Request, stop func() bool, err error) (*http.Response, error) {
	var response *http.Response
	if err == nil {
		response, err = l.hear(req)
	}
	if err == nil && response.ContentLength > 0 && response.Body != http.NoBody {
		_, err = l.in.Peek(1) // wait for the body, because the request can only be retried while the client has no byte of the response
	}
	if err != nil {
		stop()
		l.close()
		return nil, err
	}
	if int64(l.in.Buffered()) < response.ContentLength {
		atOnce(response)
	}
	answer := &answerBody{Reader: response.Body, line: l, stop: stop, last: response.Close}
	l.room = math.MaxInt64
	if response.Body == http.NoBody {
		answer.end(true)
	} else {
		response.Body = answer
	}
	return response, nil
}

// hear reads the header of the response. It reports informational responses before it, such as early hints, to the trace of the request.
func (l *pooledConn) hear(req *http.Request) (*http.Response, error) {
	for {
		response, err := http.ReadResponse(l.in, req)
		switch {
		case err != nil:
			return nil, err
		case response.StatusCode == http.StatusSwitchingProtocols:
			return nil, errSwitched
		case response.StatusCode >= http.StatusOK:
			return response, nil
		}
		if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(response.StatusCode, textproto.MIMEHeader(response.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// answerBody is the body of a response.
type answerBody struct {
	io.Reader
	line *pooledConn
	stop func() bool
	last bool // the server accepts no further request on this connection
	over bool
}

// Read implements io.Reader.
func (p *answerBody) Read(into []byte) (int, error) {
	n, err := p.Reader.Read(into)
	if err != nil {
		p.end(err == io.EOF)
	}
	return n, err
}

// Close implements io.Closer. It does not wait for the rest of the body.
func (p *answerBody) Close() error {
	p.end(false)
	return nil
}

// end returns the connection to the pool if another request can be sent on it, and closes it otherwise. whole reports whether the body was read completely.
func (p *answerBody) end(whole bool) {
	if p.over {
		return
	}
	p.over = true
	// stop returns false if the client has disconnected: the hook is then closing this connection to the server, so it must not be reused.
	if alone := p.stop(); alone && whole && !p.last && p.line.in.Buffered() == 0 {
		p.line.wire.keep(p.line)
		return
	}
	p.line.close()
}
