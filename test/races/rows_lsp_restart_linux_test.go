// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/test/lspclient"
	"github.com/berth-dev/berth/test/lspfake/script"
)

// shortPause pauses a caller that would otherwise send requests without a break.
func shortPause(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// checkHealth reads the object as a health check does. It returns an error unless the object exists, has its address, and is ready or restarting.
func checkHealth(ctx context.Context, server *v1alpha1.LanguageServer, address string) error {
	o, err := get(ctx, server)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the object: %w", err)
	case o.Status.Endpoint != address:
		return fmt.Errorf("its address changed from %q to %q", address, o.Status.Endpoint)
	case !isRunning(o) && !isTrue(o, v1alpha1.ConditionRestarting):
		return fmt.Errorf("the server is neither ready nor restarting: %s", describe(o))
	}
	return nil
}

// killServer kills the server of that incarnation as the kernel does when memory runs out, and waits for the next one.
func killServer(ctx context.Context, server *v1alpha1.LanguageServer, incarnation int64) {
	GinkgoHelper()
	victim, err := procstat.Identify(waitForRunning(ctx, server, incarnation))
	Expect(err).NotTo(HaveOccurred())
	killProcess(victim)
	waitForRunning(ctx, server, incarnation+1)
}

var _ = row("R23", "health checks during restarts: they always find the server, which is ready or restarting", func(ctx context.Context) {
	// The server takes a while to start, so that health checks see the restart.
	server := newLanguageServer("srv", script.Script{InitializeMS: 100})
	create(ctx, server)
	waitForRunning(ctx, server, 1)
	address := mustGet(ctx, server).Status.Endpoint
	checks := startClients(ctx, 8, func(ctx context.Context, _, _ int) error {
		defer shortPause(ctx, 5*interval)
		return checkHealth(ctx, server, address)
	})
	for n := range int64(4) {
		Expect(patchFormatted(ctx, server, restartPatch, strconv.FormatInt(n, 10))).To(Succeed())
		waitForRunning(ctx, server, n+2)
		checks.waitForRounds(ctx, 8, 1)
	}
	killServer(ctx, server, 5)
	checks.waitForRounds(ctx, 8, 1)
	checks.end()
	Expect(startCount("srv")).To(Equal(6))
})

// worker is a client that is always busy: it opens and closes its own documents, sends requests about these documents, and causes effects.
type worker struct {
	*documentClient
	server   *v1alpha1.LanguageServer
	name     string
	mu       sync.Mutex
	done     []string // effects that were reported as successful
	requests int
}

// work sends one request and checks the response. A query has to be answered correctly. An effect has to succeed or, if the server was lost, to be
// answered with the outcome unknown.
func (w *worker) work(ctx context.Context, round int) error {
	// The worker waits for the response even after the row has ended the load.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	w.requests++
	switch round % 6 {
	case 2:
		effect := fmt.Sprintf("%s-%d", w.name, round)
		// The server carries the effect out immediately and answers 20 ms later, so that some servers are lost between the effect and the response.
		err := w.Call(ctx, "workspace/executeCommand", map[string]any{
			"command": "effect", "arguments": []string{effect}, "fake": script.Fault{Do: script.Delay, MS: 20},
		}, nil)
		if refusal := errorResponse(err); refusal != nil && refusal.MultiplexerData().Outcome == "unknown" {
			return nil
		}
		if err == nil {
			w.mu.Lock()
			w.done = append(w.done, effect)
			w.mu.Unlock()
		}
		return err
	case 5:
		// Change to another document, because the multiplexer withholds from the server any document that was open at several consecutive crashes.
		next := lspclient.URI(env.dir, fmt.Sprintf("%s-%d.txt", w.name, round))
		err := errors.Join(w.CloseDocument(w.uri), w.Open(next, "fake", 1, w.words+" has not saved this\n"))
		w.uri = next
		return err
	}
	_, err := w.request(ctx)
	return err
}

