// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command checkmodule contains the strategies of the action check-module. Each strategy checks one aspect of a Go module. It reads its arguments from
// variables, like every run (ARG_MODULE, ARG_REPORTS, ARG_PLAN, ...), and writes its result for later phases.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	strategies := map[string]func(*job) error{"list": list, "search": search, "test": test, "summarize": summarize, "report": report}
	if len(os.Args) != 2 || strategies[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: checkmodule list|search|test|summarize|report")
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

// job contains the arguments of the run.
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
		return nil, errors.New("ARG_MODULE, ARG_REPORTS and ARG_PLAN must be set; a run of a plan sets them")
	}
	return j, nil
}
