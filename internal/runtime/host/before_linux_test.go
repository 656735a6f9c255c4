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
	"github.com/berth-dev/berth/internal/statedir"
)

// If a manager crashes between recording a start and executing it, the previous exit must not be lost, because the status may not contain it yet.
func TestStart_KeepsPreviousExitAfterManagerCrash(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "exit", "3")
		ended := f.await("web", facts.Exited)
		f.Expect(ended.Before).To(BeNil())
		record := f.record(f.process("web", 2, "sleep"))
		record.Before = before(f.observation("web"), f.process("web", 2, "sleep"))
		f.Expect(statedir.WriteJSON(filepath.Join(f.dir("web"), shim.RecordFile), record, false)).To(Succeed())
		f.reopen()

		found := f.observe("web")
		f.Expect(found.Number).To(BeEquivalentTo(1))
		f.Expect(found.Phase).To(Equal(facts.Exited))
		f.Expect(found.Exit).To(Equal(ended.Exit))
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(Succeed())
		running := f.await("web", facts.Running)
		f.Expect(running.Number).To(BeEquivalentTo(2))
		f.Expect(running.Before).To(Equal(&facts.Ended{Number: 1, Exit: *ended.Exit}))
	})
}

// observation returns the observation of a UID.
func (f *fixture) observation(uid string) *observation {
	f.Helper()
	e, err := f.acquire(types.UID(uid))
	f.Expect(err).NotTo(HaveOccurred())
	defer f.release(e, true)
	return f.inspect(e)
}