var _ = row("R24", "clients during restarts and kill -9: each request is answered once and correctly, and no effect happens twice", func(ctx context.Context) {
	const clients, kills = 20, 12
	server := newLanguageServer("srv", script.Script{})
	server.Spec.Breaker.FailureThreshold = ptr.To[int32](64)
	create(ctx, server)
	waitForRunning(ctx, server, 1)
	workers := make([]*worker, clients)
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i)
		workers[i] = &worker{documentClient: mustJoin(ctx, server, name), server: server, name: name}
	}
	work := startClients(ctx, clients, func(ctx context.Context, i, round int) error { return workers[i].work(ctx, round) })
	for n := range int64(kills) {
		work.waitForRounds(ctx, clients, 6)
		victim, err := procstat.Identify(waitForRunning(ctx, server, n+1))
		Expect(err).NotTo(HaveOccurred())
		killProcess(victim)
		// Another client connects while no server is ready, and waits like the others.
		late, err := joinServer(ctx, server, fmt.Sprintf("late-%d", n))
		Expect(err).NotTo(HaveOccurred())
		Expect(late.request(ctx)).NotTo(Equal(victim.PID), "the dead server answered")
		late.Close()
		waitForRunning(ctx, server, n+2)
	}
	work.waitForRounds(ctx, clients, 6)
	work.end()
	Expect(startCount("srv")).To(Equal(kills + 1))
	effects, err := script.Effects(env.dir, "srv")
	Expect(err).NotTo(HaveOccurred())
	for effect, times := range effects {
		Expect(times).To(Equal(1), "an effect happened twice: %s", effect)
	}
	for _, w := range workers {
		Expect(w.UnexpectedResponses()).To(BeEmpty(), "%s was answered more than once", w.name)
		Expect(w.Err()).NotTo(HaveOccurred(), "%s lost its connection", w.name)
		for _, effect := range w.done {
			Expect(effects).To(HaveKeyWithValue(effect, 1), "an effect that was reported to %s as successful", w.name)
		}
	}
	journal("srv")
})

var _ = row("R25", "100 callers over 50 restarts: one restart for each distinct request, and no caller finds the server missing", func(ctx context.Context) {
	const callers, restarts = 100, 50
	server := newLanguageServer("srv", script.Script{})
	create(ctx, server)
	waitForRunning(ctx, server, 1)
	address := mustGet(ctx, server).Status.Endpoint
	var token atomic.Int64
	var asked [callers]atomic.Int64
	// asking prevents a late caller from setting the token of the previous restart again. Berth would count this change of the token as a new request.
	var asking sync.RWMutex
	readers := make([]*documentClient, callers/5)
	for i := range readers {
		readers[i] = mustJoin(ctx, server, fmt.Sprintf("reader-%d", i))
	}
	calls := startClients(ctx, callers, func(ctx context.Context, i, round int) error {
		defer shortPause(ctx, 50*interval)
		switch i % 5 {
		case 0:
			_, err := get(ctx, server)
			return err
		case 1:
			return checkHealth(ctx, server, address)
		case 2:
			// Each of these callers requests the current restart once.
			asking.RLock()
			defer asking.RUnlock()
			if now := token.Load(); asked[i].Swap(now) != now {
				return patchFormatted(ctx, server, restartPatch, strconv.FormatInt(now, 10))
			}
			_, err := get(ctx, server)
			return err
		case 3:
			if round%8 == 7 {
				return patchObject(ctx, server, runPatch)
			}
			return checkHealth(ctx, server, address)
		}
		if round%8 == 7 {
			late, err := joinServer(ctx, server, fmt.Sprintf("late-%d-%d", i, round))
			if err == nil {
				defer late.Close()
				_, err = late.request(ctx)
			}
			return err
		}
		_, err := readers[i/5].request(context.WithoutCancel(ctx))
		return err
	})
	calls.waitForRounds(ctx, callers, 1)
	for n := range int64(restarts) {
		asking.Lock()
		token.Store(n + 1)
		asking.Unlock()
		waitFor(ctx, server, fmt.Sprintf("one restart for request %d", n+1), func(o *v1alpha1.LanguageServer) bool {
			return o.Status.ObservedRestartToken == strconv.FormatInt(n+1, 10) && isRunning(o) && o.Status.Incarnation == n+2
		})
	}
	calls.waitForRounds(ctx, callers, 1)
	calls.end()
	Expect(startCount("srv")).To(Equal(restarts+1), "one restart for each distinct request")
	pid := waitForRunning(ctx, server, restarts+1)
	for _, r := range readers {
		Expect(r.request(ctx)).To(Equal(pid))
		Expect(r.UnexpectedResponses()).To(BeEmpty(), "a request was answered more than once")
	}
	Expect(workloadPIDs("srv")).To(Equal([]int{pid}))
	Expect(mustGet(ctx, server).Status.RestartCount).To(BeEquivalentTo(restarts))
	journal("srv")
})

