// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package greeting

import "testing"

func TestHello(t *testing.T) {
	for name, want := range map[string]string{"Ann": "Hello, Ann!", "": "Hello, everybody!"} {
		if got := Hello(name); got != want {
			t.Errorf("Hello(%q) = %q, want %q", name, got, want)
		}
	}
}
