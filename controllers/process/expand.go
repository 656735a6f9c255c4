// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import "strings"

// Expand expands the references to variables, such as $(PORT), in each word of a command.
func Expand(command []string, variables map[string]string) []string {
	expanded := make([]string, len(command))
	for i, word := range command {
		expanded[i] = expand(word, func(name string) (string, bool) {
			value, known := variables[name]
			return value, known
		})
	}
	return expanded
}

// expand expands $(NAME) as Kubernetes does: $$ becomes a dollar sign, so that $$(NAME) becomes $(NAME); an unknown or unclosed reference is left
// unchanged. It stops when the result is longer than maxString, because a few variables that refer to each other could otherwise expand to more than the memory
// of the manager.
func expand(text string, lookup func(name string) (value string, known bool)) string {
	var out strings.Builder
	for {
		start := strings.IndexByte(text, '$')
		if start < 0 || start == len(text)-1 || out.Len() > maxString {
			out.WriteString(text)
			return out.String()
		}
		out.WriteString(text[:start])
		text = text[start+1:]
		end := strings.IndexByte(text, ')')
		switch {
		case text[0] == '$':
			out.WriteByte('$')
			text = text[1:]
		case text[0] == '(' && end > 0:
			if value, known := lookup(text[1:end]); known {
				out.WriteString(value)
			} else {
				out.WriteString("$" + text[:end+1])
			}
			text = text[end+1:]
		default:
			out.WriteByte('$')
		}
	}
}
