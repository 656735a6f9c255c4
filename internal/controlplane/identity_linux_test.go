// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	. "github.com/onsi/gomega"
)

func TestFindLeftover_IgnoresOtherProcesses(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	stranger := exec.Command("sleep", "600")
	g.Expect(stranger.Start()).To(Succeed())
	defer func() { _ = stranger.Wait() }()
	defer func() { _ = stranger.Process.Kill() }()
	id, err := identify(stranger.Process.Pid)
	g.Expect(err).NotTo(HaveOccurred())

	reused, otherBoot := id, id
	reused.StartTicks--
	otherBoot.BootID = "another"
	for name, test := range map[string]struct {
		id    processIdentity
		found bool
	}{
		"itself":       {id, true},
		"reused PID":   {reused, false},
		"another boot": {otherBoot, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			data, err := json.Marshal(record{processIdentity: test.id})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(os.WriteFile(dir.pid(program), data, 0o600)).To(Succeed())
			found, err := findLeftover(dir)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found != nil).To(Equal(test.found))
			if !test.found {
				g.Expect(dir.pid(program)).NotTo(BeAnExistingFile())
			}
			g.Expect(id.alive()).To(BeTrue(), "another process receives no signal")
		})
	}
}
