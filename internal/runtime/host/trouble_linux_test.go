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
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// exitsKnown reports whether this kernel provides the exit code of processes that are not children (Linux 6.15 or later).
func exitsKnown(t *testing.T) bool {
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

func signal(b *bench, p shim.Process, number syscall.Signal) {
	b.Helper()
	fd, err := shim.Open(p)
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	b.Expect(unix.PidfdSendSignal(fd, number, nil, 0)).To(Succeed())
}

func TestKilledShimLeavesTheWorkloadAlone(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		before := b.await("web", facts.Running)
		b.killShim("web")
		b.Consistently(func() facts.Phase { return b.observe("web").Phase }, "300ms", "20ms").Should(Equal(facts.Running))
		now := b.observe("web")
		b.Expect(now.PID).To(Equal(before.PID))
		b.Expect(now.Message).To(ContainSubstring("shim"))
		b.Expect(b.Start(b.ctx, b.process("web", 1, "sleep"))).To(Succeed())
		b.Expect(b.Start(b.ctx, b.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		b.Expect(b.observe("web").PID).To(Equal(before.PID), "no second process")

		b.Expect(b.Stop(b.ctx, "web", 1)).To(Succeed())
		ended := b.await("web", facts.Exited)
		b.Expect(ended.Exit.Known).To(Equal(exitsKnown(t)))
		if ended.Exit.Known {
			b.Expect(ended.Exit.Signal).To(Equal("SIGTERM"))
		}
		b.Expect(b.observe("web")).To(Equal(ended), "a second observation is the same")
	})
}

func TestKilledShimAndLostManager(t *testing.T) {
	forTiers(t, func(b *bench) {
		dir := t.TempDir()
		b.start("web", "tree", dir)
		before := b.await("web", facts.Running)
		b.Eventually(func() []string { found, _ := filepath.Glob(dir + "/pid-*"); return found }).WithTimeout(conformance.Timeout).Should(HaveLen(3))
		members, err := b.trees("web").Members()
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(len(members)).To(BeNumerically(">=", 4))
		b.Expect(b.Close()).To(Succeed())
		b.killShim("web")
		b.open()
		now := b.observe("web")
		b.Expect(now.Phase).To(Equal(facts.Running))
		b.Expect(now.PID).To(Equal(before.PID))
		b.Expect(b.Kill(b.ctx, "web", 1)).To(Succeed())
		ended := b.await("web", facts.Exited)
		b.Expect(ended.Exit.Known).To(Equal(exitsKnown(t)), "its pidfd was opened while the process was alive")
		for _, p := range members { // an exiting process has lost the environment that identifies it, so it may still exist for a moment
			b.Eventually(func() bool { return lives(p) }).WithTimeout(conformance.Timeout).Should(BeFalse(), "process %d is left", p.PID)
		}
	})
}

// trees returns the process tree of a UID.
func (b *bench) trees(uid types.UID) shim.Tree {
	b.Helper()
	f, err := b.running(uid)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(f).NotTo(BeNil())
	return f.tree
}

func TestEverythingKilledWhileNobodyLooked(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		child := b.identity("web").Child
		b.Expect(b.Close()).To(Succeed())
		b.killShim("web")
		signal(b, child, unix.SIGKILL)
		b.Eventually(func() bool { return lives(child) }).WithTimeout(conformance.Timeout).Should(BeFalse())
		b.open()
		ended := b.await("web", facts.Exited)
		// The exit is known only if the parent has not reaped the process yet. Berth never invents an exit.
		if ended.Exit.Known {
			b.Expect(ended.Exit.Signal).To(Equal("SIGKILL"))
		} else {
			b.Expect(ended.Exit.Signal).To(BeEmpty())
			b.Expect(ended.Exit.Message).NotTo(BeEmpty())
		}
		b.Expect(b.Start(b.ctx, b.process("web", 2, "exit", "0"))).To(Succeed())
		b.await("web", facts.Exited)
	})
}

