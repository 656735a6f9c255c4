// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

func TestMeasure_FindsTheStepOfTheIndentation(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want indentation
	}{
		"two spaces":    {"a {\n  b {\n    c\n  }\n}\n", indentation{2, true}},
		"four spaces":   {"def a():\n    if b:\n        c\n\n    d\n", indentation{4, true}},
		"three":         {"a\n   b\n", indentation{3, true}},
		"tabs":          {"a {\n\tb {\n\t\tc\n\t}\n}\n", indentation{4, false}},
		"a comment":     {"/**\n * a\n * b\n */\nfunction a() {\n  b;\n}\n", indentation{2, true}},
		"an alignment":  {"a(b,\n  c);\nif (a) {\n    b;\n}\nif (c) {\n    d;\n}\n", indentation{4, true}},
		"empty lines":   {"a {\n\n  \n  b\n}\n", indentation{2, true}},
		"CRLF":          {"a {\r\n\tb\r\n}\r\n", indentation{4, false}},
		"no indent":     {"a\nb\n", indentation{}},
		"nothing":       {"", indentation{}},
		"a deep column": {"a\n                                        b\n", indentation{}},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(measure(test.text)).To(Equal(test.want))
		})
	}
}

func TestFormat_UsesTheIndentationOfTheFile(t *testing.T) {
	const four = "function a() {\n    b;\n}\n"
	for name, test := range map[string]struct {
		config map[string]string // .editorconfig files by their folder
		text   string
		want   indentation
	}{
		"measured":              {nil, four, indentation{4, true}},
		"of the language":       {nil, "a\n", indentation{2, true}},
		"stated":                {map[string]string{".": "[*]\nindent_style = space\nindent_size = 3\n"}, four, indentation{3, true}},
		"another file's":        {map[string]string{".": "[*.py]\nindent_size = 3\n"}, four, indentation{4, true}},
		"a tab":                 {map[string]string{".": "[*.{ts,tsx}]\nindent_style = tab\ntab_width = 8\n"}, four, indentation{8, false}},
		"the size of a tab":     {map[string]string{".": "[*]\nindent_style = tab\nindent_size = tab\ntab_width = 8\n"}, four, indentation{8, false}},
		"above":                 {map[string]string{"..": "[sub/*.ts]\nindent_size = 3\n"}, four, indentation{3, true}},
		"the nearest":           {map[string]string{"..": "[*]\nindent_size = 3\nindent_style = tab", ".": "[*]\nindent_size = 5\n"}, four, indentation{5, false}},
		"root":                  {map[string]string{"..": "[*]\nindent_size = 3\n", ".": "root = true\n"}, four, indentation{4, true}},
		"unset":                 {map[string]string{".": "[*]\nindent_size = unset\nindent_style = unset\n"}, four, indentation{4, true}},
		"an unusable size":      {map[string]string{".": "[*]\nindent_size = 1000000\n"}, four, indentation{4, true}},
		"a file that is broken": {map[string]string{".": "[*\n\x00= ="}, four, indentation{4, true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := filepath.Join(t.TempDir(), "sub")
			g.Expect(os.Mkdir(dir, 0o700)).To(Succeed())
			for folder, text := range test.config {
				write(t, filepath.Join(dir, folder, editorConfig), text)
			}
			path := filepath.Join(dir, "a.ts")
			write(t, path, test.text)
			var asked struct{ Options indentation }
			c := connect(t, &server{answer: func(method string, params json.RawMessage) any {
				if method == "textDocument/formatting" {
					g.Expect(json.Unmarshal(params, &asked)).To(Succeed())
				}
				return nil
			}}, dir)
			_, err := c.Format(t.Context(), path)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(asked.Options).To(Equal(test.want))
		})
	}
}

// A repository can contain anything under the name .editorconfig.
func TestConfigured_OpensOnlyRegularFiles(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a device":    func(path string) error { return os.Symlink("/dev/zero", path) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a large file": func(path string) error {
			if err := os.WriteFile(path, []byte("[*]\nindent_size = 3\n"), 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<40)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			g.Expect(put(filepath.Join(dir, editorConfig))).To(Succeed())
			within(t, func() { g.Expect(configured(filepath.Join(dir, "a.ts")).IndentSize).To(BeEmpty()) })
		})
	}
}
