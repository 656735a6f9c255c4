// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command teeth runs each row of test/races with its guard taken out, and fails unless the row does, for the reason that is expected.
//
//	teeth races.test [row]...
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// limit is how long one row may take to fail; then it is asked to end, and after patience killed.
	limit    = 2 * time.Minute
	patience = 30 * time.Second
	// together is how many rows run at once: most of a row is waiting, and each has an API server of its own.
	together = 2
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: teeth races.test [row]...")
		os.Exit(2)
	}
	binary, err := filepath.Abs(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	blunt, err := try(binary, os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if blunt > 0 {
		fmt.Printf("%d rows do not notice that their guard is gone\n", blunt)
		os.Exit(1)
	}
}

// try runs the rows, or only some of them, and gives how many do not bite.
func try(binary string, only []string) (int32, error) {
	programs, err := os.MkdirTemp("", "berth-races-teeth-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(programs) }()
	if err := os.Setenv("RACES_PROGRAMS", programs); err != nil {
		return 0, err
	}
	if output, err := ask(binary, "build"); err != nil {
		return 0, fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	rows, err := ask(binary, "list")
	if err != nil {
		return 0, fmt.Errorf("list the rows: %w", err)
	}
	var blunt atomic.Int32
	var running sync.WaitGroup
	room := make(chan struct{}, together)
	for line := range strings.Lines(string(rows)) {
		row, without, _ := strings.Cut(strings.TrimSpace(line), " ")
		if len(only) > 0 && !slices.Contains(only, row) {
			continue
		}
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			if !bites(binary, row, without) {
				blunt.Add(1)
			}
		})
	}
	running.Wait()
	return blunt.Load(), nil
}

// ask has the suite do something else than its specs.
func ask(binary, what string) ([]byte, error) {
	run := exec.Command(binary)
	run.Env = append(os.Environ(), "RACES_BREAK="+what)
	return run.Output()
}

// bites runs one row with its fault. It has to fail by itself, and its spec has to say that it saw what the fault does.
func bites(binary, row, without string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	run := exec.CommandContext(ctx, binary, "-test.timeout=10m", "-ginkgo.label-filter="+row)
	run.Env = append(os.Environ(), "RACES_BREAK="+row)
	run.Cancel = func() error { return run.Process.Signal(unix.SIGINT) }
	run.WaitDelay = patience
	var output bytes.Buffer
	run.Stdout, run.Stderr = &output, &output
	started := time.Now()
	err := run.Run()
	took := time.Since(started).Round(100 * time.Millisecond)
	mark := row + " saw "
	for line := range strings.Lines(output.String()) {
		if err != nil && strings.HasPrefix(line, mark) {
			fmt.Printf("%s bites %s without: %s; it saw: %s\n", row, took, without, strings.TrimSpace(strings.TrimPrefix(line, mark)))
			return true
		}
	}
	fmt.Printf("%s DOES NOT BITE %s without: %s\n%s\n", row, took, without, output.String())
	return false
}
