// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

var _ = row("S05", "clean-up decides on a fresh read: a stopped object is deleted, and one whose state is Running again stays", func(ctx context.Context) {
	tmux := env.withTmux()
	done, dead := tmux.newInstance("done", "-exit", "0"), tmux.newInstance("dead", "-exit", "3")
	done.Spec.RestartPolicy, dead.Spec.RestartPolicy = v1alpha1.RestartNever, v1alpha1.RestartNever
	create(ctx, done, dead)
	waitForGone(ctx, done, "exited: ")
	waitForGone(ctx, dead, "failed: ")
	Eventually(ctx, func(g Gomega) { g.Expect(tmux.sessions(ctx, g)).To(BeEmpty()) }).Should(Succeed(), "no session is left")

	for round := range 4 {
		again := tmux.newInstance(fmt.Sprintf("again-%d", round))
		create(ctx, again)
		waitForRunning(ctx, again, 1)
		Expect(patchFormatted(ctx, again, stopPatch)).To(Succeed())
		// The reconcile that would delete the object calls Observe twice. Set the state to Running at the first call, or in every second round at the
		// second call, which directly precedes the deletion.
		due, looks := time.Time{}, 0
		var asked atomic.Bool
		tmux.setOnObserve(func(uid types.UID) {
			if uid != again.UID || asked.Load() {
				return
			}
			if due.IsZero() {
				due = expiry(ctx, again)
			}
			if due.IsZero() || time.Now().Before(due) {
				return
			}
			if looks++; looks == 1+round%2 {
				asked.Store(patchFormatted(ctx, again, runPatch) == nil)
			}
		})
		Eventually(ctx, asked.Load).Should(BeTrue(), "the object is observed after its TTL has expired")
		Eventually(ctx, func() string {
			now, err := get(ctx, again)
			switch {
			case apierrors.IsNotFound(err), err == nil && !now.DeletionTimestamp.IsZero():
				return "deleted although its state is Running again"
			case err == nil && isRunning(now) && now.Status.Incarnation == 2:
				return "runs"
			}
			return "pending"
		}).Should(Equal("runs"), again.Name)
		tmux.setOnObserve(nil)
	}
	expectProcesses(ctx)
})

// expiry returns the earliest time at which a stopped object may be deleted, or the zero time if the object is not stopped.
func expiry(ctx context.Context, object *v1alpha1.Instance) time.Time {
	now, err := get(ctx, object)
	if err != nil || now.Status.LastExit == nil || now.Status.LastExit.FinishTime == nil {
		return time.Time{}
	}
	ready := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Reason != v1alpha1.ReasonStopped || !isTrue(now, v1alpha1.ConditionReady) {
		return time.Time{}
	}
	since := ready.LastTransitionTime.Time
	if at := now.Status.LastExit.FinishTime.Time; at.After(since) {
		since = at
	}
	return since.Add(time.Second)
}

var _ = row("R06", "create, update, delete, activity, status and clean-up interleave as if executed one after another", func(ctx context.Context) {
	tmux := env.withTmux()
	names := []string{"a", "b", "c", "d"}
	const workers, rounds = 6, 10
	var all sync.WaitGroup
	failed := make(chan error, workers*rounds)
	for worker := range workers {
		random := rand.New(rand.NewPCG(uint64(worker), 6))
		all.Go(func() {
			for range rounds {
				if err := tmux.operate(ctx, names[random.IntN(len(names))], random.IntN(6)); err != nil {
					failed <- err
				}
				pauseFor(ctx, time.Duration(random.IntN(150))*time.Millisecond)
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		Expect(err).NotTo(HaveOccurred())
	}

	// The final requests: two Instances run, two are deleted.
	for _, name := range names[:2] {
		Eventually(ctx, func() error { return tmux.ensureRunning(ctx, name) }).Should(Succeed())
	}
	for _, name := range names[2:] {
		// Activity is recorded shortly before the Instance is deleted.
		Eventually(ctx, func() error { return tmux.ensureRunning(ctx, name) }).Should(Succeed())
		last := &v1alpha1.Instance{}
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: env.namespace, Name: name}, last)).To(Succeed())
		Expect(last.Status.LastActivityTime).NotTo(BeNil())
		Expect(ignoreGone(tmux.Type(ctx, last.UID, runtime.Keystrokes{Text: "x"}))).To(Succeed())
		Expect(k8s.Delete(ctx, last)).To(Succeed())
		waitForGone(ctx, last)
	}
	Consistently(ctx, func(g Gomega) {
		var list v1alpha1.InstanceList
		g.Expect(k8s.List(ctx, &list, client.InNamespace(env.namespace))).To(Succeed())
		for i := range list.Items {
			g.Expect(names[:2]).To(ContainElement(list.Items[i].Name), "a deleted Instance was recreated")
		}
	}).Should(Succeed())
	expectProcesses(ctx)
	Eventually(ctx, func(g Gomega) { g.Expect(tmux.sessions(ctx, g)).To(ConsistOf(names[:2])) }).Should(Succeed(), "the sessions are those of the objects")
})

// ensureRunning creates an Instance or sets an existing Instance to Running, and returns an error until the Instance runs.
func (p *observedTmux) ensureRunning(ctx context.Context, name string) error {
	i := p.newInstance(name)
	if err := k8s.Create(ctx, i); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	if err := patchObject(ctx, i, runPatch); err != nil {
		return err
	}
	now, err := get(ctx, i)
	switch {
	case err != nil:
		return err
	case !now.DeletionTimestamp.IsZero() || !isUpToDate(now) || !isRunning(now) || now.Status.Process == nil:
		return fmt.Errorf("%s is not running yet", name)
	}
	return nil
}

// operate performs one of the operations that users and programs perform on an Instance. The Instance may be missing.
func (p *observedTmux) operate(ctx context.Context, name string, what int) error {
	i := p.newInstance(name)
	key := client.ObjectKeyFromObject(i)
	switch what {
	case 0:
		return client.IgnoreAlreadyExists(k8s.Create(ctx, i))
	case 1:
		return client.IgnoreNotFound(patchObject(ctx, i, stopPatch))
	case 2:
		return client.IgnoreNotFound(patchObject(ctx, i, runPatch))
	case 3:
		return client.IgnoreNotFound(k8s.Delete(ctx, i))
	case 4:
		return client.IgnoreNotFound(patchObject(ctx, i, fmt.Sprintf(`{"spec": {"restartToken": "%d"}}`, time.Now().UnixNano())))
	}
	if err := k8s.Get(ctx, key, i); err != nil {
		return client.IgnoreNotFound(err)
	}
	return ignoreGone(p.Type(ctx, i.UID, runtime.Keystrokes{Text: "x"}))
}

// ignoreGone ignores the errors of a process that does not exist or has no terminal.
func ignoreGone(err error) error {
	if errors.Is(err, runtime.ErrNotFound) || errors.Is(err, runtime.ErrNoTerminal) {
		return nil
	}
	return err
}

// pauseFor waits between two operations, as users do.
func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
