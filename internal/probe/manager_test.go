// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/runtime"
)

// startManager returns a manager whose workers end with the test, and a channel with its notifications.
func startManager(t *testing.T, clock clock.Clock) (*Manager, <-chan types.UID) {
	t.Helper()
	told := make(chan types.UID, 1000)
	manager := NewManager(clock, func(uid types.UID) { told <- uid })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return manager, told
}

// startServer responds with a status that can be changed, and counts the requests.
func startServer(t *testing.T) (url string, status, asked *atomic.Int64) {
	t.Helper()
	status, asked = new(atomic.Int64), new(atomic.Int64)
	status.Store(http.StatusOK)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(s.Close)
	return s.URL, status, asked
}

func httpConfig(url string) Config {
	return Config{Check: Check{HTTP: &HTTP{URL: url}}, Period: 5 * time.Second, Timeout: long, Threshold: 3}
}

var (
	first  = Key{UID: "a", Incarnation: 1, Kind: Readiness}
	second = Key{UID: "a", Incarnation: 2, Kind: Readiness}
)

func TestManager_AppliesFailureThreshold(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	manager, told := startManager(t, clock)
	url, status, asked := startServer(t)
	status.Store(http.StatusServiceUnavailable)
	result := func() Result { return manager.Result(first) }

	// step lets the worker probe once more after the given time.
	step := func(after time.Duration) {
		g.Eventually(clock.HasWaiters, long, time.Millisecond).Should(BeTrue())
		before := asked.Load()
		clock.Step(after)
		g.Eventually(asked.Load, long, time.Millisecond).Should(BeNumerically(">", before))
		g.Eventually(clock.HasWaiters, long, time.Millisecond).Should(BeTrue())
	}

	manager.Ensure(first, httpConfig(url))
	g.Eventually(result, long).Should(Equal(Result{Message: "GET " + url + " returned status 503"}), "one of three failures does not decide")
	g.Eventually(told, long).Should(Receive(Equal(first.UID)))
	step(100 * time.Millisecond)
	step(150 * time.Millisecond)
	g.Eventually(result, long).Should(Equal(Result{Known: true, Message: "GET " + url + " returned status 503"}))
	g.Eventually(told, long).Should(Receive())

	status.Store(http.StatusOK)
	step(500 * time.Millisecond)
	g.Eventually(result, long).Should(Equal(Result{Known: true, OK: true}))
	g.Eventually(told, long).Should(Receive())

	status.Store(http.StatusServiceUnavailable)
	step(5 * time.Second)
	step(5 * time.Second)
	g.Expect(result().OK).To(BeTrue(), "two of three failures do not change the result")
	step(5 * time.Second)
	g.Eventually(result, long).Should(Equal(Result{Known: true, Message: "GET " + url + " returned status 503"}))
}

func TestEnsure_KeepsWorkerForSameCheck(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	manager, _ := startManager(t, clock)
	url, _, asked := startServer(t)
	for range 10 {
		manager.Ensure(first, httpConfig(url))
		manager.Ensure(first, Config{Check: httpConfig(url).Check, Period: 5 * time.Second, Timeout: long, Threshold: 3, Proven: true})
	}
	g.Eventually(func() Result { return manager.Result(first) }, long).Should(Equal(Result{Known: true, OK: true}))
	g.Eventually(clock.HasWaiters, long).Should(BeTrue())
	g.Expect(asked.Load()).To(Equal(int64(1)))

	other := httpConfig(url + "/other")
	manager.Ensure(first, other)
	g.Eventually(asked.Load, long).Should(Equal(int64(2)), "a changed check runs immediately")
}

func TestResult_BelongsToItsIncarnation(t *testing.T) {
	g := NewWithT(t)
	manager, _ := startManager(t, clock.RealClock{})
	url, _, _ := startServer(t)
	manager.Ensure(first, httpConfig(url))
	g.Eventually(func() bool { return manager.Result(first).OK }, long).Should(BeTrue())
	manager.Keep(first.UID, 2)
	g.Expect(manager.Result(first)).To(Equal(Result{}))
	g.Expect(manager.Result(second)).To(Equal(Result{}))
	manager.Ensure(second, httpConfig("http://"+unusedAddress))
	g.Eventually(func() bool { return manager.Result(second).Known }, long).Should(BeTrue())
	g.Expect(manager.Result(second).OK).To(BeFalse())
	manager.Forget(first.UID)
	g.Expect(manager.Result(second)).To(Equal(Result{}))
}

