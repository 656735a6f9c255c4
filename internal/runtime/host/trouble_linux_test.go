// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// kernelReportsExits reports whether this kernel provides the exit code of processes that are not children (Linux 6.15 or later).
func kernelReportsExits(t *testing.T) bool {
	t.Helper()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := strings.Split(unix.ByteSliceToString(name.Release[:]), ".")
	major, _ := strconv.Atoi(release[0])
	minor, _ := strconv.Atoi(release[1])
	return major > 6 || (major == 6 && minor >= 15)
}

func TestKilledShim_LeavesProcessRunning(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		before := f.await("web", facts.Running)
		f.killShim("web")
		f.Consistently(func() facts.Phase { return f.observe("web").Phase }, "300ms", "20ms").Should(Equal(facts.Running))
		now := f.observe("web")
		f.Expect(now.PID).To(Equal(before.PID))
		f.Expect(now.Message).To(ContainSubstring("shim"))
		f.Expect(f.Start(f.ctx, f.process("web", 1, "sleep"))).To(Succeed())
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		f.Expect(f.observe("web").PID).To(Equal(before.PID), "no second process")

		f.Expect(f.Stop(f.ctx, "web", 1)).To(Succeed())
		ended := f.await("web", facts.Exited)
		f.Expect(ended.Exit.Known).To(Equal(kernelReportsExits(t)))
		if ended.Exit.Known {
			f.Expect(ended.Exit.Signal).To(Equal("SIGTERM"))
		}
		f.Expect(f.observe("web")).To(Equal(ended), "a second observation is the same")
	})
}

func TestKilledShim_NextManagerAdoptsProcess(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		dir := t.TempDir()
		f.start("web", "tree", dir)
		before := f.await("web", facts.Running)
		f.Eventually(func() []string { found, _ := filepath.Glob(dir + "/pid-*"); return found }).WithTimeout(conformance.Timeout).Should(HaveLen(3))
		members, err := f.processTree("web").Members()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(len(members)).To(BeNumerically(">=", 4))
		f.Expect(f.Close()).To(Succeed())
		f.killShim("web")
		f.open()
		now := f.observe("web")
		f.Expect(now.Phase).To(Equal(facts.Running))
		f.Expect(now.PID).To(Equal(before.PID))
		f.Expect(f.Kill(f.ctx, "web", 1)).To(Succeed())
		ended := f.await("web", facts.Exited)
		f.Expect(ended.Exit.Known).To(Equal(kernelReportsExits(t)), "its pidfd was opened while the process was alive")
		for _, p := range members { // an exiting process has lost the environment that identifies it, so it may still exist for a moment
			f.Eventually(func() bool { return isAlive(p) }).WithTimeout(conformance.Timeout).Should(BeFalse(), "process %d is left", p.PID)
		}
	})
}

// processTree returns the process tree of a UID.
func (f *fixture) processTree(uid types.UID) shim.Tree {
	f.Helper()
	process, err := f.running(uid)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(process).NotTo(BeNil())
	return process.tree
}

func TestObserve_ReportsExitWithoutManagerAndShim(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		child := f.identity("web").Child
		f.Expect(f.Close()).To(Succeed())
		f.killShim("web")
		conformance.Signal(f.WithT, child, unix.SIGKILL)
		f.Eventually(func() bool { return isAlive(child) }).WithTimeout(conformance.Timeout).Should(BeFalse())
		f.open()
		ended := f.await("web", facts.Exited)
		// The exit is known only if the parent has not reaped the process yet. Berth never invents an exit.
		if ended.Exit.Known {
			f.Expect(ended.Exit.Signal).To(Equal("SIGKILL"))
		} else {
			f.Expect(ended.Exit.Signal).To(BeEmpty())
			f.Expect(ended.Exit.Message).NotTo(BeEmpty())
		}
		f.Expect(f.Start(f.ctx, f.process("web", 2, "exit", "0"))).To(Succeed())
		f.await("web", facts.Exited)
	})
}

