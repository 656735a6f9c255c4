// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// conversion changes results for clients that have not declared a capability. The multiplexer declares all capabilities to the server, because some servers offer a
// feature only then, and because a server has one answer for all clients.
type conversion struct {
	methods []string
	// capability is the path of what a client declares to receive the result unchanged, and value an element of the list there; empty: the capability is a boolean.
	capability []string
	value      string
	// marker is a text that every result contains that needs the conversion.
	marker []byte
	// change returns the result for a request about the document with the URI.
	change func(result any, uri string) any
}

const markdown = "markdown"

var conversions = append([]conversion{
	{
		methods: []string{"textDocument/completion", "completionItem/resolve"}, marker: []byte(`"insertTextFormat"`),
		capability: []string{"textDocument", "completion", "completionItem", "snippetSupport"},
		change:     func(result any, _ string) any { return withoutSnippets(result) },
	}, {
		methods: []string{"textDocument/documentSymbol"}, marker: []byte(`"selectionRange"`),
		capability: []string{"textDocument", "documentSymbol", "hierarchicalDocumentSymbolSupport"},
		change:     func(result any, uri string) any { return flatSymbols(result, uri, "") },
	}, {
		methods: []string{"textDocument/hover"}, marker: []byte(`"markdown"`), value: markdown,
		capability: []string{"textDocument", "hover", "contentFormat"}, change: everywhere(withoutMarkdown),
	}, {
		methods: []string{"textDocument/completion", "completionItem/resolve"}, marker: []byte(`"markdown"`), value: markdown,
		capability: []string{"textDocument", "completion", "completionItem", "documentationFormat"}, change: everywhere(withoutMarkdown),
	}, {
		methods: []string{"textDocument/signatureHelp"}, marker: []byte(`"markdown"`), value: markdown,
		capability: []string{"textDocument", "signatureHelp", "signatureInformation", "documentationFormat"}, change: everywhere(withoutMarkdown),
	}, {
		methods: []string{methodCodeAction}, marker: []byte(`"title"`), capability: []string{"textDocument", "codeAction", "codeActionLiteralSupport", "codeActionKind"},
		change: func(result any, _ string) any { return onlyCommands(result) },
	}, {
		methods: []string{"textDocument/rename", methodCodeAction, "codeAction/resolve", methodApplyEdit}, marker: []byte(`"documentChanges"`),
		capability: []string{"workspace", "workspaceEdit", "documentChanges"},
		change:     everywhere(withoutDocumentChanges),
	},
}, linkConversions("definition", "declaration", "typeDefinition", "implementation")...)

func linkConversions(features ...string) []conversion {
	var all []conversion
	for _, feature := range features {
		all = append(all, conversion{
			methods: []string{"textDocument/" + feature}, marker: []byte(`"targetUri"`), capability: []string{"textDocument", feature, "linkSupport"},
			change: func(result any, _ string) any { return withoutLinks(result) },
		})
	}
	return all
}

// neededConversions returns the conversions for a client with these capabilities.
func neededConversions(capabilities json.RawMessage) []*conversion {
	var all []*conversion
	for i := range conversions {
		if c := &conversions[i]; !c.declared(capabilities) {
			all = append(all, c)
		}
	}
	return all
}

func (c *conversion) declared(capabilities json.RawMessage) bool {
	value := capability(capabilities, c.capability...)
	if c.value == "" {
		return on(value)
	}
	var list []string
	return json.Unmarshal(value, &list) == nil && slices.Contains(list, c.value)
}

// convert applies the conversions in a list that concern a result. If the result may contain workspace edits, convert also sets the versions of their documents to
// null, which matches any version, because the server's versions are not those of the clients. ok is false if nothing is converted.
func convert(list []*conversion, method string, uri []byte, result json.RawMessage, edits bool) (converted json.RawMessage, ok bool) {
	var tree any
	if edits {
		tree, ok = decode(result), true
		walk(tree, dropVersions)
	}
	for _, c := range list {
		if !slices.Contains(c.methods, method) || !bytes.Contains(result, c.marker) {
			continue
		}
		if !ok {
			tree = decode(result)
		}
		tree, ok = c.change(tree, string(uri)), true
	}
	if !ok {
		return nil, false
	}
	return wire.Encode(tree), true
}

// decode returns JSON as values that encode writes again without loss; nil if the JSON is invalid.
func decode(text json.RawMessage) (tree any) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&tree) != nil {
		return nil
	}
	return tree
}

