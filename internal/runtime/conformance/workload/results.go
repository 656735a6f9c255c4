// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// leave writes a text as the result.
func leave(text string) { put(os.Getenv("BERTH_RESULT_FILE"), text) }

func put(path, text string) {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		fail(err)
	}
}

// results writes a text as the result and as an artifact, and prints its inputs.
func results(text string) {
	leave(text)
	put(filepath.Join(os.Getenv("BERTH_ARTIFACTS"), "more.txt"), text)
	given, err := os.ReadFile(os.Getenv("GIVEN"))
	if err != nil {
		fail(err)
	}
	fmt.Print(string(given))
}

// say writes a text as the result and as an artifact, and keeps running.
func say(text string) {
	leave(text)
	put(filepath.Join(os.Getenv("BERTH_ARTIFACTS"), "more.txt"), text)
	ready()
}

// relay writes a text as the result, followed by the results of the runs of earlier phases.
func relay(text string) {
	for _, variable := range []string{"BERTH_RESULTS_STRATEGIZE", "BERTH_RESULTS_EXECUTE"} {
		if name := os.Getenv(variable); name != "" {
			text += earlier(name)
		}
	}
	leave(text)
}

// earlier returns the summaries in a file of results, each in brackets.
func earlier(name string) (said string) {
	file, err := os.Open(name)
	if err != nil {
		fail(err)
	}
	defer func() { _ = file.Close() }()
	for lines := json.NewDecoder(file); ; {
		var run struct{ Result struct{ Summary string } }
		err := lines.Decode(&run)
		if errors.Is(err, io.EOF) {
			return said
		}
		if err != nil {
			fail(fmt.Errorf("read %s: %w", name, err))
		}
		said += " [" + run.Result.Summary + "]"
	}
}
