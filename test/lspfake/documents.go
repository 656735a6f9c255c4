// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-dev/berth/test/lspfake/script"
)

type position struct {
	Line      int `json:"line"`
	Character int `json:"character"`
}

type span struct {
	Start position `json:"start"`
	End   position `json:"end"`
}

type document struct {
	text    string
	version int64
}

// params contains the members that the server reads from the params of all methods.
type params struct {
	TextDocument struct {
		URI     string `json:"uri"`
		Version int64  `json:"version"`
		Text    string `json:"text"`
	} `json:"textDocument"`
	ContentChanges []struct {
		Range *span  `json:"range"`
		Text  string `json:"text"`
	} `json:"contentChanges"`
	Position  position        `json:"position"`
	Command   string          `json:"command"`
	Arguments []string        `json:"arguments"`
	ID        json.RawMessage `json:"id"`
	Fake      *script.Fault   `json:"fake"`
}

// documents are the open documents of the client. The methods return an error if the client violates the protocol.
type documents map[string]document

func (d documents) open(p params) error {
	uri := p.TextDocument.URI
	_, ok := d[uri]
	d[uri] = document{text: p.TextDocument.Text, version: p.TextDocument.Version}
	if ok {
		return errors.New("opened twice")
	}
	return nil
}

func (d documents) change(p params) error {
	uri := p.TextDocument.URI
	doc, ok := d[uri]
	if !ok {
		return errors.New("changed but not open")
	}
	var err error
	if p.TextDocument.Version <= doc.version {
		err = fmt.Errorf("version %d after %d", p.TextDocument.Version, doc.version)
	}
	doc.version = p.TextDocument.Version
	for _, change := range p.ContentChanges {
		if change.Range == nil {
			doc.text = change.Text
			continue
		}
		start, end := offset(doc.text, change.Range.Start), offset(doc.text, change.Range.End)
		doc.text = doc.text[:start] + change.Text + doc.text[max(start, end):]
	}
	d[uri] = doc
	return err
}

func (d documents) close(p params) error {
	if _, ok := d[p.TextDocument.URI]; !ok {
		return errors.New("closed but not open")
	}
	delete(d, p.TextDocument.URI)
	return nil
}

// offset converts a position, which counts UTF-16 units, to a byte offset. A position beyond the end of a line is converted to the end of that line.
func offset(text string, at position) int {
	begin := 0
	for range at.Line {
		newline := strings.IndexByte(text[begin:], '\n')
		if newline < 0 {
			return len(text)
		}
		begin += newline + 1
	}
	units := 0
	for i, r := range text[begin:] {
		if r == '\n' || units >= at.Character {
			return begin + i
		}
		units += utf16Len(r)
	}
	return len(text)
}

func utf16Len(r rune) int {
	if r > 0xFFFF {
		return 2
	}
	return 1
}

// positionOf is the inverse of offset.
func positionOf(text string, at int) position {
	line := strings.Count(text[:at], "\n")
	units := 0
	for _, r := range text[strings.LastIndexByte(text[:at], '\n')+1 : at] {
		units += utf16Len(r)
	}
	return position{Line: line, Character: units}
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

// word returns the word at a position.
func word(text string, at position) string {
	i := min(offset(text, at), len(text))
	begin := i
	for begin > 0 {
		r, n := utf8.DecodeLastRuneInString(text[:begin])
		if !isWord(r) {
			break
		}
		begin -= n
	}
	end := strings.IndexFunc(text[i:], func(r rune) bool { return !isWord(r) })
	if end < 0 {
		return text[begin:]
	}
	return text[begin : i+end]
}

// occurrences returns the ranges of the whole-word matches of word.
func occurrences(text, word string) (all []span) {
	for begin := 0; word != ""; {
		at := strings.Index(text[begin:], word)
		if at < 0 {
			break
		}
		at += begin
		begin = at + len(word)
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[begin:])
		if !isWord(before) && !isWord(after) {
			all = append(all, span{Start: positionOf(text, at), End: positionOf(text, begin)})
		}
	}
	return all
}

type location struct {
	URI   string `json:"uri"`
	Range span   `json:"range"`
}

// firstLine returns the first line of a text.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