func TestKilledShimOfATreeWhoseProgramEnds(t *testing.T) {
	forTiers(t, func(b *bench) {
		dir := t.TempDir()
		b.start("web", "tree", dir)
		b.await("web", facts.Running)
		b.Eventually(func() []string { found, _ := filepath.Glob(dir + "/pid-*"); return found }).WithTimeout(conformance.Timeout).Should(HaveLen(3))
		members, err := b.trees("web").Members()
		b.Expect(err).NotTo(HaveOccurred())
		child := b.identity("web").Child
		b.killShim("web")
		signal(b, child, unix.SIGINT)
		ended := b.await("web", facts.Exited)
		if ended.Exit.Known {
			b.Expect(ended.Exit.Signal).To(Equal("SIGINT"))
		}
		for _, p := range members {
			b.Expect(lives(p)).To(BeFalse(), "process %d is left", p.PID)
		}
	})
}

// When another process has reused the PID of a dead one, that process must not receive a signal.
func TestRecycledPIDsAreNotTouched(t *testing.T) {
	forTiers(t, func(b *bench) {
		bystander := exec.Command(conformance.Workload(t), "sleep")
		b.Expect(bystander.Start()).To(Succeed())
		defer func() {
			_ = bystander.Process.Kill()
			_ = bystander.Wait()
		}()
		innocent, err := shim.Identify(bystander.Process.Pid)
		b.Expect(err).NotTo(HaveOccurred())

		b.start("web", "sleep")
		b.await("web", facts.Running)
		identity := b.identity("web")
		b.Expect(b.Close()).To(Succeed())
		b.killShim("web")
		signal(b, identity.Child, unix.SIGKILL)
		b.Eventually(func() bool { return lives(identity.Child) }).WithTimeout(conformance.Timeout).Should(BeFalse())
		identity.Child = shim.Process{PID: innocent.PID, Ticks: innocent.Ticks - 1}
		identity.Shim = identity.Child
		b.Expect(shim.WriteFile(filepath.Join(b.dir("web"), shim.IdentityFile), identity, false)).To(Succeed())
		b.open()
		b.Expect(b.observe("web").Phase).To(Equal(facts.Exited))
		b.Expect(b.observe("web").Exit.Known).To(BeFalse())
		b.Expect(b.Stop(b.ctx, "web", 1)).To(Succeed())
		b.Expect(b.Kill(b.ctx, "web", 1)).To(Succeed())
		b.Consistently(func() bool { return lives(innocent) }, "200ms", "20ms").Should(BeTrue())
	})
}

// A shim that cannot be verified yields Unknown: no process receives a signal, and no second process starts.
func TestUnverifiableIsUnknown(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		before := b.await("web", facts.Running)
		truth := b.identity("web")
		b.Expect(b.Close()).To(Succeed())
		forged := truth
		forged.Shim.Ticks++
		path := filepath.Join(b.dir("web"), shim.IdentityFile)
		b.Expect(shim.WriteFile(path, forged, false)).To(Succeed())
		b.open()
		now := b.observe("web")
		b.Expect(now.Phase).To(Equal(facts.Unknown))
		b.Expect(now.Message).To(ContainSubstring("cannot verify"))
		b.Expect(b.Kill(b.ctx, "web", 1)).NotTo(Succeed())
		b.Expect(b.Stop(b.ctx, "web", 1)).NotTo(Succeed())
		b.Expect(b.Forget(b.ctx, "web")).NotTo(Succeed())
		b.Expect(b.Start(b.ctx, b.process("web", 2, "sleep"))).To(MatchError(runtime.ErrOldAlive))
		b.Expect(lives(truth.Child)).To(BeTrue())

		b.Expect(shim.WriteFile(path, truth, false)).To(Succeed())
		b.Expect(b.await("web", facts.Running)).To(Equal(before), "once the shim can be verified, an event reports that it runs")

		// A shim that answers with another token yields Unknown too.
		b.Expect(b.Close()).To(Succeed())
		var record shim.Record
		_, err := shim.ReadFile(filepath.Join(b.dir("web"), shim.RecordFile), &record)
		b.Expect(err).NotTo(HaveOccurred())
		token := record.Token
		forged = truth
		record.Token, forged.Token = "forged", "forged"
		b.Expect(shim.WriteFile(filepath.Join(b.dir("web"), shim.RecordFile), record, false)).To(Succeed())
		b.Expect(shim.WriteFile(path, forged, false)).To(Succeed())
		b.open()
		b.Expect(b.observe("web").Phase).To(Equal(facts.Unknown))
		b.Expect(b.Kill(b.ctx, "web", 1)).NotTo(Succeed())
		record.Token = token
		b.Expect(shim.WriteFile(filepath.Join(b.dir("web"), shim.RecordFile), record, false)).To(Succeed())
		b.Expect(shim.WriteFile(path, truth, false)).To(Succeed())
		b.Expect(b.observe("web")).To(Equal(before))
	})
}

