// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"regexp"
	"strings"
)

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// Name reduces text to at most longest bytes that are valid in the name of an object: lower-case letters and digits with single hyphens between them. The
// result may be empty.
func Name(text string, longest int) string {
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(text), "-"), "-")
	return strings.TrimRight(name[:min(len(name), longest)], "-")
}
