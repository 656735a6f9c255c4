// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// test runs the tests of the module. Their output is also in the log of the run.
func test(j *job) error {
	var said bytes.Buffer
	command := exec.Command("go", "-C", j.module, "test", "./...")
	command.Stdout, command.Stderr = io.MultiWriter(os.Stdout, &said), os.Stderr
	failed := command.Run()
	var exit *exec.ExitError
	if failed != nil && !errors.As(failed, &exit) {
		return fmt.Errorf("run the tests: %w", failed)
	}
	passed, broken := []string{}, []string{}
	for line := range strings.Lines(said.String()) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 2:
		case fields[0] == "ok":
			passed = append(passed, fields[1])
		case fields[0] == "FAIL":
			broken = append(broken, fields[1])
		}
	}
	sentence := "The tests pass: " + some(len(passed), "package")
	if failed != nil {
		sentence = fmt.Sprintf("The tests of %s fail.", strings.Join(broken, ", "))
	}
	return errors.Join(failed, leave(sentence, "packages.json", map[string][]string{"passed": passed, "failed": broken}))
}
