// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

var _ = row("R04", "the saved state and the state in memory are the same: a new manager reaches the same state", func(ctx context.Context) {
	steady, web, killed, halted, deleted, restarted := newInstance("steady"), newServer("web"), newInstance("killed"), newInstance("halted"), newInstance("deleted"), newServer("restarted")
	create(ctx, steady, web, killed, halted, deleted, restarted)
	before := map[string]int{}
	for _, i := range []*v1alpha1.Instance{steady, killed, halted, deleted} {
		before[i.Name] = waitForRunning(ctx, i, 1)
	}
	for _, s := range []*v1alpha1.DevServer{web, restarted} {
		before[s.Name] = waitForRunning(ctx, s, 1)
	}

	env.stopManager()
	for _, p := range suiteProcesses() {
		if p.PID == before["killed"] {
			killProcess(p.Process)
		}
	}
	Expect(patchFormatted(ctx, halted, stopPatch)).To(Succeed())
	Expect(k8s.Delete(ctx, deleted)).To(Succeed())
	Expect(patchFormatted(ctx, restarted, restartPatch, "while no manager was running")).To(Succeed())
	late := newInstance("late")
	create(ctx, late)
	env.start()

	waitForStopped(ctx, halted)
	waitForGone(ctx, deleted)
	Expect(waitForRunning(ctx, steady, 1)).To(Equal(before["steady"]), "the process is the same as before")
	Expect(waitForRunning(ctx, web, 1)).To(Equal(before["web"]), "the process is the same as before")
	Expect(waitForRunning(ctx, killed, 2)).NotTo(Equal(before["killed"]))
	Expect(mustGet(ctx, killed).Status.LastExit.Signal).To(Equal("SIGKILL"), "the exit is known although no manager was running")
	Expect(waitForRunning(ctx, restarted, 2)).NotTo(Equal(before["restarted"]))
	waitForRunning(ctx, late, 1)
	for name, starts := range map[string]int{"steady": 1, "web": 1, "killed": 2, "halted": 1, "deleted": 1, "restarted": 2, "late": 1} {
		Expect(notes("starts", name)).To(HaveLen(starts), "exactly the expected starts of %s", name)
	}
	expectProcesses(ctx)
})

var _ = row("R05", "no operation waits for the reconcile of another object, and no read waits for a reconcile", func(ctx context.Context) {
	held := newInstance("held")
	create(ctx, held)
	waitForRunning(ctx, held, 1)
	entered, release := make(chan struct{}, 1000), make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	DeferCleanup(let)
	env.faults.setHooks(func(w *faultInjector) {
		w.onObserve = func(uid types.UID) {
			if uid == held.UID {
				entered <- struct{}{}
				<-release
			}
		}
	})
	Expect(patchFormatted(ctx, held, restartPatch, "1")).To(Succeed())
	Eventually(ctx, entered).Should(Receive(), "a reconcile is held in Observe")

	const clients, rounds = 8, 3
	inParallel(clients, func(i int) error {
		for round := range rounds {
			name := fmt.Sprintf("other-%d-%d", i, round)
			if err := runLifecycle(ctx, newInstance(name)); err != nil {
				return fmt.Errorf("another object is blocked by a held reconcile: %s: %w", name, err)
			}
			// Reads are answered while the reconcile is held, including reads of the held object.
			if object, err := get(ctx, held); err != nil || object.Status.Incarnation != 1 {
				return fmt.Errorf("read the held object: %w", err)
			}
			var list v1alpha1.InstanceList
			if err := k8s.List(ctx, &list, client.InNamespace(env.namespace)); err != nil || len(list.Items) == 0 {
				return fmt.Errorf("list while an object is held: %w", err)
			}
		}
		return nil
	})
	Expect(mustGet(ctx, held).Status.Incarnation).To(Equal(int64(1)), "the object is still held")
	let()
	waitForRunning(ctx, held, 2)
	expectProcesses(ctx)
})

