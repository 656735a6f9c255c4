// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import "bytes"

// name identifies a key that Scan evaluates.
type name int

const (
	other name = iota
	keyID
	keyMethod
	keyParams
	keyResult
	keyError
	keyToken
	keyWorkDone
	keyPartial
	keyTextDocument
	keyURI
)

// keyName is the spelling of a key. If strict is set, the same key in a different letter case is an error, because it has no legitimate use. Otherwise Scan
// ignores the value of a key in a different letter case. Two keys that differ only in letter case are always an error.
type keyName struct {
	text   []byte
	name   name
	strict bool
}

var (
	topKeys = []keyName{
		{[]byte("id"), keyID, true},
		{[]byte("method"), keyMethod, true},
		{[]byte("params"), keyParams, true},
		{[]byte("result"), keyResult, true},
		{[]byte("error"), keyError, true},
	}
	paramsKeys = []keyName{
		{[]byte("textDocument"), keyTextDocument, true},
		{[]byte("workDoneToken"), keyWorkDone, true},
		{[]byte("partialResultToken"), keyPartial, true},
		{[]byte("id"), keyID, false},
		{[]byte("token"), keyToken, false},
		{[]byte("uri"), keyURI, false},
	}
	documentKeys = []keyName{{[]byte("uri"), keyURI, false}}
)

// key advances to the next member and returns the name of its key. It returns false after the last member.
func (e *Envelope) key(s *scanner, first bool, keys []keyName, seen *uint) (name, bool, error) {
	raw, escaped, ok, err := s.member(first)
	if err != nil || !ok {
		return other, false, err
	}
	var decoded [64]byte
	if escaped {
		raw = unescape(decoded[:0], raw)
	}
	for _, key := range keys {
		exact := string(raw) == string(key.text)
		if !exact && !bytes.EqualFold(raw, key.text) {
			continue
		}
		if *seen&(1<<key.name) != 0 {
			return other, false, s.fail("duplicate key")
		}
		*seen |= 1 << key.name
		switch {
		case exact:
			return key.name, true, nil
		case key.strict:
			return other, false, s.fail("key whose letter case differs from the protocol")
		}
		return other, true, nil
	}
	return other, true, nil
}
