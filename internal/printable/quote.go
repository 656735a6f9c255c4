// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import "strings"

// Quote quotes a word for a shell, and for the commands of tmux. A word without special characters stays as it is.
func Quote(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
