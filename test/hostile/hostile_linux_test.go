// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// clients is the number of clients that create, change and delete hostile objects in parallel. maxClientPause is the maximum total time for which a
	// client pauses per object. On two cores, this load leaves some CPU time unused. With a higher load, the API server would delay every request, even if
	// the manager were fast.
	clients        = 4
	maxClientPause = 500 * time.Millisecond

	// maxMemory, maxDelay and maxDeletionTime are limits for the manager. minAcceptedShare is the minimum share of objects that the API server must accept.
	maxMemory        = 256 << 20
	maxDelay         = 200 * time.Millisecond
	maxDeletionTime  = 30 * time.Second
	minAcceptedShare = 0.2

	// restartWrites is the number of API writes that a restart needs, including the write that requests it.
	restartWrites = 4
)

// counts are the results of the hostile objects.
type counts struct {
	accepted, refused, changed atomic.Int64
	// costly is the first error of an object that the API server refused because a CEL rule exceeded its cost budget. It means that some objects of legal size
	// cannot be created.
	costly atomic.Pointer[string]
	// deletions holds the duration of each deletion; lingering describes the objects that were not deleted in time.
	mu        sync.Mutex
	deletions []time.Duration
	lingering []string
}

func TestHostileSpecs_DoNotAffectOtherObjects(t *testing.T) {
	w := newWorld(t, 0)
	objects, seed := envInt(t, "OBJECTS", 1000), uint64(envInt(t, "SEED", 1)) //nolint:gosec // a seed
	wellBehaved := w.newBystander()
	quiet, _ := wellBehaved.measure(20)
	before := w.peakMemory()
	done := &counts{}
	flooding, over := context.WithCancel(t.Context())
	var latencies, writes []time.Duration
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		latencies, writes = wellBehaved.measureUntil(flooding)
	}()
	begun := time.Now()
	w.runClients(objects, seed, done)
	took := time.Since(begun)
	over()
	<-measured
	slow, all := w.slowReconciles()
	peak := w.peakMemory()
	delay := percentile(latencies, 0.99) - percentile(quiet, 0.5)
	if alone := percentile(writes, 0.99); alone > maxDelay/2 {
		// Writes to an object without a controller are slow, too, so the disk has stalled. Subtract this delay, because the manager did not cause it.
		delay -= alone
	}
	t.Logf("seed %d: %d objects in %v: %d accepted, %d refused, %d changed", seed, objects, took.Round(time.Second), done.accepted.Load(), done.refused.Load(), done.changed.Load())
	t.Logf("manager: peak memory %d MiB (%d before), %d of %d reconciles longer than 1 s", peak>>20, before>>20, slow, all)
	t.Logf("well-behaved object: restarted %d times, p50 %v, p99 %v, quiet p50 %v; %d writes at the same time: p99 %v, longest %v; deletions p50 %v, longest %v", len(latencies),
		percentile(latencies, 0.5), percentile(latencies, 0.99), percentile(quiet, 0.5), restartWrites, percentile(writes, 0.99), percentile(writes, 1),
		percentile(done.deletions, 0.5), percentile(done.deletions, 1))

	if share := float64(done.accepted.Load()) / float64(objects); share < minAcceptedShare {
		t.Errorf("only %.0f %% of the objects were accepted: the generator tests only the API server", 100*share)
	}
	if text := done.costly.Load(); text != nil {
		t.Errorf("a CEL rule costs too much for an object of legal size: %s", *text)
	}
	if peak > maxMemory {
		t.Errorf("the manager used %d MiB, more than %d", peak>>20, maxMemory>>20)
	}
	if slow > 0 && percentile(writes, 1) < time.Second { // ignore slow reconciles if the disk also delayed other writes by a second
		t.Errorf("%d reconciles took longer than a second", slow)
	}
	if delay > maxDelay {
		t.Errorf("at p99, restarts of the well-behaved object took %v longer than the quiet median, more than the limit of %v", delay, maxDelay)
	}
	for _, name := range done.lingering {
		t.Errorf("%s was not gone %v after its deletion", name, maxDeletionTime)
	}
}

func envInt(t *testing.T, variable string, standard int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	value, err := strconv.Atoi(text)
	if err != nil || value < 1 {
		t.Fatalf("%s=%q is not a number above 0", variable, text)
	}
	return value
}

// runClients lets all clients create, change and delete objects, and waits until the objects are gone or maxDeletionTime has passed since their deletion.
func (w *world) runClients(objects int, seed uint64, done *counts) {
	w.Helper()
	var next atomic.Int64
	var working sync.WaitGroup
	for i := range clients {
		g, err := newGenerator(root, seed+uint64(i)) //nolint:gosec // a small number
		w.must(err, "read the schemas")
		working.Go(func() {
			for n := int(next.Add(1)); n <= objects; n = int(next.Add(1)) {
				w.runLifecycle(g, n, done)
			}
		})
	}
	working.Wait()
}

// runLifecycle creates, changes and deletes one object, with pauses in between.
func (w *world) runLifecycle(g *generator, n int, done *counts) {
	ctx := w.Context()
	o := g.object(hostileNamespace, n)
	if err := w.api.Create(ctx, o); err != nil {
		done.recordRefusal(err)
		return
	}
	done.accepted.Add(1)
	pause(g.random)
	changed := &unstructured.Unstructured{}
	changed.SetGroupVersionKind(o.GroupVersionKind())
	for range 2 { // retry once, because a controller may write between the read and the update
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(o), changed); err != nil {
			break
		}
		g.setExtremeValues(changed)
		if err := w.api.Update(ctx, changed); err == nil {
			done.changed.Add(1)
			break
		} else if !apierrors.IsConflict(err) {
			done.recordRefusal(err)
			break
		}
	}
	pause(g.random)
	w.deleteAndWait(ctx, o, done)
}

