// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestName_StaysAndDiffersByDirectoryAndMachine(t *testing.T) {
	g := NewWithT(t)
	one, two := t.TempDir(), filepath.Join(t.TempDir(), "new")
	first, err := nameOf(one, "machine")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(nameOf(one, "machine")).To(Equal(first))
	g.Expect(nameOf(two, "machine")).NotTo(Equal(first))
	copied, err := nameOf(one, "other machine")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(copied).NotTo(Equal(first), "a copied directory contains records of processes on another host")
	g.Expect(nameOf(one, "other machine")).To(Equal(copied))
}

func TestName_RefusesADamagedFile(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, nameFile), nil, 0o600)).To(Succeed())
	_, err := Name(dir)
	g.Expect(err).To(MatchError(ContainSubstring("restore the file")), "a new name would give up all objects of this host")
}

func TestLabel_IsValidForAnyHostname(t *testing.T) {
	for hostname, want := range map[string]string{
		"laptop": "laptop", "Build_7.example.org": "build-7", "": "host", "---": "host", "ä.b": "host",
		"a-very-long-name-of-a-machine-in-a-fleet": "a-very-long-name-of-a-machine-in",
	} {
		if got := label(hostname); got != want {
			t.Errorf("label(%q) = %q, want %q", hostname, got, want)
		}
	}
}

// fixture is one API server with the Leases of several hosts.
type fixture struct {
	api   client.Client
	clock *clocktesting.FakeClock
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	scheme := apiruntime.NewScheme()
	for _, add := range []func(*apiruntime.Scheme) error{coordinationv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return &fixture{fake.NewClientBuilder().WithScheme(scheme).Build(), clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))}
}

func (f *fixture) newHosts(name string, runtimes ...v1alpha1.RuntimeType) *Hosts {
	return New(Options{Name: name, Runtimes: runtimes, Namespace: "berth-system", Client: f.api, Reader: f.api, Clock: f.clock, Log: logr.Discard()})
}

func TestHosts_SeeEachOther(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	f := newFixture(t)
	a, b := f.newHosts("a", v1alpha1.RuntimeHost, v1alpha1.RuntimeTmux), f.newHosts("b", v1alpha1.RuntimePod)

	_, known := a.Reports("b")
	g.Expect(known).To(BeFalse(), "before the first read")
	g.Expect(b.report(ctx)).To(Succeed())
	g.Expect(a.report(ctx)).To(Succeed())
	g.Expect(a.look(ctx)).To(Succeed())
	reports := func(host string) bool {
		reports, known := a.Reports(host)
		g.Expect(known).To(BeTrue())
		return reports
	}
	serves := func(runtime v1alpha1.RuntimeType) bool {
		served, _ := a.Served(runtime)
		return served
	}
	g.Expect(reports("a")).To(BeTrue())
	g.Expect(reports("b")).To(BeTrue())
	g.Expect(reports("c")).To(BeFalse())
	g.Expect(serves(v1alpha1.RuntimePod)).To(BeTrue())
	g.Expect(serves(v1alpha1.RuntimeHost)).To(BeFalse(), "served only by this host")

	f.clock.Step(Duration)
	g.Expect(a.look(ctx)).To(Succeed())
	g.Expect(reports("b")).To(BeFalse(), "the Lease was not renewed")
	g.Expect(serves(v1alpha1.RuntimePod)).To(BeFalse())
	g.Expect(b.report(ctx)).To(Succeed())
	g.Expect(a.look(ctx)).To(Succeed())
	g.Expect(reports("b")).To(BeTrue(), "the host reports again")
}

func TestHosts_IgnoresExpiredLease(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	g.Expect(f.newHosts("b").report(t.Context())).To(Succeed())
	f.clock.Step(time.Hour)
	a := f.newHosts("a")
	g.Expect(a.look(t.Context())).To(Succeed())
	reports, known := a.Reports("b")
	g.Expect(known).To(BeTrue())
	g.Expect(reports).To(BeFalse())
}

