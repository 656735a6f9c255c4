// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package front

import (
	"bufio"
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

// line is one connection. Nobody else uses it until it is kept again.
type line struct {
	wire       *wire
	connection net.Conn
	in         *bufio.Reader
	out        *bufio.Writer
	since      time.Time
	// room is how much of a header may still come; heard says that some of the answer came.
	room  int64
	heard bool
}

// headerRoom is how long the header of an answer may be, as with the transports of the standard library.
const headerRoom = 10 << 20

var (
	errHeader   = errors.New("the header of the answer is too long")
	errSwitched = errors.New("the server switched to a protocol that nobody asked for")
)

func newLine(w *wire, connection net.Conn) *line {
	l := &line{wire: w, connection: connection, out: bufio.NewWriter(connection)}
	l.in = bufio.NewReader(l)
	return l
}

// Read implements io.Reader.
func (l *line) Read(p []byte) (int, error) {
	if l.room <= 0 {
		return 0, errHeader
	}
	n, err := l.connection.Read(p)
	l.room -= int64(n)
	l.heard = l.heard || n > 0
	return n, err
}

// exchange sends a request and reads the answer as far as its body, which gives the connection back when it was read.
func (l *line) exchange(req *http.Request) (*http.Response, error) {
	l.room, l.heard = headerRoom, false
	stop := context.AfterFunc(req.Context(), func() { _ = l.connection.Close() })
	response, err := l.ask(req)
	if err != nil {
		stop()
		_ = l.connection.Close()
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

// ask sends a request and reads the header of the answer; what comes before that, such as early hints, goes to whoever wants it.
func (l *line) ask(req *http.Request) (*http.Response, error) {
	if err := req.Write(l.out); err != nil {
		return nil, err
	}
	if err := l.out.Flush(); err != nil {
		return nil, err
	}
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

// answerBody is the body of an answer.
type answerBody struct {
	io.Reader
	line *line
	stop func() bool
	last bool // the server takes no other request on this connection
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

// Close implements io.Closer. What was not read is not waited for.
func (p *answerBody) Close() error {
	p.end(false)
	return nil
}

// end gives the connection back if another request can be sent on it.
func (p *answerBody) end(whole bool) {
	if p.over {
		return
	}
	p.over = true
	// A client that has gone may close the connection at any moment.
	if alone := p.stop(); alone && whole && !p.last && p.line.in.Buffered() == 0 {
		p.line.wire.keep(p.line)
		return
	}
	_ = p.line.connection.Close()
}
