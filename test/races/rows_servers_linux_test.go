// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

var _ = row("R07", "start and stop of the same server: a stop ends the incarnation that it was requested for, and none newer", func(ctx context.Context) {
	dev := newServer("web")
	create(ctx, dev)
	last := int64(1)
	waitForRunning(ctx, dev, last)
	for range 3 {
		last++
		Expect(patchFormatted(ctx, dev, restartPatch, strconv.FormatInt(last, 10))).To(Succeed())
		pid := waitForRunning(ctx, dev, last)
		// A stop and a kill of the previous incarnation arrive late, as from a delayed manager or a repeated request.
		Expect(env.rt.Stop(ctx, dev.UID, last-1)).To(Succeed())
		Expect(env.rt.Kill(ctx, dev.UID, last-1)).To(Succeed())
		Expect(workloadPIDs("web")).To(Equal([]int{pid}), "the newer incarnation keeps running")
		Expect(signalsTo(pid)).To(BeZero(), "the newer incarnation was not asked to stop")
	}
	// Many clients start and stop the server concurrently. At the end the server is in the state that was requested last.
	inParallel(8, func(i int) error {
		for n := range 8 {
			patch := []string{stopPatch, runPatch, fmt.Sprintf(restartPatch, fmt.Sprintf("%d-%d", i, n))}[(i+n)%3]
			if err := patchObject(ctx, dev, patch); err != nil {
				return err
			}
		}
		return nil
	})
	Expect(patchFormatted(ctx, dev, runPatch)).To(Succeed())
	expectProcesses(ctx)
	Expect(workloadPIDs("web")).To(HaveLen(1))
})

var _ = row("R08", "many stops of one server: one is carried out, the others succeed", func(ctx context.Context) {
	stopFile := filepath.Join(env.dir, "enough")
	dev := newServer("web", "-until", stopFile)
	create(ctx, dev)
	pid := waitForRunning(ctx, dev, 1)
	stops := func(n int) {
		GinkgoHelper()
		inParallel(n, func(i int) error {
			err := patchFormatted(ctx, dev, `{"metadata":{"annotations":{"stop":"%d of %d"}},"spec":{"state":"Stopped"}}`, i, n)
			if err == nil && i%5 == 0 {
				err = retryRequest(ctx, func() error { return k8s.Delete(ctx, dev.DeepCopy()) })
			}
			return err
		})
	}
	stops(40)
	Eventually(ctx, func() int { return signalsTo(pid) }).Should(BeNumerically(">=", 1))
	stops(10)
	// Wait for two more reconciles. The first one may request another stop. This stop has been carried out when the second reconcile begins.
	for _, look := range []string{"first", "second"} {
		Expect(patchFormatted(ctx, dev, `{"spec":{"resetToken":%q}}`, look)).To(Succeed())
		looked := waitFor(ctx, dev, "was reconciled while it is stopping", func(o *v1alpha1.DevServer) bool { return o.Status.ObservedResetToken == look })
		Expect(looked.Status.Stopping).NotTo(BeNil())
	}
	Expect(os.WriteFile(stopFile, nil, 0o600)).To(Succeed())
	waitForGone(ctx, dev)
	Expect(signalsTo(pid)).To(Equal(1), "the process received exactly one stop signal")
	Expect(notes("ends", "web")).To(HaveLen(1), "the process exited by itself, and was not killed")
	// Stop and Kill of a process that no longer exists are no-ops.
	Expect(env.rt.Stop(ctx, dev.UID, 1)).To(Succeed())
	Expect(env.rt.Kill(ctx, dev.UID, 1)).To(Succeed())
})

