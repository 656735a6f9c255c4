// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// alive reports whether a process is running; a zombie is not.
func alive(pid int64) bool {
	if syscall.Kill(int(pid), 0) != nil {
		return false
	}
	data, err := os.ReadFile("/proc/" + strconv.FormatInt(pid, 10) + "/stat")
	if err != nil {
		return !os.IsNotExist(err)
	}
	_, after, _ := strings.Cut(string(data), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

// treePIDs waits for the processes that the modes "tree" and "leave" start, and returns their PIDs on this machine. For a container, leader is the PID of the
// running program; if leader is 0, treePIDs returns nil.
func (s *suite) treePIDs(leader int64, dir string) []int64 {
	s.Helper()
	var pids []int64
	s.Eventually(func() int {
		found, _ := filepath.Glob(filepath.Join(dir, "pid-*"))
		pids = nil
		for _, name := range found {
			_, number, _ := strings.Cut(filepath.Base(name), "-")
			pid, _ := strconv.ParseInt(number, 10, 64)
			pids = append(pids, pid)
		}
		return len(pids)
	}).WithTimeout(Timeout).Should(Equal(3))
	switch {
	case !s.Container:
		return pids
	case leader == 0:
		return nil
	}
	return s.hostPIDs(leader, pids)
}

// hostPIDs translates PIDs in the container of the leader to PIDs on this machine.
func (s *suite) hostPIDs(leader int64, inside []int64) []int64 {
	s.Helper()
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", leader))
	s.Expect(err).NotTo(HaveOccurred())
	var pids []int64
	entries, err := filepath.Glob("/proc/[0-9]*")
	s.Expect(err).NotTo(HaveOccurred())
	for _, entry := range entries {
		if of, err := os.Readlink(filepath.Join(entry, "ns/pid")); err != nil || of != namespace {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(entry, "status"))
		_, numbers, _ := strings.Cut(string(status), "NSpid:")
		numbers, _, _ = strings.Cut(numbers, "\n")
		both := strings.Fields(numbers)
		for _, pid := range inside {
			if len(both) > 1 && both[len(both)-1] == strconv.FormatInt(pid, 10) {
				here, _ := strconv.ParseInt(both[0], 10, 64)
				pids = append(pids, here)
			}
		}
	}
	s.Expect(pids).To(HaveLen(len(inside)))
	return pids
}

func (s *suite) expectDead(pids ...int64) {
	s.Helper()
	for _, pid := range pids {
		s.Expect(alive(pid)).To(BeFalse(), "process %d is left", pid)
	}
}

func testKillTree(s *suite) {
	dir := s.TempDir()
	uid := s.start("tree", dir)
	leader := s.pid(s.awaitPhase(uid, facts.Running))
	pids := s.treePIDs(leader, dir)
	s.Expect(alive(pids[0])).To(BeTrue())
	s.killAndWait(uid)
	s.expectDead(append(pids, leader)...)
	s.Expect(s.observe(uid).Exit.Signal).To(s.killSignal())

	// After a stop signal the program exits. The backend then terminates the other processes, which ignore the signal.
	dir = s.TempDir()
	uid = s.start("tree", dir)
	leader = s.pid(s.awaitPhase(uid, facts.Running))
	pids = s.treePIDs(leader, dir)
	s.stop(uid, 1)
	s.Expect(s.awaitPhase(uid, facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
	s.expectDead(pids...)
}

func testProcessesLeftBehind(s *suite) {
	dir := s.TempDir()
	uid := s.start("leave", dir, "7")
	pids := s.treePIDs(0, dir)
	s.await(uid, "left by its program", func(i facts.Incarnation) bool { return i.LeaderExit != nil || i.Phase == facts.Exited })
	ended := s.awaitPhase(uid, facts.Exited)
	s.Expect(ended.Exit.Known).To(BeTrue())
	s.Expect(ended.Exit.Code).To(BeEquivalentTo(7), "the exit code is that of the program, not that of a process it left behind")
	s.Expect(ended.LeaderExit).To(BeNil())
	s.expectDead(pids...)

	// A kill does not wait for the grace period of the other processes.
	dir = s.TempDir()
	uid = s.start("leave", dir, "0")
	pids = s.treePIDs(0, dir)
	s.killAndWait(uid)
	s.expectDead(pids...)
}

func testStoppedProgram(s *suite) {
	uid := s.start("stopped")
	s.awaitPhase(uid, facts.Running)
	if s.Logs {
		s.awaitOutput(uid, "ready")
	}
	s.stop(uid, 1)
	s.Expect(s.awaitPhase(uid, facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
}

func testStartErrors(s *suite) {
	dir := s.TempDir()
	plain := filepath.Join(dir, "plain")
	s.Expect(os.WriteFile(plain, []byte("not a program"), 0o600)).To(Succeed())
	orphaned := filepath.Join(dir, "script")
	s.Expect(os.WriteFile(orphaned, []byte("#!/no/such/interpreter\n"), 0o700)).To(Succeed())
	for name, test := range map[string]struct {
		reason string
		with   func(p *runtime.Process)
		says   string
	}{
		"no such program":      {v1alpha1.ReasonCommandNotFound, func(p *runtime.Process) { p.Command = []string{"no-such-program"} }, "no-such-program"},
		"no command":           {v1alpha1.ReasonCommandNotFound, func(p *runtime.Process) { p.Command = nil }, "spec.process.command"},
		"no such path":         {v1alpha1.ReasonCommandNotFound, func(p *runtime.Process) { p.Command = []string{"/no/such/program"} }, "/no/such/program"},
		"not in PATH of child": {v1alpha1.ReasonCommandNotFound, func(p *runtime.Process) { p.Command, p.Env = []string{"ls"}, []string{"PATH=" + dir} }, dir},
		"no interpreter":       {v1alpha1.ReasonCommandNotFound, func(p *runtime.Process) { p.Command = []string{orphaned} }, "interpreter"},
		"not executable":       {v1alpha1.ReasonPermissionDenied, func(p *runtime.Process) { p.Command = []string{plain} }, plain},
		"a directory":          {v1alpha1.ReasonPermissionDenied, func(p *runtime.Process) { p.Command = []string{dir} }, dir},
		"no directory":         {v1alpha1.ReasonWorkingDirMissing, func(p *runtime.Process) { p.Dir = dir + "/missing" }, "missing"},
		"file as directory":    {v1alpha1.ReasonWorkingDirMissing, func(p *runtime.Process) { p.Dir = plain }, plain},
		"preloaded":            {v1alpha1.ReasonStartFailed, func(p *runtime.Process) { p.Env = []string{"LD_PRELOAD=/evil.so"} }, "LD_PRELOAD"},
	} {
		if s.Container && (name == "no directory" || name == "no command") {
			continue // the engine creates the directory, and the image has an entrypoint
		}
		if _, left := s.Without[name]; left {
			continue
		}
		uid := newUID()
		p := s.process(uid, 1, "sleep")
		p.Origin = facts.Origin{SpecHash: "hash"}
		test.with(&p)
		s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed(), name)
		failed := s.awaitPhase(uid, facts.Failed)
		s.Expect(failed.StartError).To(HaveOccurred(), name)
		s.Expect(failed.StartError.Reason).To(Equal(test.reason), "%s: %s", name, failed.StartError.Message)
		s.Expect(failed.StartError.Message).To(ContainSubstring(test.says), name)
		if keepsOrigin(s.Harness) {
			s.Expect(failed.Origin).To(Equal(p.Origin), name)
		}
		s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed(), "again")
		s.Expect(s.observe(uid)).To(Equal(failed), name)
		s.expectSameCheck(p, failed.StartError, name)
		// The next incarnation may succeed.
		s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 2, "exit", "0"))).To(Succeed(), name)
		s.awaitPhase(uid, facts.Exited)
	}
}

// expectSameCheck expects that CheckProgram reports the same failure as the start. The only exception is a missing interpreter, which only the kernel detects.
func (s *suite) expectSameCheck(p runtime.Process, failed *facts.StartError, name string) {
	inspection := s.Runtime.Capabilities().Inspection
	if inspection == nil || name == "no interpreter" {
		return
	}
	failure, known := inspection.CheckProgram(p)
	if !known && (s.Container || s.Unchecked) {
		return
	}
	s.Expect(known).To(BeTrue(), name)
	s.Expect(failure).To(Equal(failed), name)
	failure, _ = inspection.CheckProgram(s.process(p.UID, 2, "exit", "0"))
	s.Expect(failure).NotTo(HaveOccurred(), name)
}