func TestAfterARebootNothingLives(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		truth := b.identity("web")
		b.end("web")
		path := filepath.Join(b.dir("web"), shim.RecordFile)
		var record shim.Record
		_, err := shim.ReadFile(path, &record)
		b.Expect(err).NotTo(HaveOccurred())
		record.BootID = "another"
		b.Expect(shim.WriteFile(path, record, false)).To(Succeed())
		b.Expect(os.Remove(filepath.Join(b.dir("web"), shim.EndFile))).To(Succeed())
		b.Expect(shim.WriteFile(filepath.Join(b.dir("web"), shim.IdentityFile), truth, false)).To(Succeed())
		b.reopen()
		ended := b.observe("web")
		b.Expect(ended.Phase).To(Equal(facts.Exited))
		b.Expect(ended.Exit.Known).To(BeFalse())
		b.Expect(ended.Exit.Message).To(ContainSubstring("restarted"))
		b.Expect(b.observe("web")).To(Equal(ended))
	})
}

func (b *bench) end(uid types.UID) {
	b.Helper()
	b.Expect(b.Kill(b.ctx, uid, b.observe(uid).Number)).To(Succeed())
	b.await(uid, facts.Exited)
}

// If a manager crashes between recording and starting a process, the next manager starts the process exactly once.
func TestRecordedButNeverStarted(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.Expect(os.MkdirAll(b.dir("web"), 0o700)).To(Succeed())
		record := b.record(b.process("web", 3, "sleep"))
		b.Expect(shim.WriteFile(filepath.Join(b.dir("web"), shim.RecordFile), record, false)).To(Succeed())
		b.reopen()
		b.Expect(b.Observe(b.ctx, "web")).To(BeEmpty())
		b.Expect(b.Start(b.ctx, b.process("web", 2, "sleep"))).To(MatchError(runtime.ErrStale))
		b.Expect(b.Start(b.ctx, b.process("web", 3, "sleep"))).To(Succeed())
		b.await("web", facts.Running)
	})
}

func TestAShimThatCannotStart(t *testing.T) {
	b := newBench(t, shim.Subreaper)
	path, err := exec.LookPath("false")
	b.Expect(err).NotTo(HaveOccurred())
	b.Host.options.ShimPath = path
	b.start("web", "sleep")
	failed := b.await("web", facts.Failed)
	b.Expect(failed.StartError.Reason).To(Equal(shim.ReasonStartFailed))

	b.Host.options.ShimPath = "/no/such/shim"
	b.Expect(b.Start(b.ctx, b.process("db", 1, "sleep"))).NotTo(Succeed())
	b.Expect(b.Observe(b.ctx, "db")).To(BeEmpty())
	b.Host.options.ShimPath = shimPath
	b.Expect(b.Start(b.ctx, b.process("db", 1, "exit", "0"))).To(Succeed())
	b.await("db", facts.Exited)
}

