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

// Names of the entries that a process started with Process.Results has in its results directory.
const (
	fileName      = "result"
	artifactsName = "artifacts"
	inputsName    = "inputs"
)

// Place implements runtime.ResultStore.
func (h *Host) Place(uid types.UID) runtime.ResultPaths {
	return pathsIn(h.place(uid, h.options.RunAs != nil))
}

func pathsIn(dir string) runtime.ResultPaths {
	return runtime.ResultPaths{File: filepath.Join(dir, fileName), Artifacts: filepath.Join(dir, artifactsName), Inputs: filepath.Join(dir, inputsName)}
}

// sharedPlace returns the results directory for programs that run as another user. That user owns the directory, and the user of the manager owns its parent
// directory.
func (h *Host) sharedPlace(uid types.UID) string {
	return filepath.Join(h.options.ResultsDir, string(uid))
}

// place returns the results directory of a UID.
func (h *Host) place(uid types.UID, shared bool) string {
	if shared {
		return h.sharedPlace(uid)
	}
	return h.dir(uid)
}

// usedPlace reports whether the results of a UID are in sharedPlace. They are not where Place puts those of the next start if an earlier manager with another
// RunAs has started the program.
func (h *Host) usedPlace(uid types.UID) (shared bool) {
	shared = h.options.RunAs != nil
	if _, err := os.Lstat(h.sharedPlace(uid)); err == nil {
		return true
	}
	if _, err := os.Lstat(filepath.Join(h.dir(uid), artifactsName)); err == nil {
		return false
	}
	return shared
}

// leaveOtherPlace removes the results directory that an earlier attempt to start the program has used with another RunAs, so that the results are found in the
// other one.
func (h *Host) leaveOtherPlace(uid types.UID, shared bool) error {
	if !shared {
		return h.removeShared(uid)
	}
	if err := removeAll(filepath.Join(h.dir(uid), artifactsName)); err != nil {
		return fmt.Errorf("remove the results: %w", err)
	}
	return nil
}

// preparePlace creates the results directory and writes the inputs of the program there. It overwrites the inputs of an earlier attempt, because nothing reads
// inputs before the program runs.
func (h *Host) preparePlace(p runtime.Process) (err error) {
	if !p.Results {
		return nil
	}
	shared := h.options.RunAs != nil
	dir := h.place(p.UID, shared)
	if err := h.leaveOtherPlace(p.UID, shared); err != nil {
		return err
	}
	if shared {
		err = errors.Join(os.MkdirAll(h.options.ResultsDir, 0o755), os.MkdirAll(dir, 0o700))
	} else {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("create the directory for results: %w", err)
	}
	// All paths are resolved below root, because another user may have put symbolic links into the directory.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the directory for results: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := root.MkdirAll(artifactsName, 0o700); err != nil {
		return fmt.Errorf("create the directory for results: %w", err)
	}
	if len(p.Inputs) > 0 {
		// A program may have put anything in the place of the inputs. For example, writing to a pipe would block.
		if err := errors.Join(root.RemoveAll(inputsName), root.Mkdir(inputsName, 0o700)); err != nil {
			return fmt.Errorf("create the directory for inputs: %w", err)
		}
	}
	for name, content := range p.Inputs {
		if err := writeInput(root, name, content); err != nil {
			return fmt.Errorf("write the input %s: %w", name, err)
		}
	}
	if !shared {
		return nil
	}
	return h.own(root, p)
}