var _ = row("R09", "list while servers start and stop: every list is a snapshot of complete objects", func(ctx context.Context) {
	const servers = 6
	var devs []*v1alpha1.DevServer
	for i := range servers {
		devs = append(devs, newServer(fmt.Sprintf("web-%d", i)))
		create(ctx, devs[i])
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	complaints := make(chan error, 4)
	for range cap(complaints) {
		readers.Go(func() {
			incarnations := map[string]int64{}
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := checkList(ctx, servers, incarnations); err != nil {
					complaints <- err
					return
				}
			}
		})
	}
	inParallel(servers, func(i int) error {
		defer GinkgoRecover()
		for n := range 3 {
			for _, change := range []string{fmt.Sprintf(restartPatch, strconv.Itoa(n)), stopPatch, runPatch} {
				if err := patchObject(ctx, devs[i], change); err != nil {
					return err
				}
				if err := pollUntil(ctx, func() (bool, error) {
					o, err := get(ctx, devs[i])
					return err == nil && isUpToDate(o) && (change == stopPatch) == isStopped(o) &&
						(change == stopPatch || isRunning(o)), err
				}); err != nil {
					return fmt.Errorf("after %s: %w", change, err)
				}
			}
		}
		return nil
	})
	close(done)
	readers.Wait()
	close(complaints)
	for err := range complaints {
		Expect(err).NotTo(HaveOccurred())
	}
	expectProcesses(ctx)
})

// checkList lists the servers and checks the result.
func checkList(ctx context.Context, servers int, incarnations map[string]int64) error {
	var list v1alpha1.DevServerList
	if err := k8s.List(ctx, &list, client.InNamespace(env.namespace)); err != nil {
		return fmt.Errorf("a list failed: %w", err)
	}
	names := map[string]bool{}
	for i := range list.Items {
		dev := &list.Items[i]
		names[dev.Name] = true
		status := &dev.Status
		if status.Incarnation < incarnations[dev.Name] {
			return fmt.Errorf("a list is older than the one before: %s", describe(dev))
		}
		incarnations[dev.Name] = status.Incarnation
		count := 0
		for _, c := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
			if isTrue(dev, c) {
				count++
			}
		}
		if len(status.Conditions) > 0 && count != 1 || len(status.Conditions) == 0 && status.Incarnation > 0 {
			return fmt.Errorf("a list shows a partially written object: %s", describe(dev))
		}
		if isRunning(dev) && (status.Stopping != nil || status.Process == nil || status.Process.Incarnation != status.Incarnation) {
			return fmt.Errorf("a list shows a partially written object: %s", describe(dev))
		}
	}
	if len(names) != servers || len(list.Items) != servers {
		return fmt.Errorf("a list has %d objects with %d names, want %d", len(list.Items), len(names), servers)
	}
	return nil
}

var _ = row("R10", "clean-up of a session while new servers start in it: the old servers end, the new ones keep running", func(ctx context.Context) {
	const each = 6
	session := func(dev *v1alpha1.DevServer) *v1alpha1.DevServer { dev.Spec.Session = "one"; return dev }
	var old []*v1alpha1.DevServer
	for i := range each {
		how := [][]string{{"-slow", "300ms"}, {"-ignore"}}[i%2]
		old = append(old, session(newServer(fmt.Sprintf("old-%d", i), how...)))
		old[i].Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](3)
		create(ctx, old[i])
	}
	for _, dev := range old {
		waitForRunning(ctx, dev, 1)
	}
	Expect(k8s.DeleteAllOf(ctx, &v1alpha1.DevServer{}, client.InNamespace(env.namespace), client.MatchingFields{"spec.session": "one"})).To(Succeed())
	// The old servers are still stopping. Some new servers start beside them; others reuse the name of an old server and start as soon as that name is
	// free.
	created := make([]*v1alpha1.DevServer, 2*each)
	inParallel(2*each, func(i int) error {
		created[i] = session(newServer(fmt.Sprintf("new-%d", i)))
		if i >= each {
			created[i] = session(newServer(fmt.Sprintf("old-%d", i-each)))
		}
		return pollUntil(ctx, func() (bool, error) {
			err := k8s.Create(ctx, created[i])
			if apierrors.IsAlreadyExists(err) {
				return false, nil
			}
			return err == nil, err
		})
	})
	for _, dev := range old {
		waitForGone(ctx, dev)
	}
	for _, dev := range created {
		alive := waitFor(ctx, dev, "was created after the clean-up began and runs", func(o *v1alpha1.DevServer) bool { return isRunning(o) })
		Expect(alive.Status.Incarnation).To(Equal(int64(1)), "a server created after the clean-up began was not ended by it: %s", describe(alive))
		pid := int(alive.Status.Process.PID)
		Expect(signalsTo(pid)).To(BeZero(), "a server created after the clean-up began was not asked to stop")
		Expect(workloadPIDs(dev.Name)).To(Equal([]int{pid}), "a server created after the clean-up began keeps running")
	}
	expectProcesses(ctx)
})