func TestKilledShim_TreeIsKilledAfterProgramExits(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		dir := t.TempDir()
		f.start("web", "tree", dir)
		f.await("web", facts.Running)
		f.Eventually(func() []string { found, _ := filepath.Glob(dir + "/pid-*"); return found }).WithTimeout(conformance.Timeout).Should(HaveLen(3))
		members, err := f.processTree("web").Members()
		f.Expect(err).NotTo(HaveOccurred())
		child := f.identity("web").Child
		f.killShim("web")
		conformance.Signal(f.WithT, child, unix.SIGINT)
		ended := f.await("web", facts.Exited)
		if ended.Exit.Known {
			f.Expect(ended.Exit.Signal).To(Equal("SIGINT"))
		}
		for _, p := range members {
			f.Expect(isAlive(p)).To(BeFalse(), "process %d is left", p.PID)
		}
	})
}

// If a new process has reused the PID of a dead process, the new process must not receive a signal.
func TestRecycledPID_IsNotSignaled(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		bystander := exec.Command(conformance.Workload(t), "sleep")
		f.Expect(bystander.Start()).To(Succeed())
		defer func() {
			_ = bystander.Process.Kill()
			_ = bystander.Wait()
		}()
		innocent, err := procstat.Identify(bystander.Process.Pid)
		f.Expect(err).NotTo(HaveOccurred())

		f.start("web", "sleep")
		f.await("web", facts.Running)
		identity := f.identity("web")
		f.Expect(f.Close()).To(Succeed())
		f.killShim("web")
		conformance.Signal(f.WithT, identity.Child, unix.SIGKILL)
		f.Eventually(func() bool { return isAlive(identity.Child) }).WithTimeout(conformance.Timeout).Should(BeFalse())
		identity.Child = procstat.Process{PID: innocent.PID, Ticks: innocent.Ticks - 1}
		identity.Shim = identity.Child
		f.Expect(statedir.WriteJSON(filepath.Join(f.dir("web"), shim.IdentityFile), identity, false)).To(Succeed())
		f.open()
		f.Expect(f.observe("web").Phase).To(Equal(facts.Exited))
		f.Expect(f.observe("web").Exit.Known).To(BeFalse())
		f.Expect(f.Stop(f.ctx, "web", 1)).To(Succeed())
		f.Expect(f.Kill(f.ctx, "web", 1)).To(Succeed())
		f.Consistently(func() bool { return isAlive(innocent) }, "200ms", "20ms").Should(BeTrue())
	})
}

// A shim that cannot be verified yields Unknown: no process receives a signal, and no second process starts.
func TestUnverifiableShim_IsUnknown(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		before := f.await("web", facts.Running)
		truth := f.identity("web")
		f.Expect(f.Close()).To(Succeed())
		forged := truth
		forged.Shim.Ticks++
		path := filepath.Join(f.dir("web"), shim.IdentityFile)
		f.Expect(statedir.WriteJSON(path, forged, false)).To(Succeed())
		f.open()
		now := f.observe("web")
		f.Expect(now.Phase).To(Equal(facts.Unknown))
		f.Expect(now.Message).To(ContainSubstring("cannot verify"))
		f.Expect(f.Kill(f.ctx, "web", 1)).NotTo(Succeed())
		f.Expect(f.Stop(f.ctx, "web", 1)).NotTo(Succeed())
		f.Expect(f.Forget(f.ctx, "web")).NotTo(Succeed())
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		f.Expect(isAlive(truth.Child)).To(BeTrue())

		f.Expect(statedir.WriteJSON(path, truth, false)).To(Succeed())
		f.Expect(f.await("web", facts.Running)).To(Equal(before), "once the shim can be verified, an event reports that it runs")

		// A shim that answers with another token yields Unknown too.
		f.Expect(f.Close()).To(Succeed())
		var record shim.Record
		_, err := statedir.ReadJSON(filepath.Join(f.dir("web"), shim.RecordFile), &record)
		f.Expect(err).NotTo(HaveOccurred())
		token := record.Token
		forged = truth
		record.Token, forged.Token = "forged", "forged"
		f.Expect(statedir.WriteJSON(filepath.Join(f.dir("web"), shim.RecordFile), record, false)).To(Succeed())
		f.Expect(statedir.WriteJSON(path, forged, false)).To(Succeed())
		f.open()
		f.Expect(f.observe("web").Phase).To(Equal(facts.Unknown))
		f.Expect(f.Kill(f.ctx, "web", 1)).NotTo(Succeed())
		record.Token = token
		f.Expect(statedir.WriteJSON(filepath.Join(f.dir("web"), shim.RecordFile), record, false)).To(Succeed())
		f.Expect(statedir.WriteJSON(path, truth, false)).To(Succeed())
		f.Expect(f.observe("web")).To(Equal(before))
	})
}

