// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// command is the argv of a workload that has to be alone under the name.
func command(name string, args ...string) []string {
	return append([]string{filepath.Join(programs, "workload"), "-dir", y.dir, "-name", name}, args...)
}

// server gives a DevServer that serves HTTP on the port that it is given.
func server(name string, args ...string) *v1alpha1.DevServer {
	dev := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: name}}
	fill(&dev.Spec.ProcessSpec, command(name, append([]string{"-serve"}, args...)...))
	return dev
}

// instance gives an Instance.
func instance(name string, args ...string) *v1alpha1.Instance {
	i := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: name}}
	fill(&i.Spec.ProcessSpec, command(name, args...))
	return i
}

func fill(spec *v1alpha1.ProcessSpec, argv []string) {
	spec.Process.Command = argv
	// Killing must never hide that a process was asked twice, or not at all.
	spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](60)
	spec.Backoff.InitialSeconds = ptr.To[int32](0)
	spec.Breaker.FailureThreshold = ptr.To[int32](60)
}

func create(ctx context.Context, objects ...process.Object) {
	GinkgoHelper()
	for _, object := range objects {
		Expect(k8s.Create(ctx, object)).To(Succeed())
	}
}

// set changes an object as a user does, whatever is written to it meanwhile.
func set(ctx context.Context, object client.Object, patch string, values ...any) error {
	return apply(ctx, object, fmt.Sprintf(patch, values...))
}

// apply is set with a patch that is complete.
func apply(ctx context.Context, object client.Object, patch string) error {
	return patiently(ctx, func() error {
		return k8s.Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(patch)))
	})
}

// patiently tries again what the API server could not do just now: too many others wrote to the same object, or the machine is slow.
func patiently(ctx context.Context, do func() error) error {
	for {
		err := do()
		busy := apierrors.IsConflict(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err)
		if !busy || ctx.Err() != nil {
			return err
		}
	}
}

const (
	stopped = `{"spec":{"state":"Stopped"}}`
	running = `{"spec":{"state":"Running"}}`
	restart = `{"spec":{"restartToken":%q}}`
)

// get reads the object anew, without what a Get leaves standing of the value before.
func get[T process.Object](ctx context.Context, object T) (T, error) {
	var fresh process.Object
	switch any(object).(type) {
	case *v1alpha1.DevServer:
		fresh = &v1alpha1.DevServer{}
	case *v1alpha1.LanguageServer:
		fresh = &v1alpha1.LanguageServer{}
	case *v1alpha1.StrategyRun:
		fresh = &v1alpha1.StrategyRun{}
	default:
		fresh = &v1alpha1.Instance{}
	}
	err := k8s.Get(ctx, client.ObjectKeyFromObject(object), fresh)
	return fresh.(T), err
}

func must[T process.Object](ctx context.Context, object T) T {
	GinkgoHelper()
	fresh, err := get(ctx, object)
	Expect(err).NotTo(HaveOccurred())
	return fresh
}

func is(object process.Object, conditionType string) bool {
	return meta.IsStatusConditionTrue(object.GetProcessStatus().Conditions, conditionType)
}

// upToDate says that the status speaks of the newest spec.
func upToDate(object process.Object) bool {
	return object.GetProcessStatus().ObservedGeneration == object.GetGeneration()
}

// comesTo waits until the object is as asked for, and gives it as it was then.
func comesTo[T process.Object](ctx context.Context, object T, what string, be func(T) bool) T {
	GinkgoHelper()
	var last T
	Eventually(ctx, func() (bool, error) {
		var err error
		last, err = get(ctx, object)
		return err == nil && upToDate(last) && be(last), err
	}).Should(BeTrue(), func() string { return fmt.Sprintf("%s: %s; it is %s", object.GetName(), what, tell(last)) })
	return last
}

func tell(object process.Object) string {
	status := object.GetProcessStatus()
	text := fmt.Sprintf("incarnation %d, stopping %v, last exit %v;", status.Incarnation, status.Stopping, status.LastExit)
	for _, c := range status.Conditions {
		text += fmt.Sprintf(" %s=%s/%s", c.Type, c.Status, c.Reason)
	}
	return text
}