// writeInput creates a file with an input.
func writeInput(root *os.Root, name string, content []byte) error {
	file, err := root.OpenFile(filepath.Join(inputsName, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// own makes the user of the programs the owner of the results directory.
func (h *Host) own(root *os.Root, p runtime.Process) error {
	paths := []string{artifactsName, "."}
	if len(p.Inputs) > 0 {
		paths = append(paths, inputsName)
	}
	for name := range p.Inputs {
		paths = append(paths, filepath.Join(inputsName, name))
	}
	for _, path := range paths {
		if err := root.Lchown(path, int(h.options.RunAs.UID), int(h.options.RunAs.GID)); err != nil {
			return fmt.Errorf("change the owner of the directory for results to user %s: %w", h.options.RunAs.Name, err)
		}
	}
	return nil
}

// removeShared removes the results of a program of another user. Unlike removeAll, it never changes permissions: root may remove everything, and the user could
// redirect a chmod with a symbolic link.
func (h *Host) removeShared(uid types.UID) error {
	if err := os.RemoveAll(h.sharedPlace(uid)); err != nil {
		return fmt.Errorf("remove the results: %w", err)
	}
	return nil
}

// Results implements runtime.ResultStore. The program may have created any kind of file at these paths, so Results follows no links and reads only regular
// files.
func (h *Host) Results(uid types.UID) runtime.Results {
	shared := h.usedPlace(uid)
	dir := h.place(uid, shared)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return runtime.Results{} // nothing was prepared, or the results were removed
	}
	// Everything is opened relative to one directory and checked by its descriptor, because the program can replace the files at any time.
	opened := os.NewFile(uintptr(fd), dir)
	defer func() { _ = opened.Close() }()
	found := resultFile(opened, shared)
	found.Artifacts = holdsSomething(opened)
	if place := pathsIn(dir); place != h.Place(uid) {
		found.Paths = place
	}
	return found
}

// sameOwner reports whether two open files belong to the same user.
func sameOwner(a, b *os.File) bool {
	var of, than unix.Stat_t
	return unix.Fstat(int(a.Fd()), &of) == nil && unix.Fstat(int(b.Fd()), &than) == nil && of.Uid == than.Uid
}

// resultFile reads the result file in a directory. If the directory is shared, the file must belong to the user of the directory.
func resultFile(dir *os.File, shared bool) (found runtime.Results) {
	fd, err := unix.Openat(int(dir.Fd()), fileName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return found
	}
	found.File = true
	switch {
	case errors.Is(err, unix.ELOOP):
		found.Problem = "The result file is a symbolic link, which Berth does not follow. Write a regular file."
	case errors.Is(err, unix.ENXIO):
		found.Problem = notOrdinary
	case err != nil:
		found.Problem = fmt.Sprintf("Cannot open the result file: %v.", err)
	}
	if err != nil {
		return found
	}
	file := os.NewFile(uintptr(fd), fileName)
	defer func() { _ = file.Close() }()
	if shared && !sameOwner(dir, file) {
		// The result file may be a hard link to a file that only root may read.
		found.Problem = "The result file does not belong to the user of the program. The program must write the file itself."
		return found
	}
	take(file, &found)
	return found
}

const notOrdinary = "The result file is not a regular file. Write text to a regular file of that name."

// take reads an open file, after checking that it is a regular file of at most runtime.MostResultBytes.
func take(file *os.File, found *runtime.Results) {
	info, err := file.Stat()
	if err != nil {
		found.Problem = fmt.Sprintf("Cannot read the result file: %v.", err)
		return
	}
	if !info.Mode().IsRegular() {
		found.Problem = notOrdinary
		return
	}
	if found.Size = info.Size(); found.Size > runtime.MostResultBytes {
		found.Problem = fmt.Sprintf("The result file has %d bytes; the limit is %d. Write a shorter text and put the rest in the artifacts directory.",
			found.Size, runtime.MostResultBytes)
		return
	}
	content, err := io.ReadAll(io.LimitReader(file, runtime.MostResultBytes))
	if err != nil {
		found.Problem = fmt.Sprintf("Cannot read the result file: %v.", err)
		return
	}
	sum := sha256.Sum256(content)
	found.Size, found.SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
	found.Head = content[:min(len(content), runtime.ResultHeadBytes)]
}

// holdsSomething reports whether the directory of artifacts in a results directory contains an entry.
func holdsSomething(dir *os.File) bool {
	fd, err := unix.Openat(int(dir.Fd()), artifactsName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	artifacts := os.NewFile(uintptr(fd), artifactsName)
	defer func() { _ = artifacts.Close() }()
	names, _ := artifacts.Readdirnames(1) // reading an empty directory returns io.EOF
	return len(names) > 0
}

// removeAll removes what a program has left, including directories without write permission, such as module caches.
func removeAll(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	unlock(path)
	return os.RemoveAll(path)
}

// unlock makes directories writable for their owner. It ignores errors, because the removal that follows reports them.
func unlock(path string) {
	_ = filepath.WalkDir(path, func(inside string, entry fs.DirEntry, _ error) error {
		if entry != nil && entry.IsDir() {
			// WalkDir calls this function before it reads the directory. Without the new permissions that read would fail.
			_ = os.Chmod(inside, 0o700)
		}
		return nil
	})
}