func TestOnce_ProbesUntilFirstSuccess(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	manager, told := startManager(t, clock)
	url, _, asked := startServer(t)
	question := httpConfig(url)
	question.Once = true
	manager.Ensure(first, question)
	g.Eventually(told, long).Should(Receive())
	manager.Ensure(first, question)
	clock.Step(time.Hour)
	g.Consistently(asked.Load, "300ms").Should(Equal(int64(1)))
	g.Expect(manager.Result(first)).To(Equal(Result{Known: true, OK: true}))
}

func TestGo_RunsOnceUntilStop(t *testing.T) {
	g := NewWithT(t)
	manager, told := startManager(t, clock.RealClock{})
	runs := make(chan struct{}, 10)
	ended := make(chan struct{})
	run := func(ctx context.Context, changed func()) {
		defer close(ended)
		runs <- struct{}{}
		changed()
		<-ctx.Done()
		changed()
	}
	manager.Go(first, run)
	manager.Go(first, run)
	g.Eventually(told, long).Should(Receive(Equal(first.UID)))
	manager.Stop(first)
	g.Eventually(ended, long).Should(BeClosed())
	g.Expect(runs).To(HaveLen(1))
	g.Expect(told).To(BeEmpty(), "a stopped worker does not notify")
}

func TestManager_StartsNothingAfterShutdown(t *testing.T) {
	g := NewWithT(t)
	manager := NewManager(clock.RealClock{}, func(types.UID) {})
	manager.Ensure(second, httpConfig("http://"+unusedAddress))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(manager.Start(ctx)).To(Succeed())
	manager.Ensure(first, httpConfig("http://"+unusedAddress))
	manager.Go(first, func(context.Context, func()) { t.Error("was run") })
	g.Expect(manager.Result(first)).To(Equal(Result{}))
}

func TestTally_DecidesResultAndInterval(t *testing.T) {
	good, bad, mute := outcome{ok: true}, failed("no"), outcome{message: "closed", mute: true}
	for name, tc := range map[string]struct {
		config Config
		in     []outcome
		want   Result
		wait   time.Duration
	}{
		"good":                              {Config{Threshold: 3}, []outcome{good}, Result{Known: true, OK: true}, 5 * time.Second},
		"not decided":                       {Config{Threshold: 3}, []outcome{bad, bad}, Result{Message: "no"}, 150 * time.Millisecond},
		"bad":                               {Config{Threshold: 3}, []outcome{bad, bad, bad}, Result{Known: true, Message: "no"}, 225 * time.Millisecond},
		"increasing intervals":              {Config{Threshold: 1}, []outcome{bad, bad, bad, bad, bad, bad, bad}, Result{Known: true, Message: "no"}, slowest},
		"proven":                            {Config{Threshold: 3, Proven: true}, []outcome{bad, bad}, Result{Message: "no"}, 5 * time.Second},
		"proven, then bad":                  {Config{Threshold: 2, Proven: true}, []outcome{bad, bad}, Result{Known: true, Message: "no"}, 100 * time.Millisecond},
		"a failure among successes":         {Config{Threshold: 2}, []outcome{good, bad, good, bad}, Result{Known: true, OK: true, Message: "no"}, 5 * time.Second},
		"recovers":                          {Config{Threshold: 1}, []outcome{bad, good}, Result{Known: true, OK: true}, 5 * time.Second},
		"does not speak HTTP":               {Config{Threshold: 3}, []outcome{mute, mute, mute}, Result{Known: true, OK: true}, 5 * time.Second},
		"only some connections were closed": {Config{Threshold: 3}, []outcome{mute, mute, bad, mute}, Result{Known: true, Message: "closed"}, 337500 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tc.config.Period = 5 * time.Second
			state := tally{config: tc.config, delay: fastest}
			var wait time.Duration
			for _, answer := range tc.in {
				state.add(answer)
				wait = state.wait()
			}
			g.Expect(state.result).To(Equal(tc.want))
			g.Expect(wait).To(Equal(tc.wait))
		})
	}
}

func TestSameQuestion_ComparesChecks(t *testing.T) {
	g := NewWithT(t)
	exec := func(env ...string) Config {
		return Config{Check: Check{Exec: &Exec{Process: runtime.Process{Command: []string{"a"}, Env: env}}}}
	}
	g.Expect(exec("A=1").sameQuestion(exec("A=1"))).To(BeTrue())
	g.Expect(exec("A=1").sameQuestion(exec("A=2"))).To(BeFalse())
	g.Expect(exec().sameQuestion(Config{Check: Check{TCP: &TCP{}}})).To(BeFalse())
	g.Expect(Config{Check: Check{TCP: &TCP{}}}.sameQuestion(Config{Check: Check{TCP: &TCP{}}})).To(BeTrue())
	g.Expect(Config{}.sameQuestion(Config{})).To(BeTrue())
}
