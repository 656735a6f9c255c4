// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// Since 6.14, Linux kills every process that is cloned into a cgroup that was ever killed, so each incarnation needs a new cgroup.
func TestStartAfterKill(t *testing.T) {
	forTiers(t, func(b *bench) {
		for number := int64(1); number <= 3; number++ {
			b.Expect(b.Start(b.ctx, b.process("killed", number, "sleep"))).To(Succeed())
			running := b.await("killed", facts.Running)
			b.Expect(running.Number).To(Equal(number))
			b.Expect(b.Kill(b.ctx, "killed", number)).To(Succeed())
			b.Expect(b.await("killed", facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
		}
		b.Expect(b.Start(b.ctx, b.process("killed", 4, "exit", "7"))).To(Succeed())
		ended := b.await("killed", facts.Exited)
		b.Expect(ended.Number).To(Equal(int64(4)))
		b.Expect(ended.Exit.Signal).To(BeEmpty(), "the process was not killed")
		b.Expect(ended.Exit.Code).To(Equal(int32(7)))
	})
}

// A caller of List, such as the collector of orphans, must not consume the event that another caller waits for.
func TestLookingSwallowsNoEvent(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("orphan", "sleep")
		b.await("orphan", facts.Running)
		program := b.identity("orphan").Child
		b.killShim("orphan")
		b.Eventually(func() string { return b.observe("orphan").Message }).WithTimeout(conformance.Timeout).Should(ContainSubstring("shim"))
		// Discard earlier events. An event that arrives even later only makes the test weaker.
		for quiet := false; !quiet; {
			select {
			case <-b.Events():
			case <-time.After(5 * tendEvery):
				quiet = true
			}
		}
		signal(b, program, syscall.SIGKILL)
		b.Eventually(func() facts.Phase {
			all, err := b.List(b.ctx)
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(all).To(HaveLen(1))
			return all[0].Phase
		}).WithTimeout(conformance.Timeout).WithPolling(time.Millisecond).Should(Equal(facts.Exited))
		b.Eventually(b.Events()).WithTimeout(conformance.Timeout).Should(Receive(BeEquivalentTo("orphan")))
	})
}

// Output that a process writes without its shim and without a manager is truncated to the limit once a manager finds that the process has exited.
func TestLogOfAnOrphanIsBoundedAtItsEnd(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("orphan", "flood")
		b.await("orphan", facts.Running)
		program := b.identity("orphan").Child
		b.Expect(b.Close()).To(Succeed())
		b.killShim("orphan")
		onDisk := func() int64 {
			var st syscall.Stat_t
			b.Expect(syscall.Stat(filepath.Join(b.options.StateDir, "run", "orphan", shim.LogFile), &st)).To(Succeed())
			return st.Blocks * 512
		}
		b.Eventually(onDisk).WithTimeout(conformance.Timeout).WithPolling(time.Millisecond).Should(BeNumerically(">", 3*testLogLimit))
		signal(b, program, syscall.SIGKILL)
		b.open()
		b.await("orphan", facts.Exited)
		b.Expect(onDisk()).To(BeNumerically("<=", testLogLimit))
	})
}