var _ = row("R11", "100 concurrent starts and stops: the processes match the specs", func(ctx context.Context) {
	// Imitate starts that time out: some calls of Start fail for the manager. When the manager retries such a call, both the original call and the retry are
	// carried out.
	var late sync.WaitGroup
	DeferCleanup(late.Wait)
	var mu sync.Mutex
	underway := map[string]func() error{}
	asked := 0
	env.faults.setHooks(func(w *faultInjector) {
		w.onStart = func(p runtime.Process, start func() error) error {
			mu.Lock()
			defer mu.Unlock()
			asked++
			key := fmt.Sprintf("%s/%d", p.Name, p.Incarnation)
			if first := underway[key]; first != nil {
				delete(underway, key)
				late.Go(func() { _ = first() })
				return start()
			}
			if asked%3 != 0 {
				return start()
			}
			underway[key] = start
			return fmt.Errorf("the response to the start of %s is late", p.Name)
		}
	})
	const objects = 30
	var devs []*v1alpha1.DevServer
	for i := range objects {
		devs = append(devs, newServer(fmt.Sprintf("web-%d", i)))
	}
	inParallel(objects, func(i int) error { return k8s.Create(ctx, devs[i]) })
	inParallel(100, func(i int) error {
		change := stopPatch
		if i%2 == 0 {
			change = runPatch
		}
		if i%5 == 0 {
			change = fmt.Sprintf(restartPatch, strconv.Itoa(i))
		}
		return patchObject(ctx, devs[i*7%objects], change)
	})
	expectProcesses(ctx)
	expectNoOverlap()
})

var _ = row("R13", "stops that take 65 seconds do not delay other objects", func(ctx context.Context) {
	// More slow servers than the manager has workers.
	const stuck = 10
	var slow []*v1alpha1.DevServer
	for i := range stuck {
		slow = append(slow, newServer(fmt.Sprintf("slow-%d", i), "-ignore"))
		slow[i].Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](65)
		create(ctx, slow[i])
	}
	for _, dev := range slow {
		waitForRunning(ctx, dev, 1)
		Expect(patchFormatted(ctx, dev, stopPatch)).To(Succeed())
	}
	const others = 5
	inParallel(others, func(i int) error {
		dev := newServer(fmt.Sprintf("quick-%d", i))
		if err := k8s.Create(ctx, dev); err != nil {
			return err
		}
		for _, step := range []struct {
			change string
			done   func(*v1alpha1.DevServer) bool
		}{
			{runPatch, func(o *v1alpha1.DevServer) bool { return isRunning(o) }},
			{fmt.Sprintf(restartPatch, "1"), func(o *v1alpha1.DevServer) bool { return isRunning(o) && o.Status.Incarnation == 2 }},
			{stopPatch, func(o *v1alpha1.DevServer) bool { return isStopped(o) }},
		} {
			if err := patchObject(ctx, dev, step.change); err != nil {
				return err
			}
			if err := pollUntil(ctx, func() (bool, error) {
				o, err := get(ctx, dev)
				return err == nil && isUpToDate(o) && step.done(o), err
			}); err != nil {
				return fmt.Errorf("delayed by slow stops: %s after %s: %w", dev.Name, step.change, err)
			}
		}
		return nil
	})
	for _, dev := range slow {
		o := mustGet(ctx, dev)
		Expect(o.Status.Stopping).NotTo(BeNil(), "delayed by slow stops: %s exited before the others were done", dev.Name)
		Expect(workloadPIDs(dev.Name)).To(HaveLen(1))
		// Shorten the grace period, so that the row does not have to wait until it is over.
		Expect(patchFormatted(ctx, dev, `{"spec":{"process":{"stop":{"gracePeriodSeconds":0}}}}`)).To(Succeed())
	}
	for _, dev := range slow {
		waitForStopped(ctx, dev)
	}
	expectProcesses(ctx)
})
