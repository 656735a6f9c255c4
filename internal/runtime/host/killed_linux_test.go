// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/runtime"
)

// Since 6.14 Linux kills what is cloned into a cgroup that was killed before, however long ago.
func TestStartAfterKill(t *testing.T) {
	forTiers(t, func(b *bench) {
		for number := int64(1); number <= 3; number++ {
			b.Expect(b.Start(b.ctx, b.process("killed", number, "sleep"))).To(Succeed())
			running := b.await("killed", runtime.Running)
			b.Expect(running.Number).To(Equal(number))
			b.Expect(b.Kill(b.ctx, "killed", number)).To(Succeed())
			b.Expect(b.await("killed", runtime.Exited).Exit.Signal).To(Equal("SIGKILL"))
		}
		b.Expect(b.Start(b.ctx, b.process("killed", 4, "exit", "7"))).To(Succeed())
		ended := b.await("killed", runtime.Exited)
		b.Expect(ended.Number).To(Equal(int64(4)))
		b.Expect(ended.Exit.Signal).To(BeEmpty(), "nobody has killed it")
		b.Expect(ended.Exit.Code).To(Equal(int32(7)))
	})
}
