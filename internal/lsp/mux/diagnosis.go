// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// diagnosisMethod is how the multiplexer gets a server to compute the diagnostics of a text. inquiry.go answers the request berth/diagnostics, and decides when
// diagnostics are settled.
type diagnosisMethod uint8

const (
	// byMarker sends a request for the symbols of the document. When the server answers it, it has the text. Its diagnostics then follow.
	byMarker diagnosisMethod = iota
	// byGopls sends the command of gopls that publishes the diagnostics of a file before it answers.
	byGopls
	// byTSServer sends commands of typescript-language-server that pass requests to tsserver, which processes messages in order. The answers contain the
	// diagnostics. The diagnostics that typescript-language-server publishes state no version.
	byTSServer
)

// commands are the commands of these servers.
var commands = map[diagnosisMethod]string{byGopls: "gopls.diagnose_files", byTSServer: "typescript.tsserverRequest"}

// tsserverRequests are the requests that return the diagnostics of a file.
var tsserverRequests = []string{"syntacticDiagnosticsSync", "semanticDiagnosticsSync", "suggestionDiagnosticsSync"}

// diagnosisOf selects by the commands that a server with these capabilities offers.
func diagnosisOf(capabilities map[string]json.RawMessage) diagnosisMethod {
	var offered struct {
		Commands []string `json:"commands"`
	}
	if json.Unmarshal(capabilities["executeCommandProvider"], &offered) == nil {
		for how, command := range commands {
			if slices.Contains(offered.Commands, command) {
				return how
			}
		}
	}
	return byMarker
}

// steps returns the number of requests.
func (d diagnosisMethod) steps() int {
	if d == byTSServer {
		return len(tsserverRequests)
	}
	return 1
}

// request returns the request of a step.
func (d diagnosisMethod) request(uri string, step int) (method string, params json.RawMessage) {
	switch d {
	case byGopls:
		return methodExecute, wire.Encode(map[string]any{"command": commands[d], "arguments": []any{map[string]any{"Files": []string{uri}}}})
	case byTSServer:
		return methodExecute, wire.Encode(map[string]any{"command": commands[d], "arguments": []any{tsserverRequests[step], map[string]string{"file": pathOf(uri)}}})
	}
	return "textDocument/documentSymbol", wire.Encode(map[string]any{"textDocument": map[string]string{"uri": uri}})
}

// pathOf returns the path of a file URI, and other URIs unchanged.
func pathOf(uri string) string {
	if parsed, err := url.Parse(uri); err == nil && parsed.Scheme == "file" {
		return parsed.Path
	}
	return uri
}

// read reads the answer to a command. It returns the diagnostics in the answer, if the method has any, and why the command failed, or an empty string.
func (d diagnosisMethod) read(answer []byte, isError bool) (found []tsDiagnostic, failure string) {
	if isError {
		return nil, "the server has answered: " + abridged(answer)
	}
	if d != byTSServer {
		return nil, ""
	}
	var result struct {
		Success bool           `json:"success"`
		Message string         `json:"message"`
		Body    []tsDiagnostic `json:"body"`
	}
	if err := json.Unmarshal(answer, &result); err != nil || !result.Success {
		return nil, "tsserver has answered: " + cmp.Or(result.Message, abridged(answer))
	}
	return result.Body, ""
}

// tsDiagnostic is a diagnostic in an answer of tsserver.
type tsDiagnostic struct {
	Start    tsPosition `json:"start"`
	End      tsPosition `json:"end"`
	Text     string     `json:"text"`
	Category string     `json:"category"`
	Code     int        `json:"code"`
	Source   string     `json:"source"`
	// Unnecessary and Deprecated are shown as faded and struck out text.
	Unnecessary bool `json:"reportsUnnecessary"`
	Deprecated  bool `json:"reportsDeprecated"`
}

// tsPosition is a position in an answer of tsserver. Both numbers count from 1, Offset in UTF-16 code units.
type tsPosition struct {
	Line   int `json:"line"`
	Offset int `json:"offset"`
}

func (p tsPosition) convert() map[string]int {
	return map[string]int{"line": p.Line - 1, "character": p.Offset - 1}
}

// severityOf is the severity for each category of tsserver. An unused name is a suggestion.
var severityOf = map[string]int{"error": 1, "warning": 2, "message": 3, "suggestion": 4}

// converted returns diagnostics of tsserver as those of the protocol, in the same order.
func converted(found []tsDiagnostic) json.RawMessage {
	list := []any{}
	for _, d := range found {
		made := map[string]any{
			"range":    map[string]any{"start": d.Start.convert(), "end": d.End.convert()},
			"severity": cmp.Or(severityOf[d.Category], 1), "code": d.Code, "source": cmp.Or(d.Source, "typescript"), "message": d.Text,
		}
		var tags []int
		if d.Unnecessary {
			tags = append(tags, 1)
		}
		if d.Deprecated {
			tags = append(tags, 2)
		}
		if len(tags) > 0 {
			made["tags"] = tags
		}
		list = append(list, made)
	}
	return wire.Encode(list)
}
