// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"io"
	"os/exec"
	"testing"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/test/need"
)

// The attach command of the status works when it is pasted: input reaches the program, and detaching does not stop it.
func TestAttachCommand_WorksInShell(t *testing.T) {
	need.Programs(t, "docker")
	f := newFixture(t)
	p := f.process("typed", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await("typed", facts.Running)

	command := exec.Command("/bin/sh", "-c", f.AttachCommand("typed"))
	window, err := pty.Start(command)
	f.Expect(err).NotTo(HaveOccurred())
	screen, ended := gbytes.NewBuffer(), make(chan error, 1)
	go func() {
		_, _ = io.Copy(screen, window)
		ended <- command.Wait()
	}()
	// The command does not show earlier output, so send input until the program responds.
	f.Eventually(func() string {
		_, err := io.WriteString(window, "hello\r")
		f.Expect(err).NotTo(HaveOccurred())
		return string(screen.Contents())
	}).WithTimeout(conformance.Timeout).Should(ContainSubstring("got <hello>"))

	_, err = io.WriteString(window, "\x10\x11") // Ctrl-P Ctrl-Q detaches
	f.Expect(err).NotTo(HaveOccurred())
	f.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive())
	f.Expect(window.Close()).To(Succeed())
	f.Expect(f.observe("typed").Phase).To(Equal(facts.Running))
}
