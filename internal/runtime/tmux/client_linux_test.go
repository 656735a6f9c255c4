// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// A response of any size uses a bounded amount of memory.
func TestClient_LimitsResponseSize(t *testing.T) {
	g := NewWithT(t)
	program := filepath.Join(t.TempDir(), "tmux")
	for size, fits := range map[string]bool{"4194304": true, "4194305": false, "50000000": false} {
		script := "#!/bin/sh\nhead -c " + size + " /dev/zero\n"
		g.Expect(os.WriteFile(program, []byte(script), 0o700)).To(Succeed()) //nolint:gosec // it is to be run
		out, err := client{program: program, socket: "test"}.run(t.Context(), []string{"list-sessions"})
		if fits {
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(HaveLen(mostAnswer))
		} else {
			g.Expect(err).To(MatchError(ContainSubstring("exceeds 4194304 bytes")))
		}
	}
}
