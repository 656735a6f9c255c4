// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutants runs each row of test/races with its guard taken out, and fails unless the row does, for the reason that is expected.
//
//	mutants races.test [row]...
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/test/testenv"
)

const (
	// limit is how long one row may take to fail; then it gets SIGINT, and after patience SIGKILL.
	limit    = 4 * time.Minute
	patience = 30 * time.Second
	// together is how many rows run at once: most of a row is waiting.
	together = 4
	// tries is how often a row may miss before it counts as blunt. What a fault leads to is a race, which may end well for once; a row that cannot
	// fail does not fail in any of them.
	tries = 3
)

func main() {
	ctrl.SetLogger(logr.Discard())
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: mutants races.test [row]...")
		os.Exit(2)
	}
	blunt, err := try(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if blunt > 0 {
		fmt.Printf("%d rows do not notice that their guard is gone\n", blunt)
		os.Exit(1)
	}
}

// try runs the rows, or only some of them, and returns how many mutants survive.
func try(binary string, only []string) (blunt int32, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	binary, err = filepath.Abs(binary)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "berth-mutants-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	rows, err := prepare(binary, dir, only)
	if err != nil {
		return 0, err
	}
	waiting := make(chan row, len(rows))
	for _, r := range rows {
		waiting <- r
	}
	close(waiting)
	errs := make([]error, min(together, len(rows)))
	var missed atomic.Int32
	var places sync.WaitGroup
	for i := range errs {
		places.Go(func() {
			errs[i] = place(filepath.Join(dir, fmt.Sprintf("plane-%d", i)), func(kubeconfig string) {
				for r := range waiting {
					if !r.bitesAtLast(ctx, binary, kubeconfig) {
						missed.Add(1)
					}
				}
			})
		})
	}
	places.Wait()
	return missed.Load(), errors.Join(append(errs, ctx.Err())...)
}

// row is a row of the race table, and the guard that it runs without.
type row struct{ name, without string }

// prepare builds the programs that the rows need, and returns the rows.
func prepare(binary, dir string, only []string) ([]row, error) {
	programs := filepath.Join(dir, "programs")
	if err := errors.Join(os.Mkdir(programs, 0o700), os.Setenv("RACES_PROGRAMS", programs)); err != nil {
		return nil, err
	}
	if output, err := ask(binary, "build"); err != nil {
		return nil, fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	lines, err := ask(binary, "list")
	if err != nil {
		return nil, fmt.Errorf("list the rows: %w", err)
	}
	var rows []row
	for line := range strings.Lines(string(lines)) {
		name, without, _ := strings.Cut(strings.TrimSpace(line), " ")
		if len(only) == 0 || slices.Contains(only, name) {
			rows = append(rows, row{name, without})
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("there are no such rows: %s", strings.Join(only, " "))
	}
	return rows, nil
}

// place starts a control plane, runs the rows on it one after the other, and stops it. Starting one takes longer than most rows.
func place(kubeconfig string, rows func(kubeconfig string)) (err error) {
	environment := testenv.New(filepath.Join("..", "..")) // as the suite, it runs in the folder of the suite
	defer func() { err = errors.Join(err, environment.Stop()) }()
	if _, err := environment.Start(); err != nil {
		return fmt.Errorf("start a control plane (make controlplane builds it): %w", err)
	}
	if err := os.WriteFile(kubeconfig, environment.KubeConfig, 0o600); err != nil {
		return err
	}
	rows(kubeconfig)
	return nil
}

// ask has the suite do something else than its specs.
func ask(binary, what string) ([]byte, error) {
	run := exec.Command(binary)
	run.Env = append(os.Environ(), "RACES_BREAK="+what)
	return run.Output()
}

// bitesAtLast runs the row until it fails, a few times at most. An interrupted run has no verdict.
func (r row) bitesAtLast(ctx context.Context, binary, kubeconfig string) bool {
	for range tries {
		if ctx.Err() != nil || r.bites(ctx, binary, kubeconfig) {
			return true
		}
	}
	return false
}

// bites runs the row with its fault. The row must fail by itself, and its spec must report the consequence of the fault.
func (r row) bites(ctx context.Context, binary, kubeconfig string) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	run := exec.CommandContext(ctx, binary, "-test.timeout=10m", "-ginkgo.label-filter="+r.name)
	run.Env = append(os.Environ(), "RACES_BREAK="+r.name, "RACES_PLANE="+kubeconfig)
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // told to end twice, by Ctrl-C and by us, it would not clean up
	run.Cancel = func() error { return run.Process.Signal(unix.SIGINT) }
	run.WaitDelay = patience
	var output bytes.Buffer
	run.Stdout, run.Stderr = &output, &output
	started := time.Now()
	err := run.Run()
	took := time.Since(started).Round(100 * time.Millisecond)
	mark := r.name + " saw "
	for line := range strings.Lines(output.String()) {
		if err != nil && strings.HasPrefix(line, mark) {
			fmt.Printf("%s bites %s without: %s; it saw: %s\n", r.name, took, r.without, strings.TrimSpace(strings.TrimPrefix(line, mark)))
			return true
		}
	}
	fmt.Printf("%s DOES NOT BITE %s without: %s\n%s\n", r.name, took, r.without, output.String())
	return false
}
