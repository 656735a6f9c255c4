// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// Once a cgroup has been killed, Linux 6.14 and later also kills every process that is cloned into this cgroup. Therefore each incarnation needs a new cgroup.
func TestStart_SucceedsAfterKill(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		for number := int64(1); number <= 3; number++ {
			f.Expect(f.Start(f.ctx, f.process("killed", number, "sleep"))).To(Succeed())
			running := f.await("killed", facts.Running)
			f.Expect(running.Number).To(Equal(number))
			f.Expect(f.Kill(f.ctx, "killed", number)).To(Succeed())
			f.Expect(f.await("killed", facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
		}
		f.Expect(f.Start(f.ctx, f.process("killed", 4, "exit", "7"))).To(Succeed())
		ended := f.await("killed", facts.Exited)
		f.Expect(ended.Number).To(Equal(int64(4)))
		f.Expect(ended.Exit.Signal).To(BeEmpty(), "the process was not killed")
		f.Expect(ended.Exit.Code).To(Equal(int32(7)))
	})
}

// The environment of a process, by which it is found, is not readable while the process exits, and the process may change it. The process still has its sockets.
func TestOrphan_WaitsForMemberWithoutEnvironment(t *testing.T) {
	g := NewWithT(t)
	program := exec.Command(conformance.Workload(t), "sleep")
	g.Expect(program.Start()).To(Succeed())
	defer func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	}()
	member, err := procstat.Identify(program.Process.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	o := &orphan{}
	g.Expect(o.empty(shim.Tree{Leader: member})).To(BeFalse(), "the tree has a process")
	unreadable := shim.Tree{Mark: "no-process-has-this-mark"}
	g.Expect(unreadable.Empty()).To(BeTrue(), "the process is not found")
	g.Expect(o.empty(unreadable)).To(BeFalse(), "the process still runs")
	g.Expect(program.Process.Kill()).To(Succeed())
	g.Eventually(func() (bool, error) { return o.empty(unreadable) }).WithTimeout(conformance.Timeout).Should(BeTrue())
}

// A caller of List, such as the collector of orphans, must not consume the event that another caller waits for.
func TestList_DoesNotConsumeEvents(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("orphan", "sleep")
		f.await("orphan", facts.Running)
		program := f.identity("orphan").Child
		f.killShim("orphan")
		f.Eventually(func() string { return f.observe("orphan").Message }).WithTimeout(conformance.Timeout).Should(ContainSubstring("shim"))
		// Discard earlier events. An event that arrives even later only makes the test weaker.
		for quiet := false; !quiet; {
			select {
			case <-f.Events():
			case <-time.After(5 * tendEvery):
				quiet = true
			}
		}
		conformance.Signal(f.WithT, program, syscall.SIGKILL)
		f.Eventually(func() facts.Phase {
			all, err := f.List(f.ctx)
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(all).To(HaveLen(1))
			return all[0].Phase
		}).WithTimeout(conformance.Timeout).WithPolling(time.Millisecond).Should(Equal(facts.Exited))
		f.Eventually(f.Events()).WithTimeout(conformance.Timeout).Should(Receive(BeEquivalentTo("orphan")))
	})
}

// While neither its shim nor a manager is running, a process can exceed the log limit. Once a manager finds that the process has exited, it truncates the log.
func TestLog_TruncatedAfterOrphanExits(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("orphan", "flood")
		f.await("orphan", facts.Running)
		program := f.identity("orphan").Child
		f.Expect(f.Close()).To(Succeed())
		f.killShim("orphan")
		onDisk := func() int64 {
			var st syscall.Stat_t
			f.Expect(syscall.Stat(filepath.Join(f.options.StateDir, "run", "orphan", shim.LogFile), &st)).To(Succeed())
			return st.Blocks * 512
		}
		f.Eventually(onDisk).WithTimeout(conformance.Timeout).WithPolling(time.Millisecond).Should(BeNumerically(">", 3*testLogLimit))
		conformance.Signal(f.WithT, program, syscall.SIGKILL)
		f.open()
		f.await("orphan", facts.Exited)
		f.Expect(onDisk()).To(BeNumerically("<=", testLogLimit))
	})
}
