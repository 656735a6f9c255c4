// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// What is in the directory of a UID beside the files of its shim, once it was started with a place for results.
const (
	fileName      = "result"
	artifactsName = "artifacts"
	inputsName    = "inputs"
)

// Place implements runtime.Keeper.
func (h *Host) Place(uid types.UID) runtime.Place {
	dir := h.dir(uid)
	return runtime.Place{File: filepath.Join(dir, fileName), Artifacts: filepath.Join(dir, artifactsName), Inputs: filepath.Join(dir, inputsName)}
}

// preparePlace makes the place for results, and puts there what the program is given.
func (h *Host) preparePlace(p runtime.Process) error {
	if !p.Results {
		return nil
	}
	place := h.Place(p.UID)
	if err := os.MkdirAll(place.Artifacts, 0o700); err != nil {
		return fmt.Errorf("make a place for results: %w", err)
	}
	if len(p.Inputs) == 0 {
		return nil
	}
	if err := os.MkdirAll(place.Inputs, 0o700); err != nil {
		return fmt.Errorf("make a place for inputs: %w", err)
	}
	for name, content := range p.Inputs {
		// Nothing reads it before the program runs, so half of one is written anew when this is tried again.
		if err := os.WriteFile(filepath.Join(place.Inputs, name), content, 0o600); err != nil {
			return fmt.Errorf("write the input %s: %w", name, err)
		}
	}
	return nil
}

// Results implements runtime.Keeper. The program can have put anything there: links are not followed, and nothing but an ordinary file is read.
func (h *Host) Results(uid types.UID) runtime.Results {
	place := h.Place(uid)
	found := resultFile(place.File)
	found.Artifacts = holdsSomething(place.Artifacts)
	return found
}

// resultFile reads the result file.
func resultFile(path string) (found runtime.Results) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return found
	}
	found.File = true
	switch {
	case errors.Is(err, unix.ELOOP):
		found.Problem = "The result file is a symbolic link, which is not followed: write the file itself."
	case errors.Is(err, unix.ENXIO):
		found.Problem = notOrdinary
	case err != nil:
		found.Problem = fmt.Sprintf("The result file cannot be opened: %v.", err)
	}
	if err != nil {
		return found
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }()
	take(file, &found)
	return found
}

const notOrdinary = "The result file is no ordinary file: write text into a file of that name."

// take reads a file of which nothing is known but that it is open.
func take(file *os.File, found *runtime.Results) {
	info, err := file.Stat()
	if err != nil {
		found.Problem = fmt.Sprintf("The result file cannot be read: %v.", err)
		return
	}
	if !info.Mode().IsRegular() {
		found.Problem = notOrdinary
		return
	}
	if found.Size = info.Size(); found.Size > runtime.MostResultBytes {
		found.Problem = fmt.Sprintf("The result file has %d bytes, and at most %d are taken: leave a short text there, and the rest among the artifacts.",
			found.Size, runtime.MostResultBytes)
		return
	}
	content, err := io.ReadAll(io.LimitReader(file, runtime.MostResultBytes))
	if err != nil {
		found.Problem = fmt.Sprintf("The result file cannot be read: %v.", err)
		return
	}
	sum := sha256.Sum256(content)
	found.Size, found.SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
	found.Head = content[:min(len(content), runtime.ResultHeadBytes)]
}

// holdsSomething says whether an artifact is there.
func holdsSomething(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	artifacts := os.NewFile(uintptr(fd), path)
	defer func() { _ = artifacts.Close() }()
	names, _ := artifacts.Readdirnames(1) // an end that is found at once is an error too
	return len(names) > 0
}

// removeAll removes what a program has left, folders that it has locked against changes included: caches of modules are such.
func removeAll(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	unlock(path)
	return os.RemoveAll(path)
}

// unlock makes folders changeable for their owner. What fails is said by whoever then removes them.
func unlock(path string) {
	_ = filepath.WalkDir(path, func(inside string, entry fs.DirEntry, _ error) error {
		if entry != nil && entry.IsDir() {
			// A folder is told before it is read; without this it could not be.
			_ = os.Chmod(inside, 0o700)
		}
		return nil
	})
}
