// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	clock *clocktesting.FakeClock
	fake  *fake.Runtime
	*collector
}

func newFixture(t *testing.T, funcs interceptor.Funcs) *fixture {
	t.Helper()
	c := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	r := fake.New(t.Context(), c)
	api := fakeclient.NewClientBuilder().WithScheme(Scheme()).WithInterceptorFuncs(funcs).WithObjects(
		&v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one", UID: "owned-instance"}},
		&v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "two", UID: "owned-devserver"}},
	).Build()
	opts := Options{Runtimes: runtime.NewRegistry(r, logr.Discard()), Clock: c, LeftoverInterval: time.Hour, LeftoverGrace: 10 * time.Second}
	return &fixture{clock: c, fake: r, collector: newCollector(opts, nil, api, logr.Discard())}
}

func (w *fixture) startProcess(g *WithT, uid types.UID, program fake.Program) {
	w.fake.Program(string(uid), program)
	g.Expect(w.fake.Start(context.Background(), runtime.Process{UID: uid, Incarnation: 4, Command: []string{string(uid)}, StopSignal: "SIGTERM"})).To(Succeed())
}

func TestSweep_StopsOnlyOrphans(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, interceptor.Funcs{})
	w.startProcess(g, "owned-instance", fake.Program{})
	w.startProcess(g, "owned-devserver", fake.Program{})
	w.startProcess(g, "polite", fake.Program{})
	w.startProcess(g, "stubborn", fake.Program{IgnoreStop: true})
	w.startProcess(g, "lost", fake.Program{})
	w.fake.Lose("lost", "the node does not respond")

	changed, err := w.sweep(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed).To(BeTrue())
	g.Expect(w.fake.Live("polite")).To(BeEmpty())
	g.Expect(w.fake.Live("stubborn")).NotTo(BeEmpty())

	w.clock.Step(9 * time.Second)
	_, err = w.sweep(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.fake.Live("stubborn")).NotTo(BeEmpty(), "not killed before the end of its grace period")
	g.Expect(w.fake.Count("stubborn", fake.Stop)).To(Equal(1), "the stop signal is sent once")

	w.clock.Step(time.Second)
	for range 2 {
		_, err = w.sweep(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(w.fake.Known()).To(ConsistOf(types.UID("owned-instance"), types.UID("owned-devserver"), types.UID("lost")))
	g.Expect(w.fake.Live("owned-instance")).To(Equal([]int64{4}))
	g.Expect(w.fake.Live("owned-devserver")).To(Equal([]int64{4}))
	g.Expect(w.fake.Live("lost")).To(Equal([]int64{4}), "an unidentified process is not stopped")
}

// unobservable is a runtime that lists its incarnations but does not find them by UID.
type unobservable struct{ runtime.Runtime }

func (unobservable) Observe(context.Context, types.UID) ([]facts.Incarnation, error) { return nil, nil }

func TestSweep_StopsListedButUnobservedOrphans(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, interceptor.Funcs{})
	w.runtimes = runtime.NewRegistry(unobservable{w.fake}, logr.Discard())
	w.startProcess(g, "polite", fake.Program{})
	w.startProcess(g, "stubborn", fake.Program{IgnoreStop: true})

	_, err := w.sweep(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.fake.Live("polite")).To(BeEmpty())
	g.Expect(w.fake.Live("stubborn")).NotTo(BeEmpty(), "stopped, with its grace period still running")

	w.clock.Step(10 * time.Second)
	_, err = w.sweep(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.fake.Live("stubborn")).To(BeEmpty(), "killed after its grace period")
}

func TestSweep_ReleasesAdoptedSessions(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, interceptor.Funcs{})
	sessions := fake.WithSessions(w.fake)
	w.runtimes = runtime.NewRegistry(sessions, logr.Discard())
	sessions.Found("work")
	g.Expect(sessions.Start(t.Context(), runtime.Process{UID: "gone", Incarnation: 1, Command: []string{"agent"}, Config: []byte(`{"session":"work"}`)})).To(Succeed())

	_, err := w.sweep(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.fake.Count("gone", fake.Stop)).To(BeZero())
	g.Expect(sessions.There("work")).To(BeTrue(), "the session stays and can be adopted again")
	g.Expect(w.fake.Known()).To(BeEmpty())
}

func TestSweep_StopsNothingWhenListFails(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("the API server is away")
		},
	})
	w.startProcess(g, "owned-instance", fake.Program{})
	_, err := w.sweep(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("the API server is away")))
	g.Expect(w.fake.Live("owned-instance")).To(Equal([]int64{4}))
}

