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

// leave writes the result of the run. The argument sentence is the text for the log and the status. The argument value becomes the artifact with the given
// name, which later phases can read.
func leave(sentence, name string, value any) error {
	fmt.Println(sentence)
	file, artifacts := os.Getenv("BERTH_RESULT_FILE"), os.Getenv("BERTH_ARTIFACTS")
	if file == "" || artifacts == "" {
		return errors.New("BERTH_RESULT_FILE and BERTH_ARTIFACTS must be set; a run on a host sets them")
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

// some returns a phrase with the number and the noun, in the plural unless n is 1.
func some(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s.", n, what)
}

// result is the result of a run of an earlier phase: a line of the file that BERTH_RESULTS_STRATEGIZE or BERTH_RESULTS_EXECUTE names.
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

// earlier returns the results of an earlier phase, keyed by strategy. The argument variable is the name of the environment variable that contains the path
// of the file with the results.
func earlier(variable string) (map[string]result, error) {
	file, err := os.Open(os.Getenv(variable))
	if err != nil {
		return nil, fmt.Errorf("open the file named by $%s, a variable that is set only in runs of a later phase: %w", variable, err)
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
			return nil, fmt.Errorf("read the results of an earlier phase: %w", err)
		}
		results[r.Strategy] = r
	}
}

// load reads the artifact with the given name, which a strategy wrote in an earlier phase, and decodes it into value. The argument variable has the same
// meaning as in earlier.
func load(variable, strategy, name string, value any) error {
	results, err := earlier(variable)
	if err != nil {
		return err
	}
	found, there := results[strategy]
	if !there || found.Result.Artifacts == "" {
		return fmt.Errorf("no artifacts of strategy %s in an earlier phase", strategy)
	}
	text, err := os.ReadFile(filepath.Join(found.Result.Artifacts, name))
	if err != nil {
		return fmt.Errorf("read artifact of %s: %w", found.Run, err)
	}
	if err := json.Unmarshal(text, value); err != nil {
		return fmt.Errorf("read %s of %s: %w", name, found.Run, err)
	}
	return nil
}

// sentence returns the result text of a run. It returns an error if the text does not match the checksum recorded when the run ended.
func (r result) sentence() (string, error) {
	text, err := os.ReadFile(r.Result.File)
	if err != nil {
		return "", fmt.Errorf("read the result of %s: %w", r.Run, err)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != r.Result.SHA256 {
		return "", fmt.Errorf("result of %s was changed after the run ended", r.Run)
	}
	return string(text), nil
}
