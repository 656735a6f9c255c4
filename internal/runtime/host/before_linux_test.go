// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/shim"
)

// If a manager crashes between recording a start and executing it, the previous exit must not be lost, because the status may not contain it yet.
func TestTheEndBeforeOutlivesAStartThatCameToNothing(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "exit", "3")
		ended := b.await("web", facts.Exited)
		b.Expect(ended.Before).To(BeNil())
		record := b.record(b.process("web", 2, "sleep"))
		record.Before = before(b.found("web"), b.process("web", 2, "sleep"))
		b.Expect(shim.WriteFile(filepath.Join(b.dir("web"), shim.RecordFile), record, false)).To(Succeed())
		b.reopen()

		found := b.observe("web")
		b.Expect(found.Number).To(BeEquivalentTo(1))
		b.Expect(found.Phase).To(Equal(facts.Exited))
		b.Expect(found.Exit).To(Equal(ended.Exit))
		b.Expect(b.Start(b.ctx, b.process("web", 2, "sleep"))).To(Succeed())
		running := b.await("web", facts.Running)
		b.Expect(running.Number).To(BeEquivalentTo(2))
		b.Expect(running.Before).To(Equal(&facts.Ended{Number: 1, Exit: *ended.Exit}))
	})
}

// found returns the observation of a UID.
func (b *bench) found(uid string) *observation {
	b.Helper()
	e, err := b.acquire(types.UID(uid))
	b.Expect(err).NotTo(HaveOccurred())
	defer b.release(e, true)
	return b.inspect(e)
}
