// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/hosts"
)

// assignedTo returns a change that assigns web to a host.
func assignedTo(host string) func(*v1alpha1.DevServer) {
	return func(server *v1alpha1.DevServer) {
		server.Labels = map[string]string{v1alpha1.LabelHost: host}
		server.Status.HostName = host
	}
}

func TestAdopt_AssignsObjectToHost(t *testing.T) {
	for name, example := range map[string]struct {
		objects []client.Object
		args    []string
		code    int
		out     string
		err     string
		label   string
	}{
		"from a host that reports": {
			objects: []client.Object{web(assignedTo("a"))}, args: []string{"devserver/web", "--host", "b"}, out: "devserver/web moves to host b after host a has stopped it", label: "b",
		},
		"without a host":      {objects: []client.Object{web()}, args: []string{"devserver/web", "--host", "b"}, out: "now belongs to host b", label: "b"},
		"same host":           {objects: []client.Object{web(assignedTo("b"))}, args: []string{"devserver/web", "--host", "b"}, out: "already belongs to host b", label: "b"},
		"invalid host name":   {objects: []client.Object{web(assignedTo("a"))}, args: []string{"devserver/web", "--host", "b c"}, code: 1, err: `invalid host name "b c"`, label: "a"},
		"no directory":        {objects: []client.Object{web(assignedTo("a"))}, args: []string{"devserver/web", "--state-dir", "/nonexistent"}, code: 1, err: "no manager has used the state directory", label: "a"},
		"no object":           {objects: []client.Object{web(assignedTo("a"))}, args: []string{"devserver/nope", "--host", "b"}, code: 3, err: "does not exist", label: "a"},
		"no arguments":        {objects: []client.Object{web(assignedTo("a"))}, code: 2, err: "requires at least 1 arg", label: "a"},
		"already on the host": {objects: []client.Object{web(assignedTo("b"))}, args: []string{"devserver/web", "--host", "b", "--host-is-gone"}, out: "already belongs to host b", label: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(example.objects...)
			g.Expect(f.run(t.Context(), append([]string{"adopt"}, example.args...)...)).To(Equal(example.code), f.err.String())
			g.Expect(f.out.String()).To(ContainSubstring(example.out))
			g.Expect(f.err.String()).To(ContainSubstring(example.err))
			g.Expect(readWeb(g, f).Labels[v1alpha1.LabelHost]).To(Equal(example.label))
			g.Expect(readWeb(g, f).Annotations).NotTo(HaveKey(v1alpha1.AnnotationLostHost))
		})
	}
}

func TestAdopt_TakesTheHostOfTheStateDirectory(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	self, err := hosts.Name(dir)
	g.Expect(err).NotTo(HaveOccurred())
	f := newFixture(web(assignedTo("a")))
	g.Expect(f.run(t.Context(), "adopt", "devserver/web", "--state-dir", dir)).To(BeZero())
	g.Expect(readWeb(g, f).Labels).To(HaveKeyWithValue(v1alpha1.LabelHost, self))
}

func TestAdopt_RefusesRuns(t *testing.T) {
	g := NewWithT(t)
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"}, Status: v1alpha1.StrategyRunStatus{
		ProcessStatus: v1alpha1.ProcessStatus{HostName: "a"},
	}}
	f := newFixture(run)
	g.Expect(f.run(t.Context(), "adopt", "strategyrun/r", "--host", "b")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring("runs cannot be moved: cancel it with berth stop strategyrun/r"))
}

func hostLease(host string) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(time.Now())
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "berth-host-" + host}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed},
	}
}

func TestAdopt_HostIsGoneRequiresSilentLease(t *testing.T) {
	for name, example := range map[string]struct {
		lease  *coordinationv1.Lease
		renews bool
	}{
		"it no longer reports": {lease: hostLease("a")},
		"it has no Lease":      {},
		"it still reports":     {lease: hostLease("a"), renews: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			objects := []client.Object{web(assignedTo("a"))}
			if example.lease != nil {
				objects = append(objects, example.lease)
			}
			f := newFixture(objects...)
			clock := clocktesting.NewFakeClock(time.Now())
			f.app.clock = clock
			code := make(chan int, 1)
			go func() { code <- f.run(t.Context(), "adopt", "devserver/web", "--host", "b", "--host-is-gone") }()
			if example.lease != nil {
				g.Eventually(clock.Waiters, timeout).Should(Equal(2), "a timer and a ticker")
				g.Expect(readWeb(g, f).Labels).To(HaveKeyWithValue(v1alpha1.LabelHost, "a"), "before the Lease has been watched long enough")
			}
			if example.renews {
				later := metav1.NewMicroTime(time.Now().Add(hosts.Interval))
				lease := &coordinationv1.Lease{}
				g.Expect(f.api.Get(t.Context(), client.ObjectKeyFromObject(example.lease), lease)).To(Succeed())
				lease.Spec.RenewTime = &later
				g.Expect(f.api.Update(t.Context(), lease)).To(Succeed())
				clock.Step(time.Second)
			} else {
				clock.Step(leaseWatch)
			}
			server := func() *v1alpha1.DevServer { return readWeb(g, f) }
			if example.renews {
				g.Eventually(code, timeout).Should(Receive(Equal(1)))
				g.Expect(f.err.String()).To(ContainSubstring("host a still renews its Lease: omit --host-is-gone"))
				g.Expect(server().Labels).To(HaveKeyWithValue(v1alpha1.LabelHost, "a"))
				g.Expect(server().Annotations).To(BeEmpty())
				return
			}
			g.Eventually(code, timeout).Should(Receive(BeZero()))
			g.Expect(f.out.String()).To(ContainSubstring("devserver/web now belongs to host b; host a was declared lost"))
			g.Expect(server().Labels).To(HaveKeyWithValue(v1alpha1.LabelHost, "b"))
			g.Expect(server().Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationLostHost, "a"))
		})
	}
}
