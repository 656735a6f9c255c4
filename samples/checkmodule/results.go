// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// leave says in a sentence what was found, for people and for the status, and leaves the whole of it for later phases.
func leave(sentence, name string, value any) error {
	fmt.Println(sentence)
	file, artifacts := os.Getenv("BERTH_RESULT_FILE"), os.Getenv("BERTH_ARTIFACTS")
	if file == "" || artifacts == "" {
		return errors.New("set BERTH_RESULT_FILE and BERTH_ARTIFACTS, as a run on a host has them")
	}
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(artifacts, name), text, 0o644); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(sentence+"\n"), 0o644)
}

// some counts things in a sentence.
func some(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s.", n, what)
}

// result is what a run of an earlier phase came to: a line of the file that BERTH_RESULTS_STRATEGIZE or BERTH_RESULTS_EXECUTE names.
type result struct {
	Run      string `json:"run"`
	Strategy string `json:"strategy"`
	Outcome  string `json:"outcome"`
	Result   struct {
		File      string `json:"file"`
		SHA256    string `json:"sha256"`
		Artifacts string `json:"artifacts"`
	} `json:"result"`
}

// earlier gives what a phase came to, by strategy. variable names the file.
func earlier(variable string) (map[string]result, error) {
	file, err := os.Open(os.Getenv(variable))
	if err != nil {
		return nil, fmt.Errorf("read what %s names, as a run of a later phase has it: %w", variable, err)
	}
	defer func() { _ = file.Close() }()
	results := map[string]result{}
	for lines := json.NewDecoder(bufio.NewReader(file)); ; {
		var r result
		err := lines.Decode(&r)
		if errors.Is(err, io.EOF) {
			return results, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read what an earlier phase came to: %w", err)
		}
		results[r.Strategy] = r
	}
}

// load reads what one run of an earlier phase has left under a name.
func load(variable, strategy, name string, value any) error {
	results, err := earlier(variable)
	if err != nil {
		return err
	}
	found, there := results[strategy]
	if !there || found.Result.Artifacts == "" {
		return fmt.Errorf("strategy %s has left nothing in an earlier phase", strategy)
	}
	text, err := os.ReadFile(filepath.Join(found.Result.Artifacts, name))
	if err != nil {
		return fmt.Errorf("read what %s has left: %w", found.Run, err)
	}
	if err := json.Unmarshal(text, value); err != nil {
		return fmt.Errorf("read %s of %s: %w", name, found.Run, err)
	}
	return nil
}

// sentence is what a run said, made sure to be what was put on record when it ended.
func (r result) sentence() (string, error) {
	text, err := os.ReadFile(r.Result.File)
	if err != nil {
		return "", fmt.Errorf("read the result of %s: %w", r.Run, err)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != r.Result.SHA256 {
		return "", fmt.Errorf("the result of %s was changed after its end", r.Run)
	}
	return string(text), nil
}