var _ = row("R26", "a start during a restart: the start joins the restart", func(ctx context.Context) {
	server := newLanguageServer("srv", script.Script{InitializeMS: 50})
	create(ctx, server)
	waitForRunning(ctx, server, 1)
	r := mustJoin(ctx, server, "reader")
	for n := range int64(5) {
		token := strconv.FormatInt(n, 10)
		Expect(patchFormatted(ctx, server, restartPatch, token)).To(Succeed())
		inParallel(40, func(i int) error {
			switch i % 4 {
			case 0:
				return patchObject(ctx, server, runPatch)
			case 1:
				return patchFormatted(ctx, server, restartPatch, token)
			case 2:
				_, err := r.request(ctx)
				return err
			}
			late, err := joinServer(ctx, server, fmt.Sprintf("late-%d-%d", n, i))
			if err == nil {
				_, err = late.request(ctx)
				late.Close()
			}
			return err
		})
		pid := waitForRunning(ctx, server, n+2)
		Expect(r.request(ctx)).To(Equal(pid))
		Expect(startCount("srv")).To(Equal(int(n+2)), "a start ran in addition to the restart")
	}
})

var _ = row("R27", "concurrent starts: one process is started, and all callers use it", func(ctx context.Context) {
	// Repeat each call of Start: call it three times concurrently, and then two more times.
	env.faults.setHooks(func(w *faultInjector) {
		w.onStart = func(_ runtime.Process, start func() error) error {
			errs := make(chan error, 3)
			for range cap(errs) {
				go func() { errs <- start() }()
			}
			return errors.Join(<-errs, <-errs, <-errs, start(), start())
		}
	})
	server := newLanguageServer("srv", script.Script{})
	server.Spec.State = v1alpha1.StateOnDemand
	server.Spec.IdleTimeoutSeconds = ptr.To[int32](1)
	create(ctx, server)
	const callers = 30
	for n := range int64(3) {
		asleep := waitFor(ctx, server, "is idle", func(o *v1alpha1.LanguageServer) bool {
			ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
			return o.Status.Incarnation == n+1 && o.Status.Process == nil && ready != nil && ready.Reason == v1alpha1.ReasonIdle
		})
		Expect(startCount("srv")).To(Equal(int(n+1)), "one spawn for all callers")
		Expect(asleep.Status.Endpoint).NotTo(BeEmpty())
		var mu sync.Mutex
		pids := map[int]bool{}
		// No client disconnects before all have connected.
		readers := make([]*documentClient, callers)
		inParallel(callers, func(i int) (err error) {
			if readers[i], err = joinServer(ctx, server, fmt.Sprintf("caller-%d-%d", n, i)); err != nil {
				return err
			}
			pid, err := readers[i].request(ctx)
			mu.Lock()
			defer mu.Unlock()
			pids[pid] = true
			return err
		})
		for _, r := range readers {
			r.Close()
		}
		Expect(pids).To(HaveLen(1), "all callers use the same server")
		Expect(startCount("srv")).To(Equal(int(n+2)), "one spawn for all callers")
	}
})
