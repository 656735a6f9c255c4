// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// Kind is the kind of a message.
type Kind int

// The kinds of messages.
const (
	Request Kind = iota + 1
	Notification
	Response
)

// maxIDBytes is the maximum length of an ID or token in bytes. Both are limited because they are stored.
const maxIDBytes = 1 << 10

// Span is the position of a raw value in the body; zero if it is absent.
type Span struct{ Start, End int }

// Envelope contains the parts of a message that are needed to route it. Its slices refer to the scanned body or to the envelope, and are valid until either is
// reused for another message.
type Envelope struct {
	Kind Kind
	// ID is raw JSON, with its quotes: a string, an integer, or null in a response without a request.
	ID []byte
	// Method is decoded, without quotes and escapes.
	Method []byte
	// URI is params.textDocument.uri, decoded, without quotes and escapes.
	URI []byte
	// CancelID, Token, WorkDoneToken and PartialResultToken are params.id, .token, .workDoneToken and .partialResultToken as raw JSON, if they are strings or
	// integers.
	CancelID, Token, WorkDoneToken, PartialResultToken []byte
	// IsError is true if a response is an error.
	IsError bool
	// Changes is true if the message may contain a workspace edit: a key documentChanges, at any depth.
	Changes bool

	// Params is the whole of params, Result that of result or error; nil if they are absent.
	Params, Result []byte

	IDSpan, TokenSpan, WorkDoneSpan, PartialSpan, ResultSpan Span

	scratch []byte // decoded strings with escapes; reused for the next message
}

// Scan parses the envelope of a message in one pass over its body, which must be strict JSON. It rejects constructs that affect routing and that decoders
// interpret differently, such as a duplicate key or a key in another letter case. Otherwise the server could read a different ID than the multiplexer.
func Scan(body []byte, e *Envelope) error {
	*e = Envelope{scratch: e.scratch[:0]}
	s := scanner{body: body}
	switch s.peek() {
	case '{':
		s.at++
	case '[':
		return fmt.Errorf("%w: batches are not part of the protocol", errMessage)
	default:
		return s.fail("expected an object")
	}
	seen, err := e.top(&s)
	if err != nil {
		return err
	}
	if s.peek(); s.at != len(body) {
		return s.fail("unexpected data after the message")
	}
	e.Changes = s.changes
	return e.classify(seen)
}

// classify sets the kind of the message from its keys.
func (e *Envelope) classify(seen uint) error {
	id, method := seen&(1<<keyID) != 0, seen&(1<<keyMethod) != 0
	answer := seen&(1<<keyResult|1<<keyError) != 0
	switch {
	case method && answer:
		return fmt.Errorf("%w: a message cannot have both a method and a result or error", errMessage)
	case method && id:
		if e.ID[0] == 'n' {
			return fmt.Errorf("%w: the id of a request is null", errMessage)
		}
		e.Kind = Request
	case method:
		e.Kind = Notification
	case id:
		e.Kind = Response
	default:
		return fmt.Errorf("%w: a message must have a method or an id", errMessage)
	}
	return nil
}

// top parses the members of the message itself.
func (e *Envelope) top(s *scanner) (seen uint, err error) {
	for first := true; ; first = false {
		key, ok, err := e.key(s, first, topKeys, &seen)
		if err != nil || !ok {
			return seen, err
		}
		c := s.peek()
		begin := s.at
		switch {
		case key == keyID:
			err = e.readID(s, c)
		case key == keyMethod:
			e.Method, err = e.text(s)
		case key == keyParams && c == '{':
			s.at++
			err = e.params(s)
		default:
			err = s.skip(1)
		}
		if err != nil {
			return seen, err
		}
		switch key {
		case keyParams:
			e.Params = s.body[begin:s.at:s.at]
		case keyError:
			if e.IsError = c != 'n'; e.IsError {
				e.Result, e.ResultSpan = s.body[begin:s.at:s.at], Span{begin, s.at}
			}
		case keyResult:
			if !e.IsError {
				e.Result, e.ResultSpan = s.body[begin:s.at:s.at], Span{begin, s.at}
			}
		}
	}
}

func (e *Envelope) readID(s *scanner, c byte) error {
	if c == 'n' {
		begin := s.at
		err := s.literal("null")
		e.ID, e.IDSpan = s.body[begin:s.at], Span{begin, s.at}
		return err
	}
	begin := s.at
	if err := e.token(s, c, &e.ID, &e.IDSpan, 1); err != nil {
		return err
	}
	if e.ID == nil {
		s.at = begin
		return s.fail("the id is neither a string nor an integer")
	}
	return nil
}

// params parses the members of params, after its opening brace.
func (e *Envelope) params(s *scanner) error {
	var seen uint
	for first := true; ; first = false {
		key, ok, err := e.key(s, first, paramsKeys, &seen)
		if err != nil || !ok {
			return err
		}
		c := s.peek()
		switch {
		case key == keyID:
			var unused Span
			err = e.token(s, c, &e.CancelID, &unused, 2)
		case key == keyToken:
			err = e.token(s, c, &e.Token, &e.TokenSpan, 2)
		case key == keyWorkDone:
			err = e.token(s, c, &e.WorkDoneToken, &e.WorkDoneSpan, 2)
		case key == keyPartial:
			err = e.token(s, c, &e.PartialResultToken, &e.PartialSpan, 2)
		case key == keyTextDocument && c == '{':
			s.at++
			err = e.textDocument(s)
		default:
			err = s.skip(2)
		}
		if err != nil {
			return err
		}
	}
}

// textDocument parses the members of params.textDocument, after its opening brace.
func (e *Envelope) textDocument(s *scanner) error {
	var seen uint
	for first := true; ; first = false {
		key, ok, err := e.key(s, first, documentKeys, &seen)
		if err != nil || !ok {
			return err
		}
		if key == keyURI && s.peek() == '"' {
			e.URI, err = e.text(s)
		} else {
			err = s.skip(3)
		}
		if err != nil {
			return err
		}
	}
}

// token parses a string or an integer. It skips any other value and leaves *value nil.
func (e *Envelope) token(s *scanner, c byte, value *[]byte, span *Span, depth int) error {
	begin := s.at
	var err error
	keep := true
	switch {
	case c == '"':
		_, err = s.str()
	case c == '-' || '0' <= c && c <= '9':
		keep, err = s.number()
	default:
		return s.skip(depth)
	}
	if err != nil || !keep {
		return err
	}
	if s.at-begin > maxIDBytes {
		return fmt.Errorf("%w: an id or token of %d bytes exceeds the limit of %d bytes", errMessage, s.at-begin, maxIDBytes)
	}
	*value, *span = s.body[begin:s.at:s.at], Span{begin, s.at}
	return nil
}

// text parses a string and decodes it.
func (e *Envelope) text(s *scanner) ([]byte, error) {
	begin := s.at + 1
	escaped, err := s.str()
	if err != nil {
		return nil, err
	}
	raw := s.body[begin : s.at-1 : s.at-1]
	if !escaped {
		return raw, nil
	}
	from := len(e.scratch)
	e.scratch = unescape(e.scratch, raw)
	return e.scratch[from:len(e.scratch):len(e.scratch)], nil
}