// runLifecycle takes an object through its life cycle: start, restart, stop, deletion.
func runLifecycle(ctx context.Context, i *v1alpha1.Instance) error {
	if err := k8s.Create(ctx, i); err != nil {
		return err
	}
	for _, step := range []struct {
		change string
		done   func(*v1alpha1.Instance) bool
	}{
		{"", func(o *v1alpha1.Instance) bool { return isRunning(o) }},
		{fmt.Sprintf(restartPatch, "again"), func(o *v1alpha1.Instance) bool { return isRunning(o) && o.Status.Incarnation == 2 }},
		{stopPatch, func(o *v1alpha1.Instance) bool { return isStopped(o) }},
	} {
		if step.change != "" {
			if err := patchObject(ctx, i, step.change); err != nil {
				return err
			}
		}
		if err := pollUntil(ctx, func() (bool, error) {
			o, err := get(ctx, i)
			return err == nil && isUpToDate(o) && step.done(o), err
		}); err != nil {
			return fmt.Errorf("after %q: %w", step.change, err)
		}
	}
	if err := retryRequest(ctx, func() error { return k8s.Delete(ctx, i) }); err != nil {
		return err
	}
	return pollUntil(ctx, func() (bool, error) {
		_, err := get(ctx, i)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

var _ = row("S02", "status belongs to a UID: a new object with an old name starts with an empty status", func(ctx context.Context) {
	const rounds = 8
	seen := map[types.UID]bool{}
	for round := range rounds {
		i := newInstance("phoenix", "-exit", strconv.Itoa(10+round))
		if round%2 == 1 {
			i = newInstance("phoenix")
		}
		i.Spec.RestartPolicy = v1alpha1.RestartNever
		create(ctx, i)
		Expect(seen).NotTo(HaveKey(i.UID))
		seen[i.UID] = true
		// No field of the new object comes from the previous object with this name.
		final := func(o *v1alpha1.Instance) bool {
			return isRunning(o) || isTrue(o, v1alpha1.ConditionStalled)
		}
		Eventually(ctx, func(g Gomega) bool {
			o, err := get(ctx, i)
			g.Expect(err).NotTo(HaveOccurred())
			if exit := o.Status.LastExit; exit != nil && (round%2 == 1 || exit.ExitCode == nil || *exit.ExitCode != int32(10+round)) {
				StopTrying(fmt.Sprintf("the status is that of the previous object with this name: %s", describe(o))).Now()
			}
			if o.Status.Incarnation > 1 || o.Status.RestartCount > 0 {
				StopTrying(fmt.Sprintf("the counters are those of the previous object with this name: %s", describe(o))).Now()
			}
			return final(o)
		}).Should(BeTrue())
		Eventually(ctx, func() []workloadNote { return notes("starts", "phoenix") }).Should(HaveLen(round + 1))
		Expect(k8s.Delete(ctx, i)).To(Succeed())
		waitForGone(ctx, i)
	}
})

var _ = row("S03", "many writers of one record: no write is lost", func(ctx context.Context) {
	// No other manager can use this state directory, so no other manager can write the state of the runtime.
	_, err := host.New(host.Options{StateDir: env.stateDirs[0], ShimPath: env.shim})
	Expect(err).To(MatchError(ContainSubstring("another berth manager uses the state directory")))

	i := newInstance("shared")
	create(ctx, i)
	waitForRunning(ctx, i, 1)
	const writers, each = 8, 8
	inParallel(writers, func(writer int) error {
		for n := range each {
			// Read, change and write the object as all clients do, while the manager writes its status.
			err := retryRequest(ctx, func() error {
				o, err := get(ctx, i)
				if err != nil {
					return err
				}
				if o.Annotations == nil {
					o.Annotations = map[string]string{}
				}
				count, _ := strconv.Atoi(o.Annotations["count"])
				o.Annotations["count"] = strconv.Itoa(count + 1)
				o.Spec.ResetToken = fmt.Sprintf("%d-%d", writer, n)
				return k8s.Update(ctx, o)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	final := waitFor(ctx, i, "has seen the last write", func(o *v1alpha1.Instance) bool { return o.Status.ObservedResetToken == o.Spec.ResetToken })
	Expect(final.Annotations).To(HaveKeyWithValue("count", strconv.Itoa(writers*each)), "no write is lost")
	Expect(notes("starts", "shared")).To(HaveLen(1))
	expectProcesses(ctx)
})

var _ = row("S07", "a reused PID is not mistaken for the process that had it", func(ctx context.Context) {
	stranger := exec.Command(filepath.Join(programs, "workload"), "-dir", env.dir, "-name", "stranger")
	Expect(stranger.Start()).To(Succeed())
	DeferCleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
	Eventually(ctx, func() []workloadNote { return notes("starts", "stranger") }).Should(HaveLen(1))

	i := newInstance("victim")
	create(ctx, i)
	pid := waitForRunning(ctx, i, 1)
	env.stopManager()
	// The shim and the process exit while no manager is running; then an unrelated process gets the PID.
	var identity shim.Identity
	file := filepath.Join(env.stateDir, "run", string(i.UID), shim.IdentityFile)
	known, err := statedir.ReadJSON(file, &identity)
	Expect(err).NotTo(HaveOccurred())
	Expect(known).To(BeTrue())
	Expect(identity.Child.PID).To(Equal(pid))
	killProcess(identity.Shim)
	killProcess(identity.Child)
	Eventually(ctx, func() []int { return workloadPIDs("victim") }).Should(BeEmpty())
	strange, err := procstat.Identify(stranger.Process.Pid)
	Expect(err).NotTo(HaveOccurred())
	identity.Child.PID = strange.PID
	if fault != nil && fault.pidOnly {
		identity.Child.Ticks = strange.Ticks
	}
	Expect(statedir.WriteJSON(file, &identity, true)).To(Succeed())
	env.start()

	waitFor(ctx, i, "is detected as exited and restarted", func(o *v1alpha1.Instance) bool { return o.Status.Incarnation == 2 })
	waitForRunning(ctx, i, 2)
	Expect(mustGet(ctx, i).Status.LastExit.Reason).To(Equal(v1alpha1.ReasonUnknown), "the exit was not observed, and its reason is unknown")
	Expect(k8s.Delete(ctx, i)).To(Succeed())
	waitForGone(ctx, i)
	Expect(signalsTo(stranger.Process.Pid)).To(BeZero())
	Expect(workloadPIDs("stranger")).To(ConsistOf(stranger.Process.Pid), "the unrelated process is still running")
	Expect(stranger.Process.Kill()).To(Succeed())
	Expect(stranger.Wait()).To(HaveOccurred())
})