// walk calls visit for each object in a tree, after the objects in it.
func walk(tree any, visit func(object map[string]any)) {
	switch node := tree.(type) {
	case []any:
		for _, child := range node {
			walk(child, visit)
		}
	case map[string]any:
		for _, child := range node {
			walk(child, visit)
		}
		visit(node)
	}
}

// everywhere returns the change of a conversion that changes objects anywhere in a result.
func everywhere(visit func(object map[string]any)) func(any, string) any {
	return func(result any, _ string) any {
		walk(result, visit)
		return result
	}
}

// dropVersions sets the versions of documents to null, if the object is a workspace edit.
func dropVersions(edit map[string]any) {
	changes, _ := edit["documentChanges"].([]any)
	for _, child := range changes {
		change, _ := child.(map[string]any)
		if document, ok := change["textDocument"].(map[string]any); ok {
			document["version"] = nil
		}
	}
}

// withoutMarkdown replaces Markdown with plain text, if the object is marked-up text.
func withoutMarkdown(content map[string]any) {
	if text, ok := content["value"].(string); ok && content["kind"] == markdown {
		content["kind"], content["value"] = "plaintext", plainText(text)
	}
}

// withoutLinks replaces links to places with the places.
func withoutLinks(tree any) any {
	list, ok := tree.([]any)
	if !ok {
		return tree
	}
	for i, child := range list {
		if link, ok := child.(map[string]any); ok && link["targetUri"] != nil {
			list[i] = map[string]any{"uri": link["targetUri"], "range": link["targetSelectionRange"]}
		}
	}
	return list
}

// onlyCommands replaces code actions with their commands, and omits those without one: the client can neither apply an edit nor ask for it.
func onlyCommands(tree any) any {
	commands := []any{}
	actions, _ := tree.([]any)
	for _, child := range actions {
		action, _ := child.(map[string]any)
		switch command := action["command"].(type) {
		case string:
			commands = append(commands, action)
		case map[string]any:
			if action["edit"] == nil && action["disabled"] == nil {
				commands = append(commands, command)
			}
		}
	}
	return commands
}

// withoutDocumentChanges replaces the form documentChanges of a workspace edit with changes. An edit that also creates, renames or deletes files stays as it is,
// because its changes alone would be wrong.
func withoutDocumentChanges(edit map[string]any) {
	list, ok := edit["documentChanges"].([]any)
	if !ok {
		return
	}
	changes := map[string]any{}
	for _, child := range list {
		change, _ := child.(map[string]any)
		document, _ := change["textDocument"].(map[string]any)
		uri, ok := document["uri"].(string)
		if !ok {
			return
		}
		edits, _ := change["edits"].([]any)
		earlier, _ := changes[uri].([]any)
		changes[uri] = append(append([]any{}, earlier...), edits...)
	}
	delete(edit, "documentChanges")
	edit["changes"] = changes
}

// withoutSnippets replaces the snippets of a completion item, of a list of items, or of a completion list with plain text.
func withoutSnippets(tree any) any {
	switch node := tree.(type) {
	case []any:
		for _, item := range node {
			withoutSnippets(item)
		}
	case map[string]any:
		withoutSnippets(node["items"])
		if node["insertTextFormat"] != json.Number("2") {
			break
		}
		node["insertTextFormat"] = 1
		plain(node, "insertText")
		plain(node, "textEditText")
		if edit, ok := node["textEdit"].(map[string]any); ok {
			plain(edit, "newText")
		}
	}
	return tree
}

func plain(node map[string]any, key string) {
	if text, ok := node[key].(string); ok {
		node[key] = snippetText(text)
	}
}

// flatSymbols returns a tree of symbols as a list, in the same order. container is the name of the parent.
func flatSymbols(tree any, uri, container string) []any {
	list := []any{}
	symbols, _ := tree.([]any)
	for _, child := range symbols {
		symbol, ok := child.(map[string]any)
		if !ok {
			continue
		}
		name, _ := symbol["name"].(string)
		flat := map[string]any{"name": name, "kind": symbol["kind"], "location": map[string]any{"uri": uri, "range": symbol["range"]}}
		for _, key := range []string{"tags", "deprecated"} {
			if value, ok := symbol[key]; ok {
				flat[key] = value
			}
		}
		if container != "" {
			flat["containerName"] = container
		}
		list = append(append(list, flat), flatSymbols(symbol["children"], uri, name)...)
	}
	return list
}
