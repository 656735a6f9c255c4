// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// That somebody kills the first process of a manager proves nothing of cgroups.
func TestWhatWasKilledIsTriedAgain(t *testing.T) {
	g := NewWithT(t)
	after := func(scripts ...string) (tried int, err error) {
		err = tryOut(func() (int, error) {
			script := scripts[min(tried, len(scripts)-1)]
			tried++
			return syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{})
		})
		return tried, err
	}
	tried, err := after("kill -9 $$", "exit 0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(tried).To(Equal(2))
	tried, err = after("exit 3", "exit 0")
	g.Expect(err).To(MatchError(ContainSubstring("wait status 0x300")), "it has answered")
	g.Expect(tried).To(Equal(1))
	tried, err = after("kill -9 $$")
	g.Expect(err).To(HaveOccurred(), "somebody kills each")
	g.Expect(tried).To(Equal(trials))
	cannot := errors.New("cannot")
	g.Expect(tryOut(func() (int, error) { return 0, cannot })).To(MatchError(cannot))
}
