// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/testenv"
)

var _ = row("S08", "the limit holds: 100 concurrent creates result in ten servers", func(ctx context.Context) {
	const limit = 10
	create := k8s.Create
	if fault != nil && fault.noQuota {
		create = func(ctx context.Context, object client.Object, options ...client.CreateOption) error {
			var list v1alpha1.DevServerList
			if err := k8s.List(ctx, &list, client.InNamespace(env.namespace)); err != nil {
				return err
			}
			if len(list.Items) >= limit {
				return quotaExceeded()
			}
			return k8s.Create(ctx, object, options...)
		}
	} else {
		limitServers(ctx, limit)
	}
	inParallel(100, func(i int) error {
		dev := newServer(fmt.Sprintf("web-%d", i))
		return pollUntil(ctx, func() (bool, error) {
			err := create(ctx, dev.DeepCopy())
			// Another create changed the quota at the same time: retry, as every client has to.
			return err == nil || apierrors.IsForbidden(err), err
		})
	})
	var list v1alpha1.DevServerList
	Expect(k8s.List(ctx, &list, client.InNamespace(env.namespace))).To(Succeed())
	Expect(list.Items).To(HaveLen(limit), "exactly ten servers were admitted")
	expectProcesses(ctx)
	Expect(notes("starts", "")).To(HaveLen(limit), "exactly ten processes were started")
})

func quotaExceeded() error {
	return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("devservers").GroupResource(), "", fmt.Errorf("exceeded quota"))
}

// limitServers creates a quota, and waits until the API server enforces it. The quota controller counts a new kind of objects only after some time, so limitServers
// writes the first count itself; a conflict means that the controller has written at the same time.
func limitServers(ctx context.Context, limit int64) {
	GinkgoHelper()
	hard := corev1.ResourceList{
		"count/devservers.berth.dev": *resource.NewQuantity(limit, resource.DecimalSI),
		"count/configmaps":           *resource.NewQuantity(1, resource.DecimalSI),
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: env.namespace, Name: "limit"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	Expect(k8s.Create(ctx, quota)).To(Succeed())
	Eventually(ctx, func() error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(quota), quota); err != nil {
			return err
		}
		quota.Status.Hard = hard
		quota.Status.Used = corev1.ResourceList{"count/devservers.berth.dev": resource.MustParse("0"), "count/configmaps": resource.MustParse("0")}
		return k8s.Status().Update(ctx, quota)
	}).Should(Succeed())
	Eventually(ctx, func() bool {
		return apierrors.IsForbidden(k8s.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: env.namespace, GenerateName: "try-"}}))
	}).Should(BeTrue(), "the quota is in force")
}

// hasConflict reports whether the object has the condition Conflict because another object owns its port.
func hasConflict(dev *v1alpha1.DevServer) bool {
	condition := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionConflict)
	return condition != nil && condition.Status == metav1.ConditionTrue && condition.Reason == v1alpha1.ReasonPortClaimed
}

var _ = row("S09", "two servers claim one port: one owner, and the other starts nothing", func(ctx context.Context) {
	const contenders = 4
	// All servers exist before a manager runs, because the owner of the port must not depend on the order of the reconciles.
	env.stopManager()
	port := freePort()
	var devs []*v1alpha1.DevServer
	for i := range contenders {
		dev := newServer(fmt.Sprintf("web-%d", i))
		dev.Spec.Port = ptr.To(port)
		devs = append(devs, dev)
	}
	inParallel(contenders, func(i int) error { return k8s.Create(ctx, devs[i]) })
	for left := devs; len(left) > 0; {
		env.start()
		owner := firstCreated(left)
		waitFor(ctx, owner, "is the one owner of the port, because it was created first", func(o *v1alpha1.DevServer) bool { return isRunning(o) })
		var others []*v1alpha1.DevServer
		for _, dev := range left {
			if dev.UID == owner.UID {
				continue
			}
			others = append(others, dev)
			waitFor(ctx, dev, "is not the one owner, and reports that", hasConflict)
			Expect(notes("starts", dev.Name)).To(BeEmpty(), "there is one owner, and %s started a process", dev.Name)
		}
		// Another manager chooses the same owner.
		env.stopManager()
		env.start()
		Expect(waitForRunning(ctx, owner, 1)).To(Equal(workloadPIDs(owner.Name)[0]))
		Expect(notes("starts", owner.Name)).To(HaveLen(1))
		Expect(k8s.Delete(ctx, owner)).To(Succeed())
		waitForGone(ctx, owner)
		left = others
	}
	Expect(notes("collisions", "")).To(BeEmpty())
})

// firstCreated returns the server that was created first or, of several with the same creation time, the one with the lowest UID.
func firstCreated(devs []*v1alpha1.DevServer) *v1alpha1.DevServer {
	best := devs[0]
	for _, dev := range devs[1:] {
		if dev.CreationTimestamp.Before(&best.CreationTimestamp) || dev.CreationTimestamp.Equal(&best.CreationTimestamp) && dev.UID < best.UID {
			best = dev
		}
	}
	return best
}

func freePort() int32 {
	GinkgoHelper()
	port, err := testenv.FreePort()
	Expect(err).NotTo(HaveOccurred())
	return port
}

