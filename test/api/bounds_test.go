// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// violation is a value that violates one bound of the schema.
type violation struct {
	path  string
	bound string
	value any
}

// TestSchema_EnforcesEveryBound violates every bound of the generated schema, one at a time, on a real API server.
func TestSchema_EnforcesEveryBound(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kind, func(t *testing.T) {
			var found []violation
			walk(specOf(t, kind), "spec", func(path string, schema schemaProps) {
				found = append(found, violations(path, schema)...)
			})
			NewWithT(t).Expect(len(found)).To(BeNumerically(">", 15), "the schema has lost its bounds")
			for _, v := range found {
				t.Run(v.path+" "+v.bound, func(t *testing.T) {
					g := NewWithT(t)
					o := object(t, kind, "refused", "{}")
					setPath(o.Object, strings.Split(v.path, "."), v.value)
					err := dryRun(t.Context(), o)
					g.Expect(err).To(HaveOccurred(), "the API server accepted it")
					g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), err.Error())
					g.Expect(err.Error()).To(ContainSubstring(strings.ReplaceAll(v.path, "[]", "[0]")))
				})
			}
		})
	}
}

func violations(path string, schema schemaProps) []violation {
	var found []violation
	add := func(bound string, value any) { found = append(found, violation{path, bound, value}) }
	if schema.Minimum != nil {
		add("below its minimum", int64(*schema.Minimum)-1)
	}
	if schema.Maximum != nil {
		add("above its maximum", int64(*schema.Maximum)+1)
	}
	if schema.MaxLength != nil {
		add("too long", strings.Repeat("a", int(*schema.MaxLength)+1))
	}
	if schema.MinLength != nil {
		add("too short", strings.Repeat("a", int(*schema.MinLength)-1))
	}
	if schema.Pattern != "" {
		add("not matching its pattern", "no such thing!")
	}
	if len(schema.Enum) > 0 {
		add("not in its enum", "Nonsense")
	}
	if schema.MaxProperties != nil {
		add("with too many properties", properties(*schema.MaxProperties+1))
	}
	if schema.MinItems != nil {
		add("with too few items", items(*schema.MinItems-1, schema))
	}
	if schema.MaxItems != nil {
		add("with too many items", items(*schema.MaxItems+1, schema))
	}
	switch schema.Type {
	case "integer", "object", "array":
		add("of the wrong type", "text")
	case "string":
		add("of the wrong type", int64(1))
	}
	return found
}

// properties returns an object with n properties.
func properties(n int64) map[string]any {
	object := map[string]any{}
	for i := range n {
		object[fmt.Sprintf("p%d", i)] = "x"
	}
	return object
}

// items returns a list of n valid items for the schema of a list.
func items(n int64, schema schemaProps) []any {
	list := make([]any, 0, n)
	for i := range n {
		if schema.Items.Schema.Type == "object" {
			if schema.Items.Schema.Properties["secretRef"].Type != "" {
				list = append(list, map[string]any{"secretRef": map[string]any{"name": "s"}})
				continue
			}
			if schema.XListMapKeys != nil && schema.XListMapKeys[0] == "target" {
				list = append(list, map[string]any{"target": fmt.Sprintf("/N%d", i)})
				continue
			}
			list = append(list, item(schema.Items.Schema.Properties["run"].Type != "", fmt.Sprintf("N%d", i)))
		} else {
			list = append(list, fmt.Sprintf("/x%d", i))
		}
	}
	return list
}

// item returns a valid item of a list of objects. The parameter name is the value of its list key. The list key of a result is the field "run"; the list key
// of all other items is the field "name".
func item(isResult bool, name string) map[string]any {
	if isResult {
		return map[string]any{"run": name, "strategy": "a", "phase": "Execute", "outcome": "Failed"}
	}
	return map[string]any{"name": name}
}

// setPath sets a value at a path in content; a path element that ends in [] is the first item of a list.
func setPath(content map[string]any, path []string, value any) {
	name, isList := strings.CutSuffix(path[0], "[]")
	switch {
	case len(path) == 1 && isList:
		content[name] = []any{value}
	case len(path) == 1:
		content[name] = value
	case isList:
		first := item(name == "inputs", "A")
		if name == "mounts" || name == "envFrom" { // their items have no field "name"
			first = map[string]any{}
		}
		content[name] = []any{first}
		setPath(first, path[1:], value)
	default:
		inner, ok := content[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			content[name] = inner
		}
		setPath(inner, path[1:], value)
	}
}
