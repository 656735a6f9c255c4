// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"strings"

	"github.com/berth-dev/berth/internal/printable"
)

// plainWriter writes text without the sequences that control a terminal. All readable output of the commands goes through a plainWriter, because names,
// messages and errors may contain text that an object, a process or a server chose. Output that a terminal or a protocol needs unchanged goes to app.raw.
type plainWriter struct{ to io.Writer }

// Write implements io.Writer. Each call must contain whole characters.
func (w *plainWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.to, printable.Text(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// lineEnds replaces the characters that printable.Text keeps but that must not occur within one line.
var lineEnds = strings.NewReplacer("\n", " ", "\t", " ")

// clean makes a value printable within one line. The value therefore cannot start a line that looks like output of Berth.
func clean(text string) string { return lineEnds.Replace(printable.Text(text)) }
