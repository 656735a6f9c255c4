// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

const heading = `# Helm chart of Berth

Made by ` + "`make chart`" + ` from values.yaml. The chart gives the same objects as ` + "`config/default`" + `, which a test holds against each other.

` + "```sh" + `
helm install berth charts/berth --namespace berth-system --create-namespace
` + "```" + `

How to upgrade, what stays when it is uninstalled, and what is secured in which way: [docs/install.md](../../docs/install.md).

## Values

| Value | Default | Meaning |
|---|---|---|
`

// readme returns the page generated from the values and the comments above them. It returns an error for a value without a comment, unless the mapping that
// contains it has one.
func readme(values []byte) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return nil, fmt.Errorf("read the values: %w", err)
	}
	page := bytes.NewBufferString(heading)
	if err := rows(page, "", document.Content[0]); err != nil {
		return nil, err
	}
	return page.Bytes(), nil
}

// rows writes a row for each value with a comment. A mapping without a comment is written value by value.
func rows(page *bytes.Buffer, prefix string, node *yaml.Node) error {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := prefix + key.Value
		comment := strings.Join(strings.Fields(strings.ReplaceAll(key.HeadComment, "#", "")), " ")
		if comment == "" {
			if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
				return fmt.Errorf("values.yaml, line %d: %s has no comment that says what it means", key.Line, name)
			}
			if err := rows(page, name+".", value); err != nil {
				return err
			}
			continue
		}
		fallback, err := inline(value)
		if err != nil {
			return err
		}
		fmt.Fprintf(page, "| `%s` | `%s` | %s |\n", name, fallback, strings.ReplaceAll(comment, "|", `\|`))
	}
	return nil
}

// inline returns a value on one line.
func inline(value *yaml.Node) (string, error) {
	flat := *value
	if flat.Kind == yaml.MappingNode || flat.Kind == yaml.SequenceNode {
		flat.Style = yaml.FlowStyle
	}
	text, err := yaml.Marshal(&flat)
	return strings.TrimSpace(string(text)), err
}