func TestObserve_ReportsExitedAfterReboot(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		truth := f.identity("web")
		f.killAndWait("web")
		f.Expect(f.Close()).To(Succeed()) // otherwise it could record the exit again while the files are changed
		path := filepath.Join(f.dir("web"), shim.RecordFile)
		var record shim.Record
		_, err := statedir.ReadJSON(path, &record)
		f.Expect(err).NotTo(HaveOccurred())
		record.BootID = "another"
		f.Expect(statedir.WriteJSON(path, record, false)).To(Succeed())
		f.Expect(os.Remove(filepath.Join(f.dir("web"), shim.EndFile))).To(Succeed())
		f.Expect(statedir.WriteJSON(filepath.Join(f.dir("web"), shim.IdentityFile), truth, false)).To(Succeed())
		f.open()
		ended := f.observe("web")
		f.Expect(ended.Phase).To(Equal(facts.Exited))
		f.Expect(ended.Exit.Known).To(BeFalse())
		f.Expect(ended.Exit.Message).To(ContainSubstring("restarted"))
		f.Expect(f.observe("web")).To(Equal(ended))
	})
}

// After a reboot, damaged records belong to processes that the reboot has ended, so they do not block their UIDs.
func TestObserve_IgnoresRecordsDamagedBeforeReboot(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		f.killAndWait("web")
		f.Expect(f.Close()).To(Succeed())
		for _, name := range []string{shim.RecordFile, shim.IdentityFile, shim.EndFile} {
			f.Expect(os.Truncate(filepath.Join(f.dir("web"), name), 0)).To(Succeed())
		}
		f.open()
		if f.cgroup == "" {
			f.Expect(f.observe("web").Phase).To(Equal(facts.Unknown), "the damage is from this boot, so the process may be alive")
		}
		f.Expect(f.Close()).To(Succeed())
		f.Expect(statedir.WriteJSON(filepath.Join(f.options.StateDir, bootName), lastBoot{BootID: "another"}, false)).To(Succeed())
		f.open()
		f.Expect(f.observe("web")).To(Equal(facts.Incarnation{}))
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(Succeed())
		f.await("web", facts.Running)
		f.reopen()
		f.Expect(f.observe("web")).To(And(HaveField("Number", int64(2)), HaveField("Phase", facts.Running)), "only the first manager of a boot removes records")
	})
}

// If the clock is set forward after the boot, the files of this boot look as if they were older than the boot. The process may be alive, so no other one is
// started.
func TestObserve_DoesNotTrustTheClockAfterBoot(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	f.start("web", "sleep")
	f.await("web", facts.Running)
	program := f.identity("web").Child
	t.Cleanup(func() { _ = procstat.Signal(program, unix.SIGKILL) }) // also if the test fails, because nothing else can find the program then
	f.Expect(f.Close()).To(Succeed())
	f.killShim("web")
	for _, name := range []string{shim.RecordFile, shim.IdentityFile} {
		path := filepath.Join(f.dir("web"), name)
		f.Expect(os.Truncate(path, 0)).To(Succeed())
		f.Expect(os.Chtimes(path, time.Unix(0, 0), time.Unix(0, 0))).To(Succeed())
	}
	f.open()
	f.Expect(isAlive(program)).To(BeTrue())
	f.Expect(f.observe("web").Phase).To(Equal(facts.Unknown))
	f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
	f.Expect(procstat.Signal(program, unix.SIGKILL)).To(Succeed())
	f.Eventually(func() bool { return isAlive(program) }).WithTimeout(conformance.Timeout).Should(BeFalse())
}

func (f *fixture) killAndWait(uid types.UID) {
	f.Helper()
	f.Expect(f.Kill(f.ctx, uid, f.observe(uid).Number)).To(Succeed())
	f.await(uid, facts.Exited)
}

// If a manager crashes between recording and starting a process, the next manager starts the process exactly once.
func TestStart_RunsRecordedProcessAfterManagerCrash(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.Expect(os.MkdirAll(f.dir("web"), 0o700)).To(Succeed())
		record := f.record(f.process("web", 3, "sleep"))
		f.Expect(statedir.WriteJSON(filepath.Join(f.dir("web"), shim.RecordFile), record, false)).To(Succeed())
		f.reopen()
		f.Expect(f.Observe(f.ctx, "web")).To(BeEmpty())
		f.Expect(f.Start(f.ctx, f.process("web", 2, "sleep"))).To(MatchError(runtime.ErrStale))
		f.Expect(f.Start(f.ctx, f.process("web", 3, "sleep"))).To(Succeed())
		f.await("web", facts.Running)
	})
}

