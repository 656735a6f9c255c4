// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	// defaultCycles is the number of cycles if CYCLES is not set. It is small to keep the test short; `make chaos` sets a larger number.
	defaultCycles = 3
	reportEvery   = 10
)

func TestChaos_ObjectsReachSpecifiedState(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	cycles, seed := envInt(t, "CYCLES", defaultCycles), envInt(t, "SEED", time.Now().UnixNano()%1_000_000)
	fmt.Printf("chaos: %d cycles, SEED=%d\n", cycles, seed)
	// Do not use t.TempDir: its path would be too long, and the logs must survive a failure.
	root, err := os.MkdirTemp("", "berth-chaos-")
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w, err := newWorld(t.Context(), root)
	t.Cleanup(func() {
		err := w.discard()
		if t.Failed() && os.Getenv("CHAOS_KEEP") != "" {
			fmt.Printf("chaos: kept %s\n", root)
		} else {
			err = errors.Join(err, os.RemoveAll(root))
		}
		if err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("chaos: started after %.1f s\n", time.Since(began).Seconds())
	began = time.Now()
	var slowest, totalRest time.Duration
	for cycle := 1; cycle <= int(cycles); cycle++ {
		w.journal.record("cycle", "%d", cycle)
		rest, err := w.runCycle(t.Context(), cycle, uint64(seed))
		if err != nil {
			t.Fatalf("cycle %d of SEED=%d: %v\n%s", cycle, seed, err, w.report())
		}
		slowest, totalRest = max(slowest, rest), totalRest+rest
		if cycle%reportEvery == 0 || cycle == int(cycles) {
			fmt.Printf("chaos: cycle %d, %.1f s, %d starts; slowest time to rest %.1f s\n", cycle, time.Since(began).Seconds(), w.workloadStarts(), slowest.Seconds())
		}
	}
	if err := w.shutDown(t.Context()); err != nil {
		t.Fatalf("after the last cycle, SEED=%d: %v\n%s", seed, err, w.report())
	}
	fmt.Printf("chaos: %d cycles in %.1f s: nothing lost, duplicated or left behind; %d program starts, %d manager starts; mean time to rest %.2f s\n",
		cycles, time.Since(began).Seconds(), w.workloadStarts(), w.manager.starts, totalRest.Seconds()/float64(cycles))
	fmt.Printf("chaos: %s\n", w.journal.summary())
}

func envInt(t *testing.T, name string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is not a number above 0", name, text)
	}
	return n
}

// runCycle runs the clients and the faults, waits until the system is at rest, and returns how long it took to come to rest.
func (w *world) runCycle(ctx context.Context, cycle int, seed uint64) (rest time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*patience)
	defer cancel()
	dice := func(stream int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(cycle*100+stream))) }
	var all sync.WaitGroup
	failures := make(chan error, 100)
	try := func(do func() error) {
		all.Go(func() {
			if err := do(); err != nil {
				failures <- err
			}
		})
	}
	for i := range clients {
		try(func() error { return w.runClient(ctx, fmt.Sprintf("c%d.%d", cycle, i), dice(i)) })
	}
	struck := planeFault(cycle)
	if struck {
		try(func() error { return w.killPlane(ctx, dice(50)) })
	}
	random := dice(51)
	for i := range 1 + random.IntN(3) {
		f, own := w.randomFault(random), dice(60+i)
		try(func() error {
			sleep(ctx, time.Duration(own.IntN(250))*time.Millisecond)
			if err := f.inject(ctx, w, own); err != nil {
				return fmt.Errorf("fault %s: %w", f.name, err)
			}
			return nil
		})
	}
	all.Wait()
	close(failures)
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = w.waitForRest(ctx, struck)
	return time.Since(began), err
}

// runClient runs one client for one cycle.
func (w *world) runClient(ctx context.Context, name string, random *rand.Rand) error {
	u := &user{api: w.api, ledger: w.ledger, journal: w.journal, program: w.workload, dir: w.dir, random: random, name: name}
	for range opsPerClient {
		if err := u.changeRandomObject(ctx); err != nil {
			return fmt.Errorf("client %s: %w", name, err)
		}
		sleep(ctx, time.Duration(random.IntN(60))*time.Millisecond)
	}
	return nil
}

// waitForRest waits until the system is at rest. While it waits, it restarts the manager whenever the manager has exited, as the user of a machine would.
func (w *world) waitForRest(ctx context.Context, struck bool) error {
	if err := w.plane.waitUntilRestored(ctx); err != nil {
		return err
	}
	watch, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	unexpected := make(chan error, 1)
	all.Go(func() {
		for sleep(watch, 50*time.Millisecond) {
			ended, err := w.manager.restartIfExited()
			if ended {
				w.journal.record("manager-ended", "")
				// The manager may exit at startup if the API server does not answer, or if its predecessor still holds the lock.
				if !struck && !w.exitIsExpected() {
					err = errors.Join(err, errors.New("the manager exited without a cause"))
				}
			}
			if err != nil {
				unexpected <- err
				stop()
				return
			}
		}
	})
	err := w.waitUntilSettled(watch, patience)
	stop()
	all.Wait()
	select {
	case failure := <-unexpected:
		err = errors.Join(failure, err)
	default:
	}
	return errors.Join(err, w.manager.checkNoPanic())
}

// expectedStartErrors are the errors with which a manager may exit at startup even in cycles that do not kill the control plane.
var expectedStartErrors = []string{"another berth manager uses the state directory", "no space left on device"}

func (w *world) exitIsExpected() bool {
	end := tail(w.manager.log, 2)
	return slices.ContainsFunc(expectedStartErrors, func(excuse string) bool { return strings.Contains(end, excuse) })
}

// report returns the details for a failure message.
func (w *world) report() string {
	var text strings.Builder
	fmt.Fprintf(&text, "--- latest operations:\n%s\n", w.journal.recent())
	found, err := processesOf(w.workload, w.shim)
	fmt.Fprintf(&text, "--- processes (%v):\n", err)
	for _, p := range found {
		fmt.Fprintf(&text, "%s\n", p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	objects, err := w.objects(ctx)
	fmt.Fprintf(&text, "--- objects (%v):\n", err)
	for uid, object := range objects {
		fmt.Fprintf(&text, "%s uid %s life %s\n%s", object.GetName(), uid, lifeWord(object), formatStatus(object))
	}
	fmt.Fprintf(&text, "--- end of the manager log (clock %s):\n%s\n", w.manager.offset, tail(w.manager.log, 60))
	fmt.Fprintf(&text, "--- control plane:\n%s\n", w.plane.log())
	return text.String()
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
