// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	loadClients    = 20
	loadOperations = 1000
	// loadSeed makes the operations and their delays reproducible, but not the order in which the operations arrive.
	loadSeed = 20250117
	// loadTurns is how often the load runs on few objects, and how often on many objects. The two loads alternate, so that a machine that becomes slower
	// affects both.
	loadTurns   = 5
	fewObjects  = 2
	manyObjects = 24
	// warmUp is the number of operations of a load during which the bystander is not measured, because the clients do not contend yet.
	warmUp = 20
	// noiseAllowance is the difference of medians that is accepted because the machine may do other work at the same time.
	noiseAllowance = 30 * time.Millisecond
)

var _ = row("R12", "1,000 operations with random delays from 20 clients: the processes match the specs, and contention does not slow down other objects", func(ctx context.Context) {
	fmt.Printf("R12 seed %d\n", loadSeed)
	bystander := newInstance("bystander")
	create(ctx, bystander)
	waitForRunning(ctx, bystander, 1)
	var contended, spread, more []time.Duration
	for round := range rounds(loadTurns, 3) {
		for _, names := range []int{fewObjects, manyObjects} {
			times := measureLatency(ctx, bystander, func(operations *atomic.Int64) { runLoad(ctx, uint64(2*round+names), names, operations) })
			if names == fewObjects {
				contended = append(contended, median(times))
			} else {
				spread = append(spread, median(times))
			}
		}
		// Compare the two loads of the same round, because the machine may have become slower since earlier rounds.
		more = append(more, contended[round]-spread[round]*11/10)
	}
	fmt.Printf("R12 a bystander's change takes %v while %d clients use %d objects, %v while they use %d (medians of %d)\n",
		median(contended), loadClients, fewObjects, median(spread), manyObjects, len(spread))
	Expect(median(more)).To(BeNumerically("<=", noiseAllowance), "contention on few objects slows down the others: %v, and %v without", contended, spread)
	expectProcesses(ctx)
	Expect(notes("starts", "bystander")).To(HaveLen(1))
})

// runLoad runs all clients concurrently. Each client performs its share of the operations of one load, and counts them; the parameter names is the number of
// objects.
func runLoad(ctx context.Context, stream uint64, names int, operations *atomic.Int64) {
	GinkgoHelper()
	inParallel(loadClients, func(i int) error {
		random := rand.New(rand.NewPCG(loadSeed, stream<<8|uint64(i))) //nolint:gosec // reproducible on purpose
		for range loadOperations / loadClients / loadTurns / 2 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(random.IntN(150)) * time.Millisecond):
			}
			name := fmt.Sprintf("x-%d-%d", names, random.IntN(names))
			if err := operateOn(ctx, random, newInstance(name)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			operations.Add(1)
		}
		return nil
	})
}

// operateOn performs one operation on an object. It ignores that the object already exists or does not exist, because other clients operate on the
// same object.
func operateOn(ctx context.Context, random *rand.Rand, i *v1alpha1.Instance) error {
	var err error
	switch token := strconv.Itoa(random.Int()); random.IntN(8) {
	case 0:
		err = retryRequest(ctx, func() error { return k8s.Delete(ctx, i) })
	case 1, 2:
		err = k8s.Create(ctx, i)
	case 3:
		err = patchFormatted(ctx, i, stopPatch)
	case 4:
		err = patchFormatted(ctx, i, runPatch)
	case 5:
		err = patchFormatted(ctx, i, `{"spec":{"process":{"env":[{"name":"TOKEN","value":%q}]}}}`, token)
	default:
		err = patchFormatted(ctx, i, restartPatch, token)
	}
	if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// measureLatency calls its parameter, the function "during", which counts its operations. Until this call returns, measureLatency changes the object
// repeatedly. It returns how long the manager takes to see each change that ends after warmUp.
func measureLatency(ctx context.Context, i *v1alpha1.Instance, during func(operations *atomic.Int64)) []time.Duration {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching, err := k8s.Watch(ctx, &v1alpha1.InstanceList{}, client.InNamespace(i.Namespace), client.MatchingFields{"metadata.name": i.Name})
	Expect(err).NotTo(HaveOccurred())
	defer watching.Stop()
	done, failed := make(chan struct{}), make(chan error, 1)
	var times []time.Duration
	var operations atomic.Int64
	go func() {
		defer close(failed)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			took, err := changeAndWait(ctx, i, strconv.Itoa(n)+"-"+strconv.FormatInt(time.Now().UnixNano(), 36), watching)
			if err != nil {
				failed <- err
				return
			}
			if operations.Load() >= warmUp {
				times = append(times, took)
			}
		}
	}()
	var once sync.Once
	defer once.Do(func() { close(done) })
	during(&operations)
	once.Do(func() { close(done) })
	Expect(<-failed).NotTo(HaveOccurred(), "a bystander's change is carried out under contention")
	Expect(times).NotTo(BeEmpty())
	return times
}

// changeAndWait makes a change that needs no start, and waits until the status shows that the manager has seen it.
func changeAndWait(ctx context.Context, i *v1alpha1.Instance, token string, watching watch.Interface) (time.Duration, error) {
	began := time.Now()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"resetToken":%q}}`, token))
	if err := k8s.Patch(ctx, i.DeepCopy(), patch); err != nil {
		return 0, err
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case event, open := <-watching.ResultChan():
			if !open {
				return 0, fmt.Errorf("the watch ended")
			}
			if seen, ok := event.Object.(*v1alpha1.Instance); ok && seen.Status.ObservedResetToken == token {
				return time.Since(began), nil
			}
		case <-timeout.C:
			return 0, fmt.Errorf("contention delays other objects: the change was not seen in %v", patience)
		}
	}
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}
