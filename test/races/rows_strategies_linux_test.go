// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = row("R14", "concurrent creates: all different names exist, and of the creates of one name exactly one succeeds", func(ctx context.Context) {
	const creators, names = 20, 5
	var won [names]atomic.Int32
	var winners [names]atomic.Int32
	inParallel(creators, func(i int) error {
		if err := k8s.Create(ctx, newStrategy(fmt.Sprintf("mine-%d", i), 3)); err != nil {
			return err
		}
		for n := range names {
			shared := newStrategy(fmt.Sprintf("shared-%d", n), int32(i+1))
			switch err := k8s.Create(ctx, shared); {
			case err == nil:
				won[n].Add(1)
				winners[n].Store(int32(i + 1))
			case !apierrors.IsAlreadyExists(err):
				return err
			}
		}
		return nil
	})
	for n := range names {
		Expect(won[n].Load()).To(Equal(int32(1)), "exactly one create succeeds: shared-%d", n)
		s, err := strategyNow(ctx, newStrategy(fmt.Sprintf("shared-%d", n), 1))
		Expect(err).NotTo(HaveOccurred())
		Expect(*s.Spec.Breaker.FailureThreshold).To(Equal(winners[n].Load()), "exactly one create succeeds, and its spec is kept")
		Expect(s.Generation).To(Equal(int64(1)))
	}
	var list v1alpha1.StrategyList
	Expect(k8s.List(ctx, &list, client.InNamespace(env.namespace))).To(Succeed())
	Expect(list.Items).To(HaveLen(creators + names))
})

var _ = row("R22", "all operations on strategies and runs complete, whatever else is in progress", func(ctx context.Context) {
	shared := newStrategy("shared", 3)
	Expect(k8s.Create(ctx, shared)).To(Succeed())
	const clients, rounds = 8, 2
	inParallel(clients, func(i int) error {
		for round := range rounds {
			if err := useStrategies(ctx, shared, fmt.Sprintf("c%d-%d", i, round)); err != nil {
				return fmt.Errorf("an operation does not complete: %w", err)
			}
		}
		return nil
	})
	last := waitForCounted(ctx, shared, 3*clients*rounds)
	Expect(totalRuns(last.Status.Totals)).To(Equal(3 * clients * rounds))
})

// useStrategies performs every operation of a client: it creates and deletes its own strategy, and resets the shared strategy, which other clients
// use.
func useStrategies(ctx context.Context, shared *v1alpha1.Strategy, name string) error {
	own := newStrategy(name, 1)
	if err := k8s.Create(ctx, own); err != nil {
		return err
	}
	gate := gateFile(name)
	ended, failed, cancelled := newRun(shared, name+"-ok", 0, ""), newRun(shared, name+"-bad", 1, ""), newRun(shared, name+"-cancelled", 0, gate)
	mine := newRun(own, name+"-mine", 1, "")
	for _, r := range []*v1alpha1.StrategyRun{ended, failed, cancelled, mine} {
		if err := k8s.Create(ctx, r); err != nil {
			return err
		}
	}
	if err := patchObject(ctx, cancelled, `{"spec":{"state":"Cancelled"}}`); err != nil {
		return err
	}
	if err := resetStrategy(ctx, shared, name); err != nil {
		return err
	}
	for _, r := range []*v1alpha1.StrategyRun{ended, failed, cancelled, mine} {
		if _, err := waitForOutcome(ctx, r); err != nil {
			return err
		}
	}
	if err := retryRequest(ctx, func() error { return k8s.Delete(ctx, own) }); err != nil {
		return err
	}
	if err := retryRequest(ctx, func() error { return k8s.Delete(ctx, mine) }); err != nil {
		return err
	}
	return pollUntil(ctx, func() (bool, error) {
		_, err := runNow(ctx, mine)
		return apierrors.IsNotFound(err), err
	})
}

var _ = row("R32", "a run that is alive is never counted as failed, whatever happens to managers", func(ctx context.Context) {
	s := newStrategy("long", 1)
	Expect(k8s.Create(ctx, s)).To(Succeed())
	gate := gateFile("long")
	runs := make([]*v1alpha1.StrategyRun, 6)
	for i := range runs {
		runs[i] = newRun(s, fmt.Sprintf("long-%d", i), 0, gate)
		Expect(k8s.Create(ctx, runs[i])).To(Succeed())
	}
	for _, r := range runs { // a start that is not recorded is carried out again, so it cannot be lost
		Eventually(ctx, func() (*v1alpha1.ProcessReference, error) {
			now, err := runNow(ctx, r)
			return now.Status.Process, err
		}).ShouldNot(BeNil())
	}
	alive := func() error {
		for _, r := range runs {
			now, err := runNow(ctx, r)
			if err == nil && now.Status.Outcome != "" {
				err = fmt.Errorf("%s is alive, and was counted as failed: %s", r.Name, now.Status.Outcome)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for range 3 {
		env.stopManager() // no manager runs
		Expect(alive()).To(Succeed())
		env.start()
		for _, r := range runs { // the new manager reconciles each run
			Expect(patchObject(ctx, r, fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, len(env.stateDirs)))).To(Succeed())
		}
		Consistently(ctx, alive).Should(Succeed())
	}
	Expect(os.WriteFile(gate, nil, 0o600)).To(Succeed())
	last := waitForCounted(ctx, s, len(runs))
	Expect(last.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: int64(len(runs))}), "no run that was alive was counted as failed")
	expectExecutedOnce(runs)
})