func TestHosts_RenewsUntilTheContextEnds(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	a := f.newHosts("a", v1alpha1.RuntimeHost)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Start(ctx) }()
	renewed := func() time.Time {
		lease := &coordinationv1.Lease{}
		if err := f.api.Get(t.Context(), client.ObjectKey{Namespace: "berth-system", Name: "berth-host-a"}, lease); err != nil {
			return time.Time{}
		}
		return lease.Spec.RenewTime.Time
	}
	g.Eventually(renewed).WithTimeout(30 * time.Second).Should(BeTemporally("==", f.clock.Now()))
	g.Eventually(f.clock.HasWaiters).WithTimeout(30 * time.Second).Should(BeTrue())
	f.clock.Step(Interval)
	g.Eventually(renewed).WithTimeout(30 * time.Second).Should(BeTemporally("==", f.clock.Now()))
	cancel()
	g.Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
}

// steppedClock is a fake clock whose wall clock differs from it by step.
type steppedClock struct {
	*clocktesting.FakeClock
	step atomic.Int64
}

func (c *steppedClock) Now() time.Time { return c.FakeClock.Now().Add(time.Duration(c.step.Load())) }

// TestHosts_RenewsAfterAStepOfTheClock checks that a Lease does not look old, or come from the future, for up to Interval after a step of the wall clock.
func TestHosts_RenewsAfterAStepOfTheClock(t *testing.T) {
	for _, step := range []time.Duration{15 * time.Minute, -15 * time.Minute} {
		t.Run(step.String(), func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			a, wall := f.newHosts("a", v1alpha1.RuntimeHost), &steppedClock{FakeClock: f.clock}
			a.options.Clock = wall
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- a.Start(ctx) }()
			renewed := func() time.Time {
				lease := &coordinationv1.Lease{}
				if err := f.api.Get(t.Context(), client.ObjectKey{Namespace: "berth-system", Name: "berth-host-a"}, lease); err != nil {
					return time.Time{}
				}
				return lease.Spec.RenewTime.Time
			}
			began := wall.Now()
			g.Eventually(renewed).WithTimeout(30 * time.Second).Should(BeTemporally("==", began))
			f.clock.Step(renewalCheck)
			g.Consistently(renewed).WithTimeout(100*time.Millisecond).Should(BeTemporally("==", began), "no renewal without a step")
			wall.step.Store(int64(step))
			f.clock.Step(renewalCheck)
			g.Eventually(renewed).WithTimeout(30 * time.Second).Should(BeTemporally("==", wall.Now()))
			cancel()
			g.Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
		})
	}
}

func TestHosts_ClaimsObjectsWithoutAProcess(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	f := newFixture(t)
	plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
	g.Expect(f.api.Create(ctx, plan)).To(Succeed())
	late := plan.DeepCopy()
	g.Expect(f.newHosts("a").Claim(ctx, f.api, plan)).To(BeTrue())
	g.Expect(plan.Labels).To(HaveKeyWithValue(v1alpha1.LabelHost, "a"))
	_, err := f.newHosts("b").Claim(ctx, f.api, late)
	g.Expect(err).To(HaveOccurred(), "an optimistic lock")
	g.Expect(f.newHosts("b").Claim(ctx, f.api, plan)).To(BeFalse())
	g.Expect((*Hosts)(nil).Claim(ctx, f.api, plan)).To(BeTrue(), "a single manager without hosts")
}

func TestHosts_LogsEachOutageOnce(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	var away atomic.Bool
	var attempts, lines atomic.Int32
	f.api = interceptor.NewClient(f.api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			defer attempts.Add(1)
			if away.Load() {
				return errors.New("the API server is away")
			}
			return api.Get(ctx, key, object, opts...)
		},
	})
	a := f.newHosts("a", v1alpha1.RuntimeHost)
	a.options.Log = funcr.New(func(string, string) { lines.Add(1) }, funcr.Options{})
	away.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Start(ctx) }()
	renew := func(times int32) {
		for until := attempts.Load() + times; attempts.Load() < until; {
			g.Eventually(f.clock.HasWaiters).WithTimeout(30 * time.Second).Should(BeTrue())
			before := attempts.Load()
			f.clock.Step(Interval)
			g.Eventually(attempts.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", before))
		}
	}
	renew(5)
	away.Store(false)
	renew(2)
	away.Store(true)
	renew(5)
	cancel()
	g.Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
	g.Expect(lines.Load()).To(BeEquivalentTo(2))
}
