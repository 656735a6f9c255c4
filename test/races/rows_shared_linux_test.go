// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"net"
	"os"
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
)

var _ = row("S08", "the limit holds: of a hundred creates at once ten servers come", func(ctx context.Context) {
	const limit = 10
	create := k8s.Create
	if fault != nil && fault.noQuota {
		create = func(ctx context.Context, object client.Object, options ...client.CreateOption) error {
			var list v1alpha1.DevServerList
			if err := k8s.List(ctx, &list, client.InNamespace(y.namespace)); err != nil {
				return err
			}
			if len(list.Items) >= limit {
				return exceeded()
			}
			return k8s.Create(ctx, object, options...)
		}
	} else {
		limitServers(ctx, limit)
	}
	all(100, func(i int) error {
		dev := server(fmt.Sprintf("web-%d", i))
		return until(ctx, func() (bool, error) {
			err := create(ctx, dev.DeepCopy())
			// The quota was changed by somebody else just now: try again, as everybody has to.
			return err == nil || apierrors.IsForbidden(err), err
		})
	})
	var list v1alpha1.DevServerList
	Expect(k8s.List(ctx, &list, client.InNamespace(y.namespace))).To(Succeed())
	Expect(list.Items).To(HaveLen(limit), "exactly ten servers were let in")
	processesAreAsTheSpecsSay(ctx)
	Expect(notes("starts", "")).To(HaveLen(limit), "exactly ten processes were started")
})

func exceeded() error {
	return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("devservers").GroupResource(), "", fmt.Errorf("exceeded quota"))
}

// limitServers sets a quota, as the controller of quotas does, and waits until the API server goes by it.
func limitServers(ctx context.Context, limit int64) {
	GinkgoHelper()
	hard := corev1.ResourceList{
		"count/devservers.berth.dev": *resource.NewQuantity(limit, resource.DecimalSI),
		"count/configmaps":           *resource.NewQuantity(1, resource.DecimalSI),
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: "limit"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	Expect(k8s.Create(ctx, quota)).To(Succeed())
	quota.Status.Hard = hard
	quota.Status.Used = corev1.ResourceList{"count/devservers.berth.dev": resource.MustParse("0"), "count/configmaps": resource.MustParse("0")}
	Expect(k8s.Status().Update(ctx, quota)).To(Succeed())
	Eventually(ctx, func() bool {
		return apierrors.IsForbidden(k8s.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, GenerateName: "try-"}}))
	}).Should(BeTrue(), "the quota is in force")
}

// conflicted says that the object was told that its port is another's.
func conflicted(dev *v1alpha1.DevServer) bool {
	condition := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionConflict)
	return condition != nil && condition.Status == metav1.ConditionTrue && condition.Reason == v1alpha1.ReasonPortClaimed
}

var _ = row("S09", "two servers claim one port: one owner, and the other starts nothing", func(ctx context.Context) {
	const contenders = 4
	// They are all there before anybody looks, so that the order in which they are looked at must not matter.
	y.halt()
	port := freePort()
	var devs []*v1alpha1.DevServer
	for i := range contenders {
		dev := server(fmt.Sprintf("web-%d", i))
		dev.Spec.Port = ptr.To(port)
		devs = append(devs, dev)
	}
	all(contenders, func(i int) error { return k8s.Create(ctx, devs[i]) })
	for left := devs; len(left) > 0; {
		y.start()
		owner := first(left)
		comesTo(ctx, owner, "is the one owner of the port, being the first", func(o *v1alpha1.DevServer) bool { return is(o, v1alpha1.ConditionReady) })
		var others []*v1alpha1.DevServer
		for _, dev := range left {
			if dev.UID == owner.UID {
				continue
			}
			others = append(others, dev)
			comesTo(ctx, dev, "is not the one owner, and is told so", conflicted)
			Expect(notes("starts", dev.Name)).To(BeEmpty(), "there is one owner, and %s started something", dev.Name)
		}
		// Another manager chooses the same one.
		y.halt()
		y.start()
		Expect(runs(ctx, owner, 1)).To(Equal(workloads(owner.Name)[0]))
		Expect(notes("starts", owner.Name)).To(HaveLen(1))
		Expect(k8s.Delete(ctx, owner)).To(Succeed())
		isGone(ctx, owner)
		left = others
	}
	Expect(notes("collisions", "")).To(BeEmpty())
})

