// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import "testing"

func TestName_IsValidForAnyText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "-_-": "", "ä": "", "web": "web", "Foo_Bar": "foo-bar", "--a -- b--": "a-b", "ab\xffc": "ab-c",
		"12345678": "12345678", "123456789": "12345678", "1234567-9": "1234567",
	} {
		if got := Name(text, 8); got != want {
			t.Errorf("Name(%q) = %q, want %q", text, got, want)
		}
	}
}
