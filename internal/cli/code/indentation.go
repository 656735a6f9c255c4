// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"bytes"
	"cmp"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/editorconfig/editorconfig-core-go/v2"

	"github.com/berth-dev/berth/internal/folder"
)

const (
	editorConfig = ".editorconfig"
	// maxEditorConfig is the maximum size of such a file, in bytes.
	maxEditorConfig = 64 << 10
	// maxIndent is the maximum width of one level of indentation.
	maxIndent = 16
)

// indentation is one level of indentation. Its zero value means that nothing is known.
type indentation struct {
	TabSize      int  `json:"tabSize"`
	InsertSpaces bool `json:"insertSpaces"`
}

// indentation returns the options for formatting a file: what its .editorconfig files state, else the indentation of its text, else the usual one of its language.
func (f *files) indentation(path, text string) indentation {
	usual := indentation{4, true}
	switch Language(path) {
	case "go":
		usual.InsertSpaces = false
	case "typescript", "typescriptreact", "javascript", "javascriptreact", "json", "yaml", "css", "scss", "html", "ruby", "lua":
		usual.TabSize = 2
	}
	measured := cmp.Or(measure(text), usual)
	stated := configured(path)
	style, size := stated.IndentStyle, stated.IndentSize
	if style != editorconfig.IndentStyleTab && style != editorconfig.IndentStyleSpaces {
		style = editorconfig.IndentStyleSpaces
		if !measured.InsertSpaces {
			style = editorconfig.IndentStyleTab
		}
	}
	width, err := strconv.Atoi(size)
	if err != nil { // it is not stated, or is that of a tab
		width = stated.TabWidth
	}
	if width < 1 || width > maxIndent {
		width = measured.TabSize
	}
	return indentation{width, style == editorconfig.IndentStyleSpaces}
}

// configured returns what the .editorconfig files in the folder of a file and in those above it state. A file that is invalid, or that is not a regular file, is
// ignored, as editors do.
func configured(path string) editorconfig.Definition {
	var all editorconfig.Definition
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if text, err := folder.Read(dir, editorConfig, maxEditorConfig); err == nil {
			name, _ := below(dir, path)
			top := inherit(&all, text, filepath.ToSlash(name))
			if top {
				return all
			}
		}
		if dir == filepath.Dir(dir) {
			return all
		}
	}
}

// inherit adds what one .editorconfig file states to what the files below it state. It reports whether the files above do not count.
func inherit(all *editorconfig.Definition, text []byte, name string) (top bool) {
	parsed, _, err := editorconfig.ParseGraceful(bytes.NewReader(text))
	if err != nil {
		return false
	}
	if found, err := parsed.GetDefinitionForFilename(name); err == nil {
		all.IndentStyle = cmp.Or(all.IndentStyle, found.IndentStyle)
		all.IndentSize = cmp.Or(all.IndentSize, found.IndentSize)
		all.TabWidth = cmp.Or(all.TabWidth, found.TabWidth)
	}
	return parsed.Root
}

// measure returns the indentation of a text: the most frequent step by which a line is indented more than the line before.
func measure(text string) indentation {
	steps := map[int]int{} // the number of lines by their step; 0 is a tab
	before := ""
	for line := range strings.Lines(text) {
		content := strings.TrimLeft(line, " \t")
		if strings.TrimSpace(content) == "" || strings.HasPrefix(content, "*") { // the lines of a comment are indented by one more space
			continue
		}
		lead := line[:len(line)-len(content)]
		step, deeper := strings.CutPrefix(lead, before)
		before = lead
		if width := len(step); deeper && width > 1 && width <= maxIndent && strings.Trim(step, " ") == "" {
			steps[width]++
		} else if deeper && width > 0 && strings.Trim(step, "\t") == "" {
			steps[0]++
		}
	}
	return mostFrequent(steps)
}

func mostFrequent(steps map[int]int) indentation {
	best, lines := 0, 0
	for step, count := range steps {
		if count > lines || count == lines && step < best {
			best, lines = step, count
		}
	}
	switch {
	case lines == 0:
		return indentation{}
	case best == 0:
		return indentation{4, false}
	}
	return indentation{best, true}
}