func TestStart_ReportsShimThatCannotRun(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	path, err := exec.LookPath("false") // need: a program of the base system
	f.Expect(err).NotTo(HaveOccurred())
	f.Host.options.ShimPath = path
	f.start("web", "sleep")
	failed := f.await("web", facts.Failed)
	f.Expect(failed.StartError.Reason).To(Equal(shim.ReasonStartFailed))

	f.Host.options.ShimPath = "/no/such/shim"
	f.Expect(f.Start(f.ctx, f.process("db", 1, "sleep"))).To(MatchError(ContainSubstring("start berth-shim: execute /no/such/shim: no such file or directory")))
	f.Expect(f.Observe(f.ctx, "db")).To(BeEmpty())
	f.Host.options.ShimPath = shimPath
	f.Expect(f.Start(f.ctx, f.process("db", 1, "exit", "0"))).To(Succeed())
	f.await("db", facts.Exited)
}

// A shim that is stopped (SIGSTOP) blocks neither the adoption nor the kill.
func TestStoppedShim_BlocksNeitherAdoptionNorKill(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		conformance.Signal(f.WithT, f.identity("web").Shim, unix.SIGSTOP)
		f.reopen()
		f.Expect(f.observe("web").Phase).To(Equal(facts.Running))
		f.Expect(f.Kill(f.ctx, "web", 1)).To(Succeed())
		f.Expect(f.await("web", facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
	})
}

func TestOrphan_WithoutRecordIsFoundAndKilled(t *testing.T) {
	f := newFixture(t, availableTiers(t)[0])
	if f.Containment() != shim.Cgroup {
		return // without cgroups a process cannot be found without its record
	}
	f.start("web", "ignore")
	f.await("web", facts.Running)
	child := f.identity("web").Child
	f.Expect(f.Close()).To(Succeed())
	f.killShim("web")
	f.Expect(os.RemoveAll(f.dir("web"))).To(Succeed())
	f.Expect(os.MkdirAll(filepath.Join(f.cgroup, "empty", "run"), 0o755)).To(Succeed())
	f.open()
	f.Expect(filepath.Join(f.cgroup, "empty")).NotTo(BeADirectory(), "empty cgroups are removed")
	all, err := f.List(f.ctx)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(all).To(HaveLen(1))
	f.Expect(all[0].Phase).To(Equal(facts.Running))
	f.Expect(all[0].Number).To(BeZero())
	f.Expect(f.Start(f.ctx, f.process("web", 1, "sleep"))).To(MatchError(runtime.ErrOldAlive))
	f.Expect(f.Forget(f.ctx, "web")).NotTo(Succeed())
	f.Expect(f.Kill(f.ctx, "web", 0)).To(Succeed())
	f.Eventually(func() bool { return isAlive(child) }).WithTimeout(conformance.Timeout).Should(BeFalse())
	f.Eventually(func() error { return f.Forget(f.ctx, "web") }).WithTimeout(conformance.Timeout).Should(Succeed())
}

func TestNew_AllowsOneManagerPerStateDirectory(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	_, err := New(f.options)
	f.Expect(err).To(MatchError(ContainSubstring(f.options.StateDir)))
	f.Expect(f.Close()).To(Succeed())
	_, err = f.Observe(f.ctx, "web")
	f.Expect(err).To(HaveOccurred(), "the Host is closed")
	f.open()

	_, err = New(Options{StateDir: t.TempDir(), ShimPath: "/no/such/shim"})
	f.Expect(errors.Is(err, os.ErrNotExist)).To(BeTrue())
	_, err = New(Options{StateDir: t.TempDir(), ShimPath: shimPath, Containment: "Chains"})
	f.Expect(err).To(MatchError(ContainSubstring("Chains")))
	_, err = New(Options{StateDir: t.TempDir(), ShimPath: shimPath, CgroupRoot: t.TempDir()})
	f.Expect(err).To(MatchError(ContainSubstring("cgroup")))
	_, err = f.Observe(f.ctx, "../../etc")
	f.Expect(err).To(HaveOccurred())
}

