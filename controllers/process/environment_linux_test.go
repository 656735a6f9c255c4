// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// The limit is that of Linux, so Berth refuses only what could not be executed.
func TestMaxString_IsTheLimitOfLinux(t *testing.T) {
	g := NewWithT(t)
	execute := func(size int) error {
		command := exec.CommandContext(t.Context(), "true")
		command.Env = []string{"A=" + strings.Repeat("x", size-len("A="))}
		return command.Run()
	}
	g.Expect(execute(maxString)).To(Succeed())
	g.Expect(execute(maxString + 1)).To(MatchError(syscall.E2BIG))
}
