// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager runs Berth's manager in a separate process for the benchmarks, so that its cost can be measured separately from the cost of the
// test. For every line on stdin it prints its Stats as a line of JSON. It exits when stdin closes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/runtime/langserver"
	"github.com/berth-dev/berth/internal/runtime/pod"
	"github.com/berth-dev/berth/test/performance/manager/stats"
)

func main() {
	flags := flag.NewFlagSet("manager", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "path of the kubeconfig")
	state := flags.String("state", "", "state directory of the host runtime; empty means processes in memory")
	shim := flags.String("shim", "", "the berth-shim binary")
	lsp := flags.String("lsp", "", "the berth-lsp binary; empty disables language servers")
	expect := flags.Int("expect", 0, "number of existing processes")
	pods := flags.Bool("pods", false, "enable only the Pod runtime")
	_ = flags.Parse(os.Args[1:]) // Parse exits the program on errors
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *kubeconfig, *state, *shim, *lsp, *expect, *pods); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, state, shim, lsp string, expect int, pods bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctrl.SetLogger(logr.Discard())
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	observations := &observations{expect: expect}
	backend, closing, err := open(ctx, state, shim, observations)
	if pods {
		backend, closing, err = openPods(config)
	}
	if err != nil {
		return err
	}
	defer closing()
	opts := manager.Options{Runtimes: backend}
	if h, is := backend.For("").(langserver.Host); is && lsp != "" {
		servers, err := langserver.New(h, langserver.Options{Dir: filepath.Join(state, "lsp"), Program: lsp})
		if err != nil {
			return err
		}
		defer servers.Close()
		opts.LanguageServers = servers
	}
	mgr, err := manager.New(config, opts)
	if err != nil {
		return err
	}
	// The runnable starts together with the controllers, after the cache has synced, so it marks the time of the sync.
	err = mgr.Add(ctrlmanager.RunnableFunc(func(context.Context) error {
		observations.sync()
		return nil
	}))
	if err != nil {
		return fmt.Errorf("add the sync callback: %w", err)
	}
	go func() {
		defer cancel()
		printStats(observations)
	}()
	return mgr.Start(ctx)
}

// open creates the runtime for processes on the host, or in memory if state is empty.
func open(ctx context.Context, state, shim string, observations *observations) (*runtime.Registry, func(), error) {
	if state == "" {
		return singleRuntime(&listeningRuntime{Runtime: fake.New(ctx, clock.RealClock{})}), func() {}, nil
	}
	before := time.Now()
	h, err := host.New(host.Options{StateDir: state, ShimPath: shim})
	if err != nil {
		return nil, nil, err
	}
	observations.opening = time.Since(before)
	return singleRuntime(&countingHost{Host: h, observations: observations}), func() { _ = h.Close() }, nil
}

func singleRuntime(backend runtime.Runtime) *runtime.Registry {
	return runtime.NewRegistry(backend, logr.Discard())
}

// openPods creates the Pod runtime, which a manager in a cluster uses.
func openPods(config *rest.Config) (*runtime.Registry, func(), error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("create the Pod runtime: %w", err)
	}
	opened, err := pod.New(pod.Options{Client: api})
	if err != nil {
		return nil, nil, err
	}
	nothing := runtime.NoRuntime{Reason: "a manager in a cluster"}
	return runtime.NewRegistry(nothing, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimePod, Runtime: opened}), func() { _ = opened.Close() }, nil
}

// printStats prints the manager's Stats for every line on stdin.
func printStats(observations *observations) {
	out := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		s := stats.Stats{CPU: cpu(), Goroutines: goruntime.NumGoroutine()}
		observations.fill(&s)
		addReconciles(&s)
		if err := out.Encode(s); err != nil {
			return
		}
	}
}

// addReconciles sets the reconcile counts of DevServers from controller-runtime's metrics.
func addReconciles(s *stats.Stats) {
	families, err := metrics.Registry.Gather()
	if err != nil {
		return
	}
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_time_seconds" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "controller" && label.GetValue() == "devservers" {
					s.Reconciles = int(metric.GetHistogram().GetSampleCount()) //nolint:gosec // the count is small
					s.Reconciling = time.Duration(metric.GetHistogram().GetSampleSum() * float64(time.Second))
				}
			}
		}
	}
}

// cpu returns the CPU time of this process in user and kernel mode.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
