// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The test program itself is a Go program, so it contains build information.
func TestRun_ListsModulesOfProgram(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(&out, []string{program}); err != nil {
		t.Fatal(err)
	}
	var told bom
	if err := json.Unmarshal(out.Bytes(), &told); err != nil {
		t.Fatal(err)
	}
	if len(told.Components) < 2 || told.Components[0].Type != "application" || !strings.Contains(out.String(), `"pkg:golang/stdlib@1.`) {
		t.Errorf("%s", out.String())
	}
	if err := run(&out, []string{"main.go"}); err == nil {
		t.Error("accepted a source file as a program")
	}
}