// simulate sweeps until the time has passed. It returns the number of sweeps.
func (w *fixture) simulate(t *testing.T, time time.Duration) (sweeps int) {
	t.Helper()
	for end := w.clock.Now().Add(time); w.clock.Now().Before(end); sweeps++ {
		_, wait := w.round(t.Context())
		w.clock.Step(wait)
	}
	return sweeps
}

// logs makes the collector count its log lines by message.
func (w *fixture) logs() map[string]int {
	lines := map[string]int{}
	w.log = funcr.New(func(_, args string) {
		for _, message := range []string{"Cannot check for", "Can check for", "Cannot determine", "Stopping"} {
			if strings.Contains(args, message) {
				lines[message]++
			}
		}
	}, funcr.Options{})
	return lines
}

func TestCollector_ChecksUnknownOrphanWithBackOff(t *testing.T) {
	g := NewWithT(t)
	lists := 0
	w := newFixture(t, interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		lists++
		return api.List(ctx, list, opts...)
	}})
	lines := w.logs()
	w.interval = 3 * time.Minute
	w.startProcess(g, "lost", fake.Program{})
	w.fake.Lose("lost", "the node does not respond")
	sweeps := w.simulate(t, time.Hour)
	g.Expect(sweeps).To(BeNumerically("<=", 32), "as often as without an orphan, after ten sweeps of the back-off")
	g.Expect(lists).To(Equal(len(listKinds) * sweeps))
	g.Expect(lines).To(Equal(map[string]int{"Cannot determine": 1}))

	// The next change is acted on at once, and the process gets its grace period.
	w.fake.Find("lost")
	least, _ := w.round(t.Context())
	g.Expect(least).To(Equal(pace))
	g.Expect(w.fake.Count("lost", fake.Stop)).To(Equal(1))
	g.Expect(w.fake.Count("lost", fake.Kill)).To(BeZero())
}

func TestCollector_KillsAtEndOfGracePeriodDespiteBackOff(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, interceptor.Funcs{})
	w.startProcess(g, "stubborn", fake.Program{IgnoreStop: true})
	w.startProcess(g, "lost", fake.Program{})
	w.fake.Lose("lost", "the node does not respond")
	begun := w.clock.Now()
	g.Expect(w.simulate(t, w.grace)).To(BeNumerically("<=", 8))
	g.Expect(w.clock.Since(begun)).To(Equal(w.grace), "the next sweep is at the end of the grace period")
	g.Expect(w.fake.Live("stubborn")).NotTo(BeEmpty())
	w.simulate(t, pace)
	g.Expect(w.fake.Live("stubborn")).To(BeEmpty())
}

func TestCollector_RetriesFailedListWithBackOff(t *testing.T) {
	g := NewWithT(t)
	away := errors.New("the API server is away")
	w := newFixture(t, interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		return cmp.Or(away, api.List(ctx, list, opts...))
	}})
	lines := w.logs()
	w.startProcess(g, "stray", fake.Program{})
	g.Expect(w.simulate(t, time.Hour)).To(And(BeNumerically(">", 110), BeNumerically("<=", 130)), "every 30 s, and more often at first")
	least, most := w.round(t.Context())
	g.Expect([]time.Duration{least, most}).To(HaveEach(maxRetry), "an event does not cause another request to a server that is away")
	g.Expect(lines).To(Equal(map[string]int{"Cannot check for": 1}))
	away = nil
	g.Expect(w.simulate(t, pace)).To(Equal(1))
	g.Expect(lines).To(Equal(map[string]int{"Cannot check for": 1, "Can check for": 1, "Stopping": 1}))
}

func TestCollector_RepeatsDeferredStop(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, interceptor.Funcs{})
	w.startProcess(g, "new", fake.Program{DeferStops: 2})
	g.Expect(w.simulate(t, time.Second)).To(Equal(3))
	g.Expect(w.fake.Live("new")).To(BeEmpty())
	g.Expect(w.fake.Count("new", fake.Stop)).To(Equal(3))
}

func TestCollector_RepeatsFailedStop(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, interceptor.Funcs{})
	w.startProcess(g, "polite", fake.Program{})
	w.fake.Fail(fake.Stop, errors.New("no more file descriptors"))
	_, err := w.sweep(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("file descriptors")))
	_, err = w.sweep(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.fake.Live("polite")).To(BeEmpty())
}

func TestCollector_SweepsAfterPokeAndStops(t *testing.T) {
	g := NewWithT(t)
	w := newFixture(t, interceptor.Funcs{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	g.Eventually(w.clock.HasWaiters).WithTimeout(30 * time.Second).Should(BeTrue())
	w.startProcess(g, "stray", fake.Program{})
	w.poke("stray")
	g.Eventually(func() []types.UID {
		w.clock.Step(pace)
		return w.fake.Known()
	}).WithTimeout(30 * time.Second).Should(BeEmpty())
	cancel()
	g.Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
}
