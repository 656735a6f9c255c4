// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command checkmodule is the strategies of the action check-module: each takes one look at a Go module. What it is told it finds in variables, as
// every run does (ARG_MODULE, ARG_REPORTS, ARG_PLAN, ...); what it finds out goes into a file for the phases that follow.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	strategies := map[string]func(*job) error{"list": list, "search": search, "summarize": summarize, "report": report}
	if len(os.Args) != 2 || strategies[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: checkmodule list|search|summarize|report")
		os.Exit(2)
	}
	j, err := newJob()
	if err == nil {
		err = strategies[os.Args[1]](j)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "checkmodule %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// job is what the plan says.
type job struct {
	module, reports, plan, attempt string
	markers                        []string
}

func newJob() (*job, error) {
	j := &job{
		module: os.Getenv("ARG_MODULE"), reports: os.Getenv("ARG_REPORTS"), plan: os.Getenv("ARG_PLAN"), attempt: os.Getenv("ARG_ATTEMPT"),
		markers: strings.Split(os.Getenv("ARG_MARKERS"), ","),
	}
	j.markers = slices.DeleteFunc(j.markers, func(marker string) bool { return marker == "" })
	if j.module == "" || j.reports == "" || j.plan == "" {
		return nil, fmt.Errorf("set ARG_MODULE, ARG_REPORTS and ARG_PLAN, as a run of a plan has them")
	}
	return j, nil
}

// notes is where the phases of a plan leave what they found for the next.
func (j *job) notes(name string) string { return filepath.Join(j.reports, j.plan+".notes", name) }

func (j *job) save(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return write(j.notes(name), text)
}

func (j *job) load(name string, value any) error {
	text, err := os.ReadFile(j.notes(name))
	if err != nil {
		return fmt.Errorf("read what an earlier phase found: %w", err)
	}
	if err := json.Unmarshal(text, value); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// write replaces the file in one step: nobody ever reads half of it, and to do it again changes nothing.
func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // there only after a failure
	if _, err := temp.Write(text); err != nil {
		_ = temp.Close()
		return err
	}
	if err := temp.Chmod(0o644); err != nil {
		_ = temp.Close()
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