// first gives the one that was created first, or has the lower UID.
func first(devs []*v1alpha1.DevServer) *v1alpha1.DevServer {
	best := devs[0]
	for _, dev := range devs[1:] {
		if dev.CreationTimestamp.Before(&best.CreationTimestamp) || dev.CreationTimestamp.Equal(&best.CreationTimestamp) && dev.UID < best.UID {
			best = dev
		}
	}
	return best
}

// freePort gives a port that nobody listens on: below those that Berth allocates, and those that systems give to outgoing connections.
func freePort() int32 {
	GinkgoHelper()
	for port := int32(12000 + os.Getpid()%4000); port < 20000; port++ {
		listener, err := net.Listen("tcp", net.JoinHostPort("", fmt.Sprint(port)))
		if err == nil {
			Expect(listener.Close()).To(Succeed())
			return port
		}
	}
	Fail("no port from 12000 to 20000 is free")
	return 0
}

var _ = row("S10", "a server whose port cannot be verified is tracked, and stopped when it is not wanted", func(ctx context.Context) {
	silent := instanceless("silent")
	elsewhere := instanceless("elsewhere", "-listen", fmt.Sprint(freePort()))
	refusing := server("refusing", "-gate", filepath.Join(y.dir, "never"))
	for dev, reason := range map[*v1alpha1.DevServer]string{
		silent: v1alpha1.ReasonNotListening, elsewhere: v1alpha1.ReasonOtherPort, refusing: v1alpha1.ReasonListening,
	} {
		create(ctx, dev)
		comesTo(ctx, dev, "is tracked although it is not as it should be", func(o *v1alpha1.DevServer) bool {
			condition := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionPortVerified)
			here := workloads(dev.Name)
			return condition != nil && condition.Reason == reason && o.Status.Process != nil && len(here) == 1 &&
				int64(here[0]) == o.Status.Process.PID
		})
	}
	Expect(is(must(ctx, silent), v1alpha1.ConditionReady)).To(BeFalse())
	Expect(is(must(ctx, refusing), v1alpha1.ConditionReady)).To(BeFalse())
	for _, dev := range []*v1alpha1.DevServer{silent, elsewhere, refusing} {
		Eventually(ctx, func() []noted { return notes("starts", dev.Name) }).Should(HaveLen(1), "it is tracked: nothing was started beside it")
		Expect(set(ctx, dev, stopped)).To(Succeed())
		rests(ctx, dev)
		Expect(workloads(dev.Name)).To(BeEmpty(), "what is not tracked any more was stopped")
	}
})

// instanceless gives a DevServer that does not serve on its port.
func instanceless(name string, args ...string) *v1alpha1.DevServer {
	dev := server(name)
	dev.Spec.Process.Command = command(name, args...)
	return dev
}

var _ = row("S11", "an object goes only when its process was seen to be gone", func(ctx context.Context) {
	for _, kind := range []string{"polite", "stubborn"} {
		args := []string{"-slow", "1s", "-child"}
		if kind == "stubborn" {
			args = []string{"-ignore", "-child"}
		}
		i := instance(kind, args...)
		i.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](2)
		create(ctx, i)
		runs(ctx, i, 1)
		Eventually(ctx, func() []int { return workloads(kind + ".child") }).Should(HaveLen(1))
		Expect(k8s.Delete(ctx, i)).To(Succeed())
		Eventually(ctx, func(g Gomega) {
			_, err := get(ctx, i)
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
			// From the first moment on at which the object is not there, no process is.
			if still := append(workloads(kind), workloads(kind+".child")...); len(still) > 0 {
				StopTrying(fmt.Sprintf("the object of %s is gone while processes of it live: %v", kind, still)).Now()
			}
		}).WithPolling(interval / 5).Should(Succeed())
	}
})

var _ = row("S12", "the same command twice: two objects, two processes", func(ctx context.Context) {
	same := command("", "-ignore")[:3] // no name: nothing in it tells one from the other
	one, two := instance("one"), instance("two")
	one.Spec.Process.Command, two.Spec.Process.Command = same, same
	create(ctx, one, two)
	first, second := runs(ctx, one, 1), runs(ctx, two, 1)
	Expect(first).NotTo(Equal(second), "they have a process each")
	Expect(workloads("")).To(ConsistOf(first, second), "they have a process each")
	Expect(set(ctx, one, restart, "1")).To(Succeed())
	third := runs(ctx, one, 2)
	Expect(workloads("")).To(ConsistOf(third, second), "one was restarted, and the other was not")
	Expect(k8s.Delete(ctx, one)).To(Succeed())
	isGone(ctx, one)
	Expect(workloads("")).To(ConsistOf(second), "one has ended, and the other lives")
	Expect(signalsTo(second)).To(BeZero())
})
