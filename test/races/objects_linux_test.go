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

// workloadCommand returns the argv of a workload. No other workload with that name may run at the same time.
func workloadCommand(name string, args ...string) []string {
	return append([]string{filepath.Join(programs, "workload"), "-dir", env.dir, "-name", name}, args...)
}

// newServer returns a DevServer whose workload serves HTTP on the port that Berth assigns.
func newServer(name string, args ...string) *v1alpha1.DevServer {
	dev := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: env.namespace, Name: name}}
	setCommand(&dev.Spec.ProcessSpec, workloadCommand(name, append([]string{"-serve"}, args...)...))
	return dev
}

// newInstance returns an Instance that runs a workload.
func newInstance(name string, args ...string) *v1alpha1.Instance {
	i := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: env.namespace, Name: name}}
	setCommand(&i.Spec.ProcessSpec, workloadCommand(name, args...))
	return i
}

func setCommand(spec *v1alpha1.ProcessSpec, argv []string) {
	spec.Process.Command = argv
	// Set a long grace period, because a kill would hide that a process received no stop signal or two stop signals.
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

// patchFormatted patches an object as a user does, no matter what other clients write to the object at the same time.
func patchFormatted(ctx context.Context, object client.Object, patch string, values ...any) error {
	return patchObject(ctx, object, fmt.Sprintf(patch, values...))
}

// patchObject is patchFormatted with a complete patch.
func patchObject(ctx context.Context, object client.Object, patch string) error {
	return retryRequest(ctx, func() error {
		return k8s.Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(patch)))
	})
}

// retryRequest retries a request that the API server rejects because too many other clients write to the same object, or because the machine is slow.
func retryRequest(ctx context.Context, do func() error) error {
	for {
		err := do()
		busy := apierrors.IsConflict(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err)
		if !busy || ctx.Err() != nil {
			return err
		}
	}
}

const (
	stopPatch    = `{"spec":{"state":"Stopped"}}`
	runPatch     = `{"spec":{"state":"Running"}}`
	restartPatch = `{"spec":{"restartToken":%q}}`
)

// get reads the object into a new value, because a Get into an existing one keeps some of its previous content.
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

func mustGet[T process.Object](ctx context.Context, object T) T {
	GinkgoHelper()
	fresh, err := get(ctx, object)
	Expect(err).NotTo(HaveOccurred())
	return fresh
}

func isTrue(object process.Object, conditionType string) bool {
	return meta.IsStatusConditionTrue(object.GetProcessStatus().Conditions, conditionType)
}

// isUpToDate reports whether the status describes the current spec.
func isUpToDate(object process.Object) bool {
	return object.GetProcessStatus().ObservedGeneration == object.GetGeneration()
}

// waitFor waits until the status is up to date and condition returns true for the object, and returns the object as it was at that time.
func waitFor[T process.Object](ctx context.Context, object T, what string, condition func(T) bool) T {
	GinkgoHelper()
	var last T
	Eventually(ctx, func() (bool, error) {
		var err error
		last, err = get(ctx, object)
		return err == nil && isUpToDate(last) && condition(last), err
	}).Should(BeTrue(), func() string { return fmt.Sprintf("%s: want: %s; got: %s", object.GetName(), what, describe(last)) })
	return last
}

func describe(object process.Object) string {
	status := object.GetProcessStatus()
	text := fmt.Sprintf("incarnation %d, stopping %v, last exit %v;", status.Incarnation, status.Stopping, status.LastExit)
	for _, c := range status.Conditions {
		text += fmt.Sprintf(" %s=%s/%s", c.Type, c.Status, c.Reason)
	}
	return text
}

