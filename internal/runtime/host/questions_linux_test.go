// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"io"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/terminal"
	"github.com/berth-dev/berth/test/need"
)

// screen draws the output of a process on a terminal of 80 columns and 24 lines.
func (f *fixture) screen(uid types.UID) string {
	log, err := f.OpenLog(f.ctx, uid)
	f.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	drawn := terminal.New(80, 24)
	_, err = io.Copy(drawn, io.NewSectionReader(log, 0, 1<<20))
	f.Expect(err).NotTo(HaveOccurred())
	return drawn.Text()
}

// Programs that ask their terminal for the position of the cursor wait for the answer before they show anything. Without a client, the shim answers.
func TestPrograms_ThatAskTheTerminal(t *testing.T) {
	for name, test := range map[string]struct {
		command             []string
		shows, typed, shown string
	}{
		"irb": {[]string{"irb", "-f"}, "001:0>", "6*7\r", "=> 42"},
		"fzf": {[]string{"/bin/sh", "-c", "echo chosen-$(seq 5 | fzf --height 40%); exec sleep 60"}, "5/5", "\r", "chosen-1"},
		"vim": {[]string{"nvim", "--clean", "-c", "echo 'ready' .. (6*7)"}, "ready42", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			need.Programs(t, "fzf", "irb", "nvim")
			f := newFixture(t, shim.Subreaper)
			p := f.process("asks", 1)
			p.Command, p.Terminal = test.command, &runtime.Terminal{Columns: 80, Rows: 24}
			p.Env = append(p.Env, "TERM=xterm-256color", "HOME="+t.TempDir())
			f.Expect(f.Start(f.ctx, p)).To(Succeed())
			f.await("asks", facts.Running)
			f.Eventually(f.screen).WithArguments(types.UID("asks")).WithTimeout(conformance.Timeout).Should(ContainSubstring(test.shows))
			in, keys := io.Pipe()
			attached := make(chan error, 1)
			go func() { attached <- f.Attach(f.ctx, "asks", in, io.Discard, nil) }()
			_, err := io.WriteString(keys, test.typed)
			f.Expect(err).NotTo(HaveOccurred())
			f.Eventually(f.screen).WithArguments(types.UID("asks")).WithTimeout(conformance.Timeout).Should(ContainSubstring(test.shown))
			f.Expect(keys.Close()).To(Succeed())
			f.Eventually(attached).WithTimeout(conformance.Timeout).Should(Receive())
		})
	}
}