// The environment never reaches the disk, however the program ends.
func TestStart_KeepsSecretsOffDisk(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		for uid, mode := range map[types.UID]string{"web": "sleep", "none": "exit"} {
			p := f.process(uid, 1, mode, "0")
			p.Env = []string{"TOKEN=hunter2"}
			f.Expect(f.Start(f.ctx, p)).To(Succeed())
		}
		f.await("web", facts.Running)
		f.await("none", facts.Exited)
		f.Expect(filepath.Walk(f.options.StateDir, func(path string, info os.FileInfo, err error) error {
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(info.Mode().Perm()&0o077).To(BeZero(), path)
			if info.Mode().IsRegular() {
				data, err := os.ReadFile(path)
				f.Expect(err).NotTo(HaveOccurred())
				f.Expect(string(data)).NotTo(ContainSubstring("hunter2"), path)
			}
			return nil
		})).To(Succeed())
		shimOf := f.identity("web").Shim.PID
		for _, name := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(shimOf), name))
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(string(data)).NotTo(ContainSubstring("hunter2"))
		}
	})
}

// TestShim_AnswersProtocolRequests tests the protocol against a real shim, except the negotiation of versions, which the tests of package shim cover.
func TestShim_AnswersProtocolRequests(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		client, err := f.dial("web", f.identity("web").Token)
		f.Expect(err).NotTo(HaveOccurred())
		identity, record, err := client.Records()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(identity.Child).To(Equal(f.identity("web").Child))
		f.Expect(record.UID).To(Equal("web"))
		f.Expect(client.Attach(80, 24)).To(MatchError(shim.ErrNoTerminal))
		f.Expect(client.Conn.Close()).To(Succeed())
		_, err = f.dial("web", "another token")
		f.Expect(err).To(MatchError(shim.ErrImpostor))

		f.killAndWait("web")
		_, err = f.dial("web", "x")
		f.Expect(err).To(HaveOccurred())
	})
}

// A start and an adoption are fast. The bounds are generous, so that they catch mistakes and not noise.
func TestStartAndAdoption_AreFast(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		const count = 30
		var spent time.Duration
		for i := range count {
			began := time.Now()
			f.start(types.UID("cheap-"+strconv.Itoa(i)), "sleep")
			spent += time.Since(began)
		}
		for i := range count {
			f.await(types.UID("cheap-"+strconv.Itoa(i)), facts.Running)
		}
		began := time.Now()
		f.reopen()
		adopted := time.Since(began)
		t.Logf("start %v each, adoption of %d in %v", spent/count, count, adopted)
		f.Expect(spent / count).To(BeNumerically("<", 100*time.Millisecond))
		f.Expect(adopted).To(BeNumerically("<", 5*time.Second))
		for i := range count {
			f.Expect(f.observe(types.UID("cheap-" + strconv.Itoa(i))).Phase).To(Equal(facts.Running))
		}
	})
}

func TestKill_WorksOnFullFileSystem(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("web", "sleep")
		f.await("web", facts.Running)
		f.writeRequest = func(path string, _ any, _ bool) error {
			return &os.PathError{Op: "write", Path: path, Err: unix.ENOSPC}
		}
		f.Expect(f.Stop(f.ctx, "web", 1)).To(MatchError(ContainSubstring("if it has no inodes left (df -i): record the request")))
		f.Expect(f.observe("web").Phase).To(Equal(facts.Running))
		f.Expect(f.Kill(f.ctx, "web", 1)).To(Succeed())
		f.Expect(f.await("web", facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
	})
}

func TestHint_NamesTheFullFileSystem(t *testing.T) {
	g := NewWithT(t)
	h := &Host{options: Options{StateDir: "/state"}}
	err := h.hint(&os.PathError{Op: "write", Path: "/state/run/x/.tmp-1", Err: unix.ENOSPC})
	g.Expect(err).To(MatchError("the file system of the state directory /state is full; free some space there, or delete files if it has no inodes left (df -i): write /state/run/x/.tmp-1: no space left on device"))
	g.Expect(err).To(MatchError(unix.ENOSPC))
	g.Expect(h.hint(unix.EACCES)).To(MatchError(unix.EACCES))
	g.Expect(h.hint(nil)).To(Succeed())
}