// A shim that is stopped (SIGSTOP) blocks neither the adoption nor the kill.
func TestStoppedShim(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		signal(b, b.identity("web").Shim, unix.SIGSTOP)
		b.reopen()
		b.Expect(b.observe("web").Phase).To(Equal(facts.Running))
		b.Expect(b.Kill(b.ctx, "web", 1)).To(Succeed())
		b.Expect(b.await("web", facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
	})
}

func TestLeftoversWithoutARecord(t *testing.T) {
	b := newBench(t, tiers(t)[0])
	if b.Containment() != shim.Cgroup {
		return // without cgroups a process cannot be found without its record
	}
	b.start("web", "ignore")
	b.await("web", facts.Running)
	child := b.identity("web").Child
	b.Expect(b.Close()).To(Succeed())
	b.killShim("web")
	b.Expect(os.RemoveAll(b.dir("web"))).To(Succeed())
	b.Expect(os.MkdirAll(filepath.Join(b.cgroup, "empty", "run"), 0o755)).To(Succeed())
	b.open()
	b.Expect(filepath.Join(b.cgroup, "empty")).NotTo(BeADirectory(), "empty cgroups are removed")
	all, err := b.List(b.ctx)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(all).To(HaveLen(1))
	b.Expect(all[0].Phase).To(Equal(facts.Running))
	b.Expect(all[0].Number).To(BeZero())
	b.Expect(b.Start(b.ctx, b.process("web", 1, "sleep"))).To(MatchError(runtime.ErrOldAlive))
	b.Expect(b.Forget(b.ctx, "web")).NotTo(Succeed())
	b.Expect(b.Kill(b.ctx, "web", 0)).To(Succeed())
	b.Eventually(func() bool { return lives(child) }).WithTimeout(conformance.Timeout).Should(BeFalse())
	b.Eventually(func() error { return b.Forget(b.ctx, "web") }).WithTimeout(conformance.Timeout).Should(Succeed())
}

func TestOneManagerPerStateDirectory(t *testing.T) {
	b := newBench(t, shim.Subreaper)
	_, err := New(b.options)
	b.Expect(err).To(MatchError(ContainSubstring(b.options.StateDir)))
	b.Expect(b.Close()).To(Succeed())
	_, err = b.Observe(b.ctx, "web")
	b.Expect(err).To(HaveOccurred(), "closed")
	b.open()

	_, err = New(Options{StateDir: t.TempDir(), ShimPath: "/no/such/shim"})
	b.Expect(errors.Is(err, os.ErrNotExist)).To(BeTrue())
	_, err = New(Options{StateDir: t.TempDir(), ShimPath: shimPath, Containment: "Chains"})
	b.Expect(err).To(MatchError(ContainSubstring("Chains")))
	_, err = New(Options{StateDir: t.TempDir(), ShimPath: shimPath, CgroupRoot: t.TempDir()})
	b.Expect(err).To(MatchError(ContainSubstring("cgroup")))
	_, err = b.Observe(b.ctx, "../../etc")
	b.Expect(err).To(HaveOccurred())
}

// The environment never reaches the disk, however the program ends.
func TestSecretsStayOffTheDisk(t *testing.T) {
	forTiers(t, func(b *bench) {
		for uid, mode := range map[types.UID]string{"web": "sleep", "none": "exit"} {
			p := b.process(uid, 1, mode, "0")
			p.Env = []string{"TOKEN=hunter2"}
			b.Expect(b.Start(b.ctx, p)).To(Succeed())
		}
		b.await("web", facts.Running)
		b.await("none", facts.Exited)
		b.Expect(filepath.Walk(b.options.StateDir, func(path string, info os.FileInfo, err error) error {
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(info.Mode().Perm()&0o077).To(BeZero(), path)
			if info.Mode().IsRegular() {
				data, err := os.ReadFile(path)
				b.Expect(err).NotTo(HaveOccurred())
				b.Expect(string(data)).NotTo(ContainSubstring("hunter2"), path)
			}
			return nil
		})).To(Succeed())
		shimOf := b.identity("web").Shim.PID
		for _, name := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(shimOf), name))
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(string(data)).NotTo(ContainSubstring("hunter2"))
		}
	})
}

