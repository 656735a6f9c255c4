// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutants runs each row of test/races with its guard removed. It fails unless each row fails for the expected reason.
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
	// limit is how long a row may run before it fails. After that it receives SIGINT, and, if it does not exit within patience, SIGKILL.
	limit    = 4 * time.Minute
	patience = 30 * time.Second
	// parallelRows is how many rows run at the same time. A row spends most of its time waiting.
	parallelRows = 4
	// maxTries is how often a row is run before it counts as a row that does not detect the removal of its guard. One run is not sufficient: even without
	// the guard, the race may by chance cause no failure in a run. A row that cannot detect the removal passes in every run.
	maxTries = 3
)

func main() {
	ctrl.SetLogger(logr.Discard())
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: mutants races.test [row]...")
		os.Exit(2)
	}
	undetected, err := runRows(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if undetected > 0 {
		fmt.Printf("%d rows do not detect that their guard is removed\n", undetected)
		os.Exit(1)
	}
}

// runRows runs rows and returns how many of them do not detect the removal of their guard. The parameter "only" lists the names of the rows to run; if it is
// empty, runRows runs all rows.
func runRows(binary string, only []string) (undetected int32, err error) {
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
	errs := make([]error, min(parallelRows, len(rows)))
	var missed atomic.Int32
	var workers sync.WaitGroup
	for i := range errs {
		workers.Go(func() {
			errs[i] = withControlPlane(filepath.Join(dir, fmt.Sprintf("plane-%d", i)), func(kubeconfig string) {
				for r := range waiting {
					if !r.detectsFaultInTries(ctx, binary, kubeconfig) {
						missed.Add(1)
					}
				}
			})
		})
	}
	workers.Wait()
	return missed.Load(), errors.Join(append(errs, ctx.Err())...)
}

// row is a row of the race table. The field "without" is a text that describes the guard that is removed when the row runs.
type row struct{ name, without string }

// prepare builds the programs that the rows need, and returns the rows. The parameter "only" lists the names of the rows to return; if
// it is empty, prepare returns all rows.
func prepare(binary, dir string, only []string) ([]row, error) {
	programs := filepath.Join(dir, "programs")
	if err := errors.Join(os.Mkdir(programs, 0o700), os.Setenv("RACES_PROGRAMS", programs)); err != nil {
		return nil, err
	}
	if output, err := runSuite(binary, "build"); err != nil {
		return nil, fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	lines, err := runSuite(binary, "list")
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
		return nil, fmt.Errorf("none of these rows exists: %s", strings.Join(only, " "))
	}
	return rows, nil
}

// withControlPlane starts a control plane, calls the function rows with the path of its kubeconfig, and stops the control plane. Rows share a control plane,
// because starting a control plane takes longer than most rows.
func withControlPlane(kubeconfig string, rows func(kubeconfig string)) (err error) {
	environment := testenv.New(filepath.Join("..", "..")) // this command runs in test/races, as the suite does
	defer func() { err = errors.Join(err, environment.Stop()) }()
	if _, err := environment.Start(); err != nil {
		return fmt.Errorf("start an API server: %w", err)
	}
	if err := os.WriteFile(kubeconfig, environment.Kubeconfig(), 0o600); err != nil {
		return err
	}
	rows(kubeconfig)
	return nil
}

// runSuite runs the binary of the suite with a command instead of a row. The command "build" builds the programs, and "list" prints the
// mutants.
func runSuite(binary, what string) ([]byte, error) {
	run := exec.Command(binary)
	run.Env = append(os.Environ(), "RACES_BREAK="+what)
	return run.Output()
}

// detectsFaultInTries runs the row until the row detects the removal of its guard, at most maxTries times. It returns true if it is interrupted, because an
// interrupted run has no verdict.
func (r row) detectsFaultInTries(ctx context.Context, binary, kubeconfig string) bool {
	for range maxTries {
		if ctx.Err() != nil || r.detectsFault(ctx, binary, kubeconfig) {
			return true
		}
	}
	return false
}

// detectsFault runs the row without its guard, and reports whether the row detects that: the run must fail, and the failure message of the spec must contain
// the text that is expected for this row.
func (r row) detectsFault(ctx context.Context, binary, kubeconfig string) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	run := exec.CommandContext(ctx, binary, "-test.timeout=10m", "-ginkgo.label-filter="+r.name)
	run.Env = append(os.Environ(), "RACES_BREAK="+r.name, "RACES_PLANE="+kubeconfig)
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not reach the row: with a second SIGINT, from Cancel, it would not clean up
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
			fmt.Printf("%s failed as expected after %s; removed guard: %s; failure: %s\n", r.name, took, r.without, strings.TrimSpace(strings.TrimPrefix(line, mark)))
			return true
		}
	}
	fmt.Printf("%s DID NOT FAIL AS EXPECTED after %s; removed guard: %s\n%s\n", r.name, took, r.without, output.String())
	return false
}
