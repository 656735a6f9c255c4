// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager runs the manager with the host runtime in a process that the test can kill. CHAOS_CLOCK_OFFSET shifts the clock of the
// manager by a constant duration.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/host"
)

// logLimit is small, so that a flood reaches it within a cycle.
const logLimit = 1 << 20

func main() {
	log := funcr.New(func(prefix, args string) {
		fmt.Fprintln(os.Stderr, time.Now().Format("15:04:05.000"), prefix, args)
	}, funcr.Options{Verbosity: verbosity()})
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	if err := run(log); err != nil {
		fmt.Fprintln(os.Stderr, "the manager failed:", err)
		os.Exit(1)
	}
}

func verbosity() int {
	if os.Getenv("CHAOS_VERBOSE") != "" {
		return 1
	}
	return 0
}

func run(log logr.Logger) (err error) {
	offset, err := time.ParseDuration(os.Getenv("CHAOS_CLOCK_OFFSET"))
	if err != nil {
		return fmt.Errorf("CHAOS_CLOCK_OFFSET: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000
	rt, err := host.New(host.Options{
		StateDir: os.Getenv("CHAOS_STATE"), ShimPath: os.Getenv("CHAOS_SHIM"), LogLimit: logLimit, Logger: log.WithName("host"),
		Containment: os.Getenv("CHAOS_CONTAINMENT"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	mgr, err := manager.New(config, manager.Options{
		Runtimes: runtime.NewRegistry(rt, log), Logger: log, Clock: shiftedClock{offset: offset}, LeftoverInterval: 2 * time.Second, LeftoverGrace: time.Second,
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// shiftedClock is a clock with a constant offset.
type shiftedClock struct {
	clock.RealClock
	offset time.Duration
}

func (s shiftedClock) Now() time.Time                  { return s.RealClock.Now().Add(s.offset) }
func (s shiftedClock) Since(t time.Time) time.Duration { return s.Now().Sub(t) }
