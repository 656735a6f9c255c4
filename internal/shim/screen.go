// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import "io"

// Screen draws the output of a program, to find the position of the cursor.
type Screen interface {
	io.Writer
	// Cursor returns the position of the cursor, counted from 0.
	Cursor() (column, row int)
}

// NewScreen returns an empty screen of a size; 0 selects the default. The program berth-shim passes it to Main, because the other users of this package, such as
// berth-lsp, must not depend on the package terminal.
type NewScreen func(columns, rows int) Screen
