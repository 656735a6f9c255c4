// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

var _ = row("R16", "reads during writes are consistent, and never older than the reader's own writes", func(ctx context.Context) {
	i := newInstance("read")
	create(ctx, i)
	waitForRunning(ctx, i, 1)
	const writes = 150
	for n := 1; n <= writes; n++ {
		written := i.DeepCopy()
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"resetToken":"%d"}}`, n))
		Expect(k8s.Patch(ctx, written, patch)).To(Succeed())
		for range 3 {
			o := mustGet(ctx, i)
			Expect(o.Spec.ResetToken).To(Equal(strconv.Itoa(n)), "the spec is older than the last write")
			Expect(o.Generation).To(BeNumerically(">=", written.Generation))
			seen, _ := strconv.Atoi(o.Status.ObservedResetToken)
			if isUpToDate(o) && seen != n {
				Fail(fmt.Sprintf("the status claims generation %d, and is older than that: token %d of %d", o.Generation, seen, n))
			}
			for _, c := range o.Status.Conditions {
				Expect(c.ObservedGeneration).To(BeNumerically("<=", o.Status.ObservedGeneration), "a condition is not newer than its status")
			}
		}
	}
	waitFor(ctx, i, "has seen the last write", func(o *v1alpha1.Instance) bool { return o.Status.ObservedResetToken == strconv.Itoa(writes) })
	Expect(notes("starts", "read")).To(HaveLen(1))
})

var _ = row("S13", "a list of running processes is a snapshot, whatever starts and ends meanwhile", func(ctx context.Context) {
	steady := map[types.UID]string{}
	for n := range 4 {
		i := newInstance(fmt.Sprintf("steady-%d", n))
		create(ctx, i)
		waitForRunning(ctx, i, 1)
		steady[i.UID] = i.Name
	}
	done := make(chan struct{})
	complaints := make(chan error, 3)
	var readers sync.WaitGroup
	for range cap(complaints) {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := checkRunningList(ctx, steady); err != nil {
					complaints <- err
					return
				}
			}
		})
	}
	inParallel(5, func(n int) error {
		for round := range 4 {
			i := newInstance(fmt.Sprintf("passing-%d-%d", n, round))
			if err := k8s.Create(ctx, i); err != nil {
				return err
			}
			if err := pollUntil(ctx, func() (bool, error) {
				o, err := get(ctx, i)
				return err == nil && isRunning(o), err
			}); err != nil {
				return err
			}
			if err := retryRequest(ctx, func() error { return k8s.Delete(ctx, i) }); err != nil {
				return err
			}
			if err := pollUntil(ctx, func() (bool, error) {
				_, err := get(ctx, i)
				return client.IgnoreNotFound(err) == nil && err != nil, nil
			}); err != nil {
				return err
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
})

func checkRunningList(ctx context.Context, steady map[types.UID]string) error {
	list, err := env.rt.List(ctx)
	if err != nil {
		return fmt.Errorf("every list succeeds, and this one failed: %w", err)
	}
	times := map[types.UID]int{}
	for _, incarnation := range list {
		times[types.UID(incarnation.UID)]++
	}
	for uid, n := range times {
		if n != 1 {
			return fmt.Errorf("every list has each process once, and this one has %s %d times", uid, n)
		}
	}
	for uid, name := range steady {
		if times[uid] != 1 {
			return fmt.Errorf("every list has the processes that run all the time, and this one lacks %s", name)
		}
	}
	return nil
}

var _ = row("S14", "only observed facts are reported: neither a failed kill nor a failed probe counts as a success", func(ctx context.Context) {
	i := newInstance("undead", "-ignore")
	i.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](1)
	create(ctx, i)
	pid := waitForRunning(ctx, i, 1)
	var kills atomic.Int32
	env.faults.setHooks(func(w *faultInjector) {
		w.onKill = func(types.UID, func() error) error {
			kills.Add(1)
			return errors.New("the process cannot be killed at the moment")
		}
	})
	Expect(patchFormatted(ctx, i, stopPatch)).To(Succeed())
	Eventually(ctx, func(g Gomega) {
		o := mustGet(ctx, i)
		if o.Status.LastExit != nil || o.Status.Process == nil || isStopped(o) || isTrue(o, v1alpha1.ConditionStalled) {
			StopTrying("reported stopped while the process is alive: " + describe(o)).Now()
		}
		g.Expect(kills.Load()).To(BeNumerically(">=", 4))
	}).Should(Succeed())
	Consistently(ctx, func(g Gomega) {
		o := mustGet(ctx, i)
		g.Expect(o.Status.LastExit).To(BeNil(), "reported stopped while the process is alive")
		g.Expect(o.Status.Process).NotTo(BeNil(), "reported stopped while the process is alive")
	}).Should(Succeed())
	Expect(workloadPIDs("undead")).To(Equal([]int{pid}))
	env.faults.clearHooks()
	waitForStopped(ctx, i)
	Expect(workloadPIDs("undead")).To(BeEmpty())
	Expect(mustGet(ctx, i).Status.LastExit.Signal).To(Equal("SIGKILL"))

	gate := filepath.Join(env.dir, "gate")
	dev := newServer("gated", "-gate", gate)
	dev.Spec.Readiness = &v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetProbe{Path: "/"}}
	create(ctx, dev)
	Eventually(ctx, func(g Gomega) {
		if o := mustGet(ctx, dev); isRunning(o) {
			StopTrying("reported ready although the probe fails: " + describe(o)).Now()
		}
		g.Expect(len(notes("refusals", "gated"))).To(BeNumerically(">=", 5))
	}).Should(Succeed())
	Expect(isRunning(mustGet(ctx, dev))).To(BeFalse())
	Expect(os.WriteFile(gate, nil, 0o600)).To(Succeed())
	waitForRunning(ctx, dev, 1)
})

var _ = row("S15", "every reader of a log has its own cursor", func(ctx context.Context) {
	const lines = 5000
	dev := newServer("talker", "-lines", strconv.Itoa(lines))
	create(ctx, dev)
	inParallel(6, func(int) error { return readWholeLog(ctx, dev.UID, lines) })
	waitForRunning(ctx, dev, 1)
})

// readWholeLog follows a log from its beginning until it has seen all lines, in order.
func readWholeLog(ctx context.Context, uid types.UID, lines int) error {
	var log runtime.Log
	err := pollUntil(ctx, func() (bool, error) {
		var err error
		log, err = env.rt.OpenLog(ctx, uid)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var want, got bytes.Buffer
	for n := range lines {
		_, _ = fmt.Fprintf(&want, "line %06d\n", n)
	}
	for offset, piece := int64(0), make([]byte, 512); got.Len() < want.Len(); {
		n, err := log.ReadAt(piece, offset)
		offset += int64(n)
		got.Write(piece[:n])
		if n > 0 {
			if !bytes.HasPrefix(want.Bytes(), got.Bytes()) {
				return fmt.Errorf("a reader did not get every line in order: %q", piece[:n])
			}
			continue
		}
		if err != nil && !strings.Contains(err.Error(), "EOF") {
			return err
		}
		if err := errors.Join(log.Wait(ctx, offset), ctx.Err()); err != nil {
			return fmt.Errorf("a reader did not get every line: %d bytes of %d: %w", got.Len(), want.Len(), err)
		}
	}
	return nil
}