// runs waits until that incarnation is ready and has begun, and gives its PID.
func runs[T process.Object](ctx context.Context, object T, incarnation int64) int {
	GinkgoHelper()
	ready := comesTo(ctx, object, fmt.Sprintf("runs incarnation %d", incarnation), func(o T) bool {
		status := o.GetProcessStatus()
		return is(o, v1alpha1.ConditionReady) && status.Process != nil && status.Process.Incarnation == incarnation
	})
	pid := int(ready.GetProcessStatus().Process.PID)
	// Without a probe a program is ready when it was executed, before it can say so and before it knows what to do with signals.
	Eventually(ctx, func() bool {
		return slices.ContainsFunc(notes("starts", ""), func(n noted) bool { return n.pid == pid })
	}).Should(BeTrue(), "%s has begun", object.GetName())
	return pid
}

// rests waits until the object is stopped.
func rests[T process.Object](ctx context.Context, object T) {
	GinkgoHelper()
	comesTo(ctx, object, "is stopped", func(o T) bool {
		condition := meta.FindStatusCondition(o.GetProcessStatus().Conditions, v1alpha1.ConditionStalled)
		return condition != nil && condition.Status == metav1.ConditionTrue && condition.Reason == v1alpha1.ReasonStopped
	})
}

// isGone waits until the object is not there any more; otherwise says in words what it means if it stays.
func isGone[T process.Object](ctx context.Context, object T, otherwise ...string) {
	GinkgoHelper()
	Eventually(ctx, func() bool {
		fresh, err := get(ctx, object)
		return apierrors.IsNotFound(err) || err == nil && fresh.GetUID() != object.GetUID()
	}).Should(BeTrue(), "%s%s goes", strings.Join(otherwise, " "), object.GetName())
}

// everything gives all objects of the row.
func everything(ctx context.Context, g Gomega) []process.Object {
	var servers v1alpha1.DevServerList
	var instances v1alpha1.InstanceList
	var tongues v1alpha1.LanguageServerList
	g.Expect(k8s.List(ctx, &servers, client.InNamespace(y.namespace))).To(Succeed())
	g.Expect(k8s.List(ctx, &instances, client.InNamespace(y.namespace))).To(Succeed())
	g.Expect(k8s.List(ctx, &tongues, client.InNamespace(y.namespace))).To(Succeed())
	var all []process.Object
	for i := range tongues.Items {
		all = append(all, &tongues.Items[i])
	}
	for i := range servers.Items {
		all = append(all, &servers.Items[i])
	}
	for i := range instances.Items {
		all = append(all, &instances.Items[i])
	}
	return all
}

// processesAreAsTheSpecsSay waits until what runs is exactly what the objects ask for.
func processesAreAsTheSpecsSay(ctx context.Context, runs ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		var want []int
		for _, object := range everything(ctx, g) {
			g.Expect(object.GetDeletionTimestamp().IsZero()).To(BeTrue(), "%s is still being deleted", object.GetName())
			g.Expect(upToDate(object)).To(BeTrue(), object.GetName())
			if object.GetProcessSpec().State == v1alpha1.StateStopped {
				g.Expect(is(object, v1alpha1.ConditionStalled)).To(BeTrue(), "%s: %s", object.GetName(), tell(object))
				continue
			}
			g.Expect(is(object, v1alpha1.ConditionReady)).To(BeTrue(), "%s: %s", object.GetName(), tell(object))
			want = append(want, int(object.GetProcessStatus().Process.PID))
		}
		for _, run := range runs {
			running := workloads(run)
			g.Expect(running).To(HaveLen(1), "processes of run %s", run)
			want = append(want, running...)
		}
		g.Expect(workloads("")).To(ConsistOf(want), "processes are those of the objects that want one")
	}).Should(Succeed())
}

// until waits as Eventually does, for goroutines: it gives an error instead of failing.
func until(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		ok, err := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("it did not happen in time"), err)
		case <-ticker.C:
		}
	}
}