var _ = row("S10", "a server whose port cannot be verified is tracked, and is stopped when it is no longer wanted", func(ctx context.Context) {
	silent := newSilentServer("silent")
	elsewhere := newSilentServer("elsewhere", "-listen", fmt.Sprint(freePort()))
	refusing := newServer("refusing", "-gate", filepath.Join(env.dir, "never"))
	for dev, reason := range map[*v1alpha1.DevServer]string{
		silent: v1alpha1.ReasonNotListening, elsewhere: v1alpha1.ReasonOtherPort, refusing: "",
	} {
		create(ctx, dev)
		waitFor(ctx, dev, "is tracked although it does not serve as specified", func(o *v1alpha1.DevServer) bool {
			found := "" // a condition that has its usual status is omitted
			if condition := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionPortVerified); condition != nil {
				found = condition.Reason
			}
			here := workloadPIDs(dev.Name)
			return found == reason && o.Status.Process != nil && len(here) == 1 &&
				int64(here[0]) == o.Status.Process.PID
		})
	}
	Expect(isRunning(mustGet(ctx, silent))).To(BeFalse())
	Expect(isRunning(mustGet(ctx, refusing))).To(BeFalse())
	for _, dev := range []*v1alpha1.DevServer{silent, elsewhere, refusing} {
		Eventually(ctx, func() []workloadNote { return notes("starts", dev.Name) }).Should(HaveLen(1), "the server is tracked: no second process was started")
		Expect(patchFormatted(ctx, dev, stopPatch)).To(Succeed())
		waitForStopped(ctx, dev)
		Expect(workloadPIDs(dev.Name)).To(BeEmpty(), "no process of the server remains, tracked or not")
	}
})

// newSilentServer returns a DevServer that does not serve on its port.
func newSilentServer(name string, args ...string) *v1alpha1.DevServer {
	dev := newServer(name)
	dev.Spec.Process.Command = workloadCommand(name, args...)
	return dev
}

var _ = row("S11", "an object is deleted only after its process was observed to be gone", func(ctx context.Context) {
	for _, kind := range []string{"polite", "stubborn"} {
		args := []string{"-slow", "1s", "-child"}
		if kind == "stubborn" {
			args = []string{"-ignore", "-child"}
		}
		i := newInstance(kind, args...)
		i.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](2)
		create(ctx, i)
		waitForRunning(ctx, i, 1)
		Eventually(ctx, func() []int { return workloadPIDs(kind + ".child") }).Should(HaveLen(1))
		Expect(k8s.Delete(ctx, i)).To(Succeed())
		Eventually(ctx, func(g Gomega) {
			_, err := get(ctx, i)
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
			// As soon as the object does not exist, none of its processes may exist.
			if still := append(workloadPIDs(kind), workloadPIDs(kind+".child")...); len(still) > 0 {
				StopTrying(fmt.Sprintf("object %s was deleted while its processes still run: %v", kind, still)).Now()
			}
		}).WithPolling(interval / 5).Should(Succeed())
	}
})

var _ = row("S11-vanished", "an object vanishes although it has a finalizer: a new object with its name starts only after the process of the old one has exited", func(ctx context.Context) {
	for _, kind := range []string{"seen", "unseen"} {
		old := newInstance(kind, "-ignore")
		create(ctx, old)
		waitForRunning(ctx, old, 1)
		if kind == "unseen" {
			env.stopManager() // the next manager finds only the process and the new object
		}
		Expect(k8s.Delete(ctx, old)).To(Succeed())
		Expect(patchObject(ctx, old, `{"metadata":{"finalizers":null}}`)).To(Succeed())
		waitForGone(ctx, old)
		Expect(workloadPIDs(kind)).To(HaveLen(1), "the process of the old object still runs")
		successor := newInstance(kind)
		create(ctx, successor)
		env.start()
		waitForRunning(ctx, successor, 1)
		expectNoOverlap()
		Expect(notes("starts", kind)).To(HaveLen(2))
	}
})

var _ = row("S12", "the same command twice: two objects, two processes", func(ctx context.Context) {
	same := workloadCommand("", "-ignore")[:3] // without a name nothing distinguishes the two commands
	one, two := newInstance("one"), newInstance("two")
	one.Spec.Process.Command, two.Spec.Process.Command = same, same
	create(ctx, one, two)
	first, second := waitForRunning(ctx, one, 1), waitForRunning(ctx, two, 1)
	Expect(first).NotTo(Equal(second), "each object has its own process")
	Expect(workloadPIDs("")).To(ConsistOf(first, second), "each object has its own process")
	Expect(patchFormatted(ctx, one, restartPatch, "1")).To(Succeed())
	third := waitForRunning(ctx, one, 2)
	Expect(workloadPIDs("")).To(ConsistOf(third, second), "one was restarted, and the other was not")
	Expect(k8s.Delete(ctx, one)).To(Succeed())
	waitForGone(ctx, one)
	Expect(workloadPIDs("")).To(ConsistOf(second), "one has ended, and the other is still running")
	Expect(signalsTo(second)).To(BeZero())
})
