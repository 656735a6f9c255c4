// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command checkmodule is the strategies of the action check-module: each takes one look at a Go module. What it is told it finds in variables, as
// every run does (ARG_MODULE, ARG_REPORTS, ARG_PLAN, ...); what it finds out it leaves as its result, where the phases that follow find it.
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
		return nil, errors.New("set ARG_MODULE, ARG_REPORTS and ARG_PLAN, as a run of a plan has them")
	}
	return j, nil
}