// pause limits the rate of a client. It does not wait for a condition.
func pause(random *rand.Rand) { time.Sleep(time.Duration(random.Int64N(int64(maxClientPause) / 2))) }

// deleteAndWait deletes an object and waits until the object no longer exists, for at most maxDeletionTime.
func (w *world) deleteAndWait(ctx context.Context, o *unstructured.Unstructured, done *counts) {
	begun := time.Now()
	name := o.GetKind() + "/" + o.GetName()
	if err := w.api.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
		done.recordDeletion(0, name+": "+err.Error())
		return
	}
	for {
		err := w.api.Get(ctx, client.ObjectKeyFromObject(o), o)
		switch {
		case apierrors.IsNotFound(err):
			done.recordDeletion(time.Since(begun), "")
			return
		case time.Since(begun) > maxDeletionTime:
			text, _ := o.MarshalJSON()
			done.recordDeletion(0, fmt.Sprintf("%s (%.2000s)", name, text))
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *counts) recordDeletion(took time.Duration, lingering string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lingering != "" {
		c.lingering = append(c.lingering, lingering)
		return
	}
	c.deletions = append(c.deletions, took)
}

func (c *counts) recordRefusal(err error) {
	c.refused.Add(1)
	if text := err.Error(); exceedsCostBudget(text) {
		c.costly.CompareAndSwap(nil, &text)
	}
}

// exceedsCostBudget reports whether the API server refused an object because its CEL rules ran out of budget.
func exceedsCostBudget(refusal string) bool {
	return slices.ContainsFunc([]string{"cost budget", "cost limit", "too complex"}, func(words string) bool { return strings.Contains(refusal, words) })
}

// bystander is the well-behaved object: an Instance that is restarted repeatedly.
type bystander struct {
	w      *world
	object *v1alpha1.Instance
	other  *corev1.ConfigMap
	tokens int
}

func (w *world) newBystander() *bystander {
	w.Helper()
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: bystanderNamespace, Name: "bystander"}}
	instance.Spec.Process.Command = []string{"sleep", "infinity"}
	w.must(w.api.Create(w.Context(), instance), "create the well-behaved object")
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: bystanderNamespace, Name: "writes"}}
	w.must(w.api.Create(w.Context(), other), "create a ConfigMap")
	c := &bystander{w: w, object: instance, other: other}
	w.Cleanup(func() {
		ctx := context.WithoutCancel(w.Context())
		_ = w.api.Delete(ctx, c.object)
		for begun := time.Now(); time.Since(begun) < maxDeletionTime && !apierrors.IsNotFound(w.api.Get(ctx, client.ObjectKeyFromObject(c.object), c.object)); {
			time.Sleep(50 * time.Millisecond)
		}
	})
	return c
}

// restart requests a restart and returns the time until the new process is ready.
func (c *bystander) restart(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c.tokens++
	token := strconv.Itoa(c.tokens)
	watch, err := c.w.api.Watch(ctx, &v1alpha1.InstanceList{}, client.InNamespace(bystanderNamespace))
	if err != nil {
		return 0, err
	}
	defer watch.Stop()
	begun := time.Now()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"restartToken":"`+token+`"}}`))
	if err := c.w.api.Patch(ctx, c.object, patch); err != nil {
		return 0, err
	}
	for event := range watch.ResultChan() {
		instance, ok := event.Object.(*v1alpha1.Instance)
		if ok && instance.Status.ObservedRestartToken == token && meta.IsStatusConditionTrue(instance.Status.Conditions, v1alpha1.ConditionReady) {
			return time.Since(begun), nil
		}
	}
	return 0, fmt.Errorf("no new process within a minute: %w", ctx.Err())
}

// baselineWrites makes as many writes as a restart needs, to an object that no controller watches, and returns the time that they took.
func (c *bystander) baselineWrites(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	for i := range restartWrites {
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"data":{"write":"%d-%d"}}`, c.tokens, i))
		if err := c.w.api.Patch(ctx, c.other, patch); err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}

// measure restarts the object the given number of times. It returns the times of the restarts except the first one, and the times of the writes that
// measureOnce makes after each restart.
func (c *bystander) measure(times int) (restarts, writes []time.Duration) {
	c.w.Helper()
	for range times {
		c.w.must(c.measureOnce(c.w.Context(), &restarts, &writes), "restart the well-behaved object")
	}
	return restarts[1:], writes // drop the first time, because it may include the initial start
}

// measureUntil restarts the object repeatedly until the context ends, with pauses of 200 ms.
func (c *bystander) measureUntil(ctx context.Context) (restarts, writes []time.Duration) {
	for ctx.Err() == nil {
		if err := c.measureOnce(c.w.Context(), &restarts, &writes); err != nil {
			c.w.Errorf("restart the well-behaved object: %v", err)
			return restarts, writes
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return restarts, writes
}

// measureOnce measures one restart, and then restartWrites writes to an object without a controller. It appends the two times to the slices.
func (c *bystander) measureOnce(ctx context.Context, restarts, writes *[]time.Duration) error {
	restarted, err := c.restart(ctx)
	if err != nil {
		return err
	}
	written, err := c.baselineWrites(ctx)
	*restarts, *writes = append(*restarts, restarted), append(*writes, written)
	return err
}

// percentile returns the value at the given part of the sorted values, such as the median for 0.5, rounded to milliseconds. It returns 0 if there are no
// values.
func percentile(values []time.Duration, part float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)].Round(time.Millisecond)
}
