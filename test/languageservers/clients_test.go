// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import "encoding/json"

// clientKinds are the capabilities of the clients that are compared.
var clientKinds = map[string]json.RawMessage{
	// editor declares what Neovim declares.
	"editor": json.RawMessage(`{
		"general": {"positionEncodings": ["utf-16"]},
		"window": {"workDoneProgress": true, "showMessage": {}, "showDocument": {"support": true}},
		"workspace": {
			"applyEdit": true, "configuration": true, "workspaceFolders": true, "didChangeConfiguration": {"dynamicRegistration": false},
			"workspaceEdit": {"documentChanges": true, "resourceOperations": ["rename", "create", "delete"]},
			"symbol": {"dynamicRegistration": false}, "inlayHint": {"refreshSupport": true}, "semanticTokens": {"refreshSupport": true}
		},
		"textDocument": {
			"synchronization": {"didSave": true},
			"completion": {
				"contextSupport": true,
				"completionItem": {"snippetSupport": true, "documentationFormat": ["markdown", "plaintext"], "deprecatedSupport": true, "preselectSupport": true}
			},
			"hover": {"contentFormat": ["markdown", "plaintext"]},
			"signatureHelp": {"signatureInformation": {"documentationFormat": ["markdown", "plaintext"]}},
			"definition": {"linkSupport": true}, "declaration": {"linkSupport": true}, "typeDefinition": {"linkSupport": true}, "implementation": {"linkSupport": true},
			"documentSymbol": {"hierarchicalDocumentSymbolSupport": true},
			"codeAction": {
				"isPreferredSupport": true, "dataSupport": true, "resolveSupport": {"properties": ["edit", "command"]},
				"codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["", "quickfix", "refactor", "refactor.extract", "refactor.inline", "refactor.rewrite", "source", "source.organizeImports"]}}
			},
			"formatting": {}, "references": {}, "rename": {"prepareSupport": true}, "foldingRange": {}, "callHierarchy": {}, "inlayHint": {},
			"publishDiagnostics": {"relatedInformation": true, "versionSupport": true, "codeDescriptionSupport": true, "dataSupport": true, "tagSupport": {"valueSet": [1, 2]}},
			"semanticTokens": {
				"requests": {"range": true, "full": {"delta": true}},
				"tokenTypes": ["namespace", "type", "class", "enum", "interface", "struct", "typeParameter", "parameter", "variable", "property", "enumMember", "event", "function", "method", "macro", "keyword", "modifier", "comment", "string", "number", "regexp", "operator", "decorator"],
				"tokenModifiers": ["declaration", "definition", "readonly", "static", "deprecated", "abstract", "async", "modification", "documentation", "defaultLibrary"],
				"formats": ["relative"], "overlappingTokenSupport": false, "multilineTokenSupport": false
			}
		}
	}`),
	// minimal declares only that it shows diagnostics, like a client written in an hour.
	"minimal": json.RawMessage(`{"textDocument": {"synchronization": {}, "publishDiagnostics": {}}}`),
	// agent reads plain text, and needs to know for which text the diagnostics are.
	"agent": json.RawMessage(`{
		"workspace": {"configuration": true, "workspaceFolders": true, "workspaceEdit": {"documentChanges": true}},
		"window": {"workDoneProgress": true},
		"textDocument": {
			"synchronization": {"didSave": true},
			"hover": {"contentFormat": ["plaintext"]},
			"documentSymbol": {"hierarchicalDocumentSymbolSupport": true},
			"publishDiagnostics": {"versionSupport": true}
		}
	}`),
}
