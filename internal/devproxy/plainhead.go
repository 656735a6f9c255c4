// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bytes"
	"strconv"
)

// plainRequest holds the properties of a request that forward needs to send it without net/http.
type plainRequest struct {
	head bool // it is a HEAD request
	last bool // the client wants the connection closed
}

// parseRequest parses the head of a request and composes the head for the server. It returns false for every request that net/http has to handle: a request
// with a body or an upgrade, with headers of another proxy, with a host that is not permitted, or unusual in any way.
func (c *client) parseRequest(text []byte) (r plainRequest, plain bool) {
	first, fields, _ := bytes.Cut(text, crlf)
	if r.head, plain = plainRequestLine(first); !plain {
		return r, false
	}
	c.head = append(append(c.head[:0], first...), crlf...)
	var host []byte
	for len(fields) > len(crlf) {
		var line, name, value []byte
		if line, name, value, fields = nextField(fields); line == nil {
			return r, false
		}
		switch known(name) {
		case "host":
			if host != nil {
				return r, false
			}
			host = value
		case "connection":
			if r.last, plain = connectionCloses(value, r.last); !plain {
				return r, false
			}
			continue
		case "":
		default:
			return r, false
		}
		c.head = append(c.head, line...)
	}
	if !permitted(hostname(string(host)), *c.address.hosts.Load()) {
		return r, false
	}
	c.head = append(append(c.head, "X-Forwarded-For: "...), c.ip...)
	c.head = append(append(c.head, "\r\nX-Forwarded-Host: "...), host...)
	c.head = append(c.head, "\r\nX-Forwarded-Proto: http\r\n\r\n"...)
	return r, true
}

// plainRequestLine reports whether the request line is plain, and whether the method is HEAD.
func plainRequestLine(line []byte) (head, plain bool) {
	method, rest, _ := bytes.Cut(line, space)
	target, version, _ := bytes.Cut(rest, space)
	switch string(method) {
	case "GET", "OPTIONS", "HEAD":
		return string(method) == "HEAD", string(version) == "HTTP/1.1" && len(target) > 0 && target[0] == '/' && visible(target)
	}
	return false, false
}

// connectionCloses reports whether this field or an earlier one announces that the sender closes the connection. plain is false if the value is neither
// close nor keep-alive.
func connectionCloses(value []byte, earlier bool) (closes, plain bool) {
	if bytes.EqualFold(value, []byte("close")) {
		return true, true
	}
	return earlier, bytes.EqualFold(value, []byte("keep-alive"))
}

// plainAnswer holds the properties of a response that forward needs to send it without net/http.
type plainAnswer struct {
	head    int // the size of the head
	status  int
	length  int64 // the length of the body; -1 if the head does not state it
	chunked bool
	last    bool // the server closes the connection
	old     bool // the response is HTTP/1.0
}

// parseAnswer parses the head of a response and composes the head for the client. It returns false for every response that net/http has to handle.
func (c *client) parseAnswer(text []byte, r plainRequest) (a plainAnswer, plain bool) {
	first, fields, _ := bytes.Cut(text, crlf)
	if plain = a.statusLine(first); !plain {
		return a, false
	}
	a.head, a.length = len(text), -1
	c.head = append(append(append(c.head[:0], "HTTP/1.1"...), first[len("HTTP/1.x"):]...), crlf...)
	for len(fields) > len(crlf) {
		var line, name, value []byte
		if line, name, value, fields = nextField(fields); line == nil {
			return a, false
		}
		what := known(name)
		if !a.field(what, value) {
			return a, false
		}
		if what != "connection" && what != "keep-alive" {
			c.head = append(c.head, line...)
		}
	}
	if r.head || a.status == 204 || a.status == 304 {
		a.length, a.chunked = 0, false
	}
	a.last = a.last || a.untilEnd()
	if r.last || a.untilEnd() {
		c.head = append(c.head, "Connection: close\r\n"...)
	}
	c.head = append(c.head, crlf...)
	return a, true
}

// untilEnd reports whether only the end of the connection marks the end of the body.
func (a *plainAnswer) untilEnd() bool { return a.length < 0 && !a.chunked }

// statusLine parses the first line of a response, and reports whether the response can be plain.
func (a *plainAnswer) statusLine(line []byte) bool {
	const version, code = len("HTTP/1.x"), len("HTTP/1.x 200")
	if len(line) < code || line[version] != ' ' || len(line) > code && line[code] != ' ' || !printable(line) {
		return false
	}
	a.status, _ = strconv.Atoi(string(line[version+1 : code]))
	a.old = string(line[:version]) == "HTTP/1.0"
	a.last = a.old
	return (a.old || string(line[:version]) == "HTTP/1.1") && a.status >= 200
}

// field records a header field of a response and reports whether the response can be plain.
func (a *plainAnswer) field(name string, value []byte) (plain bool) {
	switch name {
	case "content-length":
		length, err := strconv.ParseUint(string(value), 10, 63)
		plain = err == nil && !a.chunked && a.length < 0
		a.length = int64(length) //nolint:gosec // it has 63 bits
	case "transfer-encoding":
		plain = a.length < 0 && !a.chunked && !a.old && bytes.EqualFold(value, []byte("chunked"))
		a.chunked = true
	case "connection":
		a.last, plain = connectionCloses(value, a.last)
	default:
		plain = name != "upgrade" && name != "proxy"
	}
	return plain
}

var crlf, space, blank = []byte("\r\n"), []byte(" "), []byte("\r\n\r\n")

// headSize returns the size of the head at the beginning of text, or 0 if the head is incomplete.
func headSize(text []byte) int {
	if end := bytes.Index(text, blank); end >= 0 {
		return end + len(blank)
	}
	return 0
}

// nextField returns the first line of the fields, including its line end, and the remaining fields. line is nil if that line is not exactly one valid field.
func nextField(fields []byte) (line, name, value, rest []byte) {
	end := bytes.Index(fields, crlf)
	if end < 0 {
		return nil, nil, nil, nil
	}
	name, value, found := bytes.Cut(fields[:end], []byte(":"))
	if !found || len(name) == 0 || !token(name) || !printable(value) {
		return nil, nil, nil, nil
	}
	return fields[:end+len(crlf)], name, bytes.Trim(value, " \t"), fields[end+len(crlf):]
}

// known returns the lower-case name of a field that a proxy must handle, "proxy" for a field that another proxy added, and "" for all other fields.
func known(name []byte) string {
	for _, each := range [...]string{"host", "connection", "keep-alive", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect", "forwarded"} {
		if len(name) == len(each) && bytes.EqualFold(name, []byte(each)) {
			return each
		}
	}
	for _, prefix := range [...]string{"proxy-", "x-forwarded-"} {
		if len(name) > len(prefix) && bytes.EqualFold(name[:len(prefix)], []byte(prefix)) {
			return "proxy"
		}
	}
	return ""
}

// token reports whether all bytes are permitted in the name of a field.
func token(text []byte) bool {
	for _, b := range text {
		if b <= ' ' || b >= 0x7f || bytes.IndexByte([]byte(`"(),/:;<=>?@[\]{}`), b) >= 0 {
			return false
		}
	}
	return true
}

// visible reports whether all bytes are visible ASCII.
func visible(text []byte) bool {
	for _, b := range text {
		if b <= ' ' || b >= 0x7f {
			return false
		}
	}
	return true
}

// printable reports whether no byte is a control character other than a tab.
func printable(text []byte) bool {
	for _, b := range text {
		if b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}
