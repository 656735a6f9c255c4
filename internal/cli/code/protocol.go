// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The types below are the parts of the Language Server Protocol that this package uses.

type position struct {
	Line      int `json:"line"`      // from 0
	Character int `json:"character"` // in UTF-16 code units, from 0
}

type span struct {
	Start position `json:"start"`
	End   position `json:"end"`
}

type location struct {
	URI   string `json:"uri"`
	Range span   `json:"range"`
	// TargetURI and TargetSelectionRange are set instead in a LocationLink.
	TargetURI            string `json:"targetUri"`
	TargetSelectionRange span   `json:"targetSelectionRange"`
}

type textEdit struct {
	Range   span   `json:"range"`
	NewText string `json:"newText"`
}

type workspaceEdit struct {
	Changes         map[string][]textEdit `json:"changes"`
	DocumentChanges []struct {
		Kind         string `json:"kind"` // create, rename or delete; empty for edits of a document
		TextDocument struct {
			URI string `json:"uri"`
		} `json:"textDocument"`
		Edits []textEdit `json:"edits"`
	} `json:"documentChanges"`
}

type symbolNode struct {
	Name           string       `json:"name"`
	Kind           int          `json:"kind"`
	Range          span         `json:"range"`
	SelectionRange *span        `json:"selectionRange"`
	Children       []symbolNode `json:"children"`
	Location       *location    `json:"location"`
	ContainerName  string       `json:"containerName"`
}

type diagnostic struct {
	Range    span            `json:"range"`
	Severity int             `json:"severity"`
	Code     json.RawMessage `json:"code"`
	Source   string          `json:"source"`
	Message  string          `json:"message"`
}

// symbolKinds are the names of the symbol kinds of the protocol, which begin with 1.
var symbolKinds = strings.Fields("File Module Namespace Package Class Method Property Field Constructor Enum Interface Function Variable Constant String Number " +
	"Boolean Array Object Key Null EnumMember Struct Event Operator TypeParameter")

func symbolKind(kind int) string {
	if kind < 1 || kind > len(symbolKinds) {
		return "Symbol"
	}
	return symbolKinds[kind-1]
}

// documentOf returns the parameters of a request or notification about a document.
func documentOf(path string) map[string]any {
	return map[string]any{"textDocument": map[string]any{"uri": uriOf(path)}}
}

func uriOf(path string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
}

// pathOf returns the path of a file URI. For other URIs it returns the URI itself.
func pathOf(uri string) string {
	parsed, err := url.Parse(uri)
	if err != nil || parsed.Scheme != "file" {
		return uri
	}
	return filepath.FromSlash(parsed.Path)
}

// Where selects a position in a file. Line counts from 1. Symbol is an identifier on that line or, if Line is 0, in the file; the first occurrence counts that is neither in
// a comment nor in a string, or else the first one.
// Without Symbol, the position is the first character of the line that is not a space.
type Where struct {
	Line   int
	Symbol string
}

// locate returns the position in a text of a language.
func (w Where) locate(text, language string) (position, error) {
	if w.Symbol != "" {
		if at, err := w.find(mask(text, language)); err == nil {
			return position{at.Line, units(strings.Split(text, "\n")[at.Line][:at.Character])}, nil
		}
	}
	at, err := w.find(text)
	if err == nil {
		at.Character = units(strings.Split(text, "\n")[at.Line][:at.Character])
	}
	return at, err
}

// find returns the position in a text, with Character in bytes.
func (w Where) find(text string) (position, error) {
	if w.Line <= 0 && w.Symbol == "" {
		return position{}, errors.New("set line, symbol or both")
	}
	lines := strings.Split(text, "\n")
	if w.Line > len(lines) {
		return position{}, fmt.Errorf("the file has only %d lines", len(lines))
	}
	first, last := 0, len(lines)
	if w.Line > 0 {
		first, last = w.Line-1, w.Line
	}
	for i := first; i < last; i++ {
		if w.Symbol == "" {
			return position{i, len(lines[i]) - len(strings.TrimLeft(lines[i], " \t"))}, nil
		}
		if at := wordIn(lines[i], w.Symbol); at >= 0 {
			return position{i, at}, nil
		}
	}
	if w.Line > 0 {
		return position{}, fmt.Errorf("line %d does not contain %q", w.Line, w.Symbol)
	}
	return position{}, fmt.Errorf("the file does not contain %q", w.Symbol)
}

// wordIn returns the index of the first occurrence of a word in a line that is not a part of a longer identifier, or -1.
func wordIn(line, word string) int {
	for from := 0; ; {
		at := strings.Index(line[from:], word)
		if at < 0 {
			return -1
		}
		at += from
		before, _ := utf8.DecodeLastRuneInString(line[:at])
		after, _ := utf8.DecodeRuneInString(line[at+len(word):])
		if !inWord(before) && !inWord(after) {
			return at
		}
		from = at + len(word)
	}
}

func inWord(char rune) bool {
	return char == '_' || char >= '0' && char <= '9' || char >= 'a' && char <= 'z' || char >= 'A' && char <= 'Z' || char > utf8.RuneSelf && char != utf8.RuneError
}

// units returns the length of a text in UTF-16 code units.
func units(text string) int {
	return len(utf16.Encode([]rune(text)))
}