// waitForRunning waits until that incarnation is ready and its program has recorded its start, and returns the PID.
func waitForRunning[T process.Object](ctx context.Context, object T, incarnation int64) int {
	GinkgoHelper()
	ready := waitFor(ctx, object, fmt.Sprintf("runs incarnation %d", incarnation), func(o T) bool {
		status := o.GetProcessStatus()
		return isRunning(o) && status.Process != nil && status.Process.Incarnation == incarnation
	})
	pid := int(ready.GetProcessStatus().Process.PID)
	// Without a probe a process is ready as soon as its program is executed. At that time the program has not yet recorded its start and does not yet
	// handle signals.
	Eventually(ctx, func() bool {
		return slices.ContainsFunc(notes("starts", ""), func(n workloadNote) bool { return n.pid == pid })
	}).Should(BeTrue(), "%s has started", object.GetName())
	return pid
}

// isRunning reports whether a process of the object runs and is ready.
func isRunning(object process.Object) bool {
	ready := meta.FindStatusCondition(object.GetProcessStatus().Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.Reason == v1alpha1.ReasonRunning
}

// isStopped reports whether the object is stopped as its spec requests.
func isStopped(object process.Object) bool {
	ready := meta.FindStatusCondition(object.GetProcessStatus().Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.Reason == v1alpha1.ReasonStopped
}

// waitForStopped waits until the object is stopped.
func waitForStopped[T process.Object](ctx context.Context, object T) {
	GinkgoHelper()
	waitFor(ctx, object, "is stopped", func(o T) bool { return isStopped(o) })
}

// waitForGone waits until the object does not exist any more. The parameter "otherwise" is a prefix of the failure message.
func waitForGone[T process.Object](ctx context.Context, object T, otherwise ...string) {
	GinkgoHelper()
	Eventually(ctx, func() bool {
		fresh, err := get(ctx, object)
		return apierrors.IsNotFound(err) || err == nil && fresh.GetUID() != object.GetUID()
	}).Should(BeTrue(), "%s%s is deleted", strings.Join(otherwise, " "), object.GetName())
}

// allObjects returns all DevServers, Instances and LanguageServers of the row.
func allObjects(ctx context.Context, g Gomega) []process.Object {
	var servers v1alpha1.DevServerList
	var instances v1alpha1.InstanceList
	var languageServers v1alpha1.LanguageServerList
	g.Expect(k8s.List(ctx, &servers, client.InNamespace(env.namespace))).To(Succeed())
	g.Expect(k8s.List(ctx, &instances, client.InNamespace(env.namespace))).To(Succeed())
	g.Expect(k8s.List(ctx, &languageServers, client.InNamespace(env.namespace))).To(Succeed())
	var all []process.Object
	for i := range languageServers.Items {
		all = append(all, &languageServers.Items[i])
	}
	for i := range servers.Items {
		all = append(all, &servers.Items[i])
	}
	for i := range instances.Items {
		all = append(all, &instances.Items[i])
	}
	return all
}

// expectProcesses waits until the running processes are exactly those that the objects and the given runs require.
func expectProcesses(ctx context.Context, runs ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		var want []int
		for _, object := range allObjects(ctx, g) {
			g.Expect(object.GetDeletionTimestamp().IsZero()).To(BeTrue(), "%s is still being deleted", object.GetName())
			g.Expect(isUpToDate(object)).To(BeTrue(), object.GetName())
			if object.GetProcessSpec().State == v1alpha1.StateStopped {
				g.Expect(isStopped(object)).To(BeTrue(), "%s: %s", object.GetName(), describe(object))
				continue
			}
			g.Expect(isRunning(object)).To(BeTrue(), "%s: %s", object.GetName(), describe(object))
			want = append(want, int(object.GetProcessStatus().Process.PID))
		}
		for _, run := range runs {
			running := workloadPIDs(run)
			g.Expect(running).To(HaveLen(1), "one process of run %s", run)
			want = append(want, running...)
		}
		g.Expect(workloadPIDs("")).To(ConsistOf(want), "the processes are those of the objects that require one")
	}).Should(Succeed())
}

// pollUntil is Eventually for goroutines: it returns an error instead of failing the spec.
func pollUntil(ctx context.Context, done func() (bool, error)) error {
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
			return errors.Join(errors.New("timed out"), err)
		case <-ticker.C:
		}
	}
}