// TestShimAnswers tests the protocol against a real shim, except the negotiation of versions, which the tests of package shim cover.
func TestShimAnswers(t *testing.T) {
	forTiers(t, func(b *bench) {
		for uid, test := range map[types.UID]struct {
			ask    func(*shim.Client) error
			signal string
		}{
			"kind":  {func(c *shim.Client) error { return c.Signal("SIGTERM") }, "SIGTERM"},
			"rough": {func(c *shim.Client) error { return c.Shutdown() }, "SIGKILL"},
		} {
			b.start(uid, "sleep")
			b.await(uid, facts.Running)
			client, err := b.dial(uid, b.identity(uid).Token)
			b.Expect(err).NotTo(HaveOccurred())
			status, err := client.Status()
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(status.Child).To(Equal(b.identity(uid).Child))
			b.Expect(client.Attach(80, 24)).To(MatchError(shim.ErrNoTerminal))
			b.Expect(client.Signal("SIGNOTHING")).To(MatchError(ContainSubstring("SIGNOTHING")))
			b.Expect(test.ask(client)).To(Succeed())
			b.Expect(client.Conn.Close()).To(Succeed())
			b.Expect(b.await(uid, facts.Exited).Exit.Signal).To(Equal(test.signal))

			_, err = b.dial(uid, "x")
			b.Expect(err).To(HaveOccurred())
		}
		b.start("web", "sleep")
		b.await("web", facts.Running)
		_, err := b.dial("web", "another token")
		b.Expect(err).To(MatchError(shim.ErrImpostor))
	})
}

// A start and an adoption are fast. The bounds are generous, so that they catch mistakes and not noise.
func TestCost(t *testing.T) {
	forTiers(t, func(b *bench) {
		const count = 30
		var spent time.Duration
		for i := range count {
			began := time.Now()
			b.start(types.UID("cheap-"+strconv.Itoa(i)), "sleep")
			spent += time.Since(began)
		}
		for i := range count {
			b.await(types.UID("cheap-"+strconv.Itoa(i)), facts.Running)
		}
		began := time.Now()
		b.reopen()
		adopted := time.Since(began)
		t.Logf("start %v each, adoption of %d in %v", spent/count, count, adopted)
		b.Expect(spent / count).To(BeNumerically("<", 100*time.Millisecond))
		b.Expect(adopted).To(BeNumerically("<", 5*time.Second))
		for i := range count {
			b.Expect(b.observe(types.UID("cheap-" + strconv.Itoa(i))).Phase).To(Equal(facts.Running))
		}
	})
}

func TestKill_WorksWhereNoRequestCanBeWritten(t *testing.T) {
	forTiers(t, func(b *bench) {
		b.start("web", "sleep")
		b.await("web", facts.Running)
		b.writeRequest = func(path string, _ any, _ bool) error {
			return &os.PathError{Op: "write", Path: path, Err: unix.ENOSPC}
		}
		b.Expect(b.Stop(b.ctx, "web", 1)).To(MatchError(ContainSubstring("is full; free some space there: record the request")))
		b.Expect(b.observe("web").Phase).To(Equal(facts.Running))
		b.Expect(b.Kill(b.ctx, "web", 1)).To(Succeed())
		b.Expect(b.await("web", facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
	})
}

func TestHint_NamesTheFullFileSystem(t *testing.T) {
	g := NewWithT(t)
	h := &Host{options: Options{StateDir: "/state"}}
	err := h.hint(&os.PathError{Op: "write", Path: "/state/run/x/.tmp-1", Err: unix.ENOSPC})
	g.Expect(err).To(MatchError("the file system of the state directory /state is full; free some space there: write /state/run/x/.tmp-1: no space left on device"))
	g.Expect(err).To(MatchError(unix.ENOSPC))
	g.Expect(h.hint(unix.EACCES)).To(MatchError(unix.EACCES))
	g.Expect(h.hint(nil)).To(Succeed())
}
