// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// absent reports whether err means that the cgroup does not exist. Reading a file of a cgroup that was just removed returns ENODEV.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// cgroupMembers returns the PIDs in a cgroup and its descendants.
func cgroupMembers(dir string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if absent(err) {
		return nil, nil
	}
	// The list of a threaded cgroup cannot be read (EOPNOTSUPP), but the list of its parent cgroup contains its processes.
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, err
	}
	var pids []int
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		if pid, err := strconv.Atoi(string(line)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	below, err := subdirectories(dir)
	for _, name := range below {
		more, err := cgroupMembers(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		pids = append(pids, more...)
	}
	return pids, err
}

// subdirectories returns the names of the child cgroups of dir, or none if dir does not exist.
func subdirectories(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if absent(err) {
		return nil, nil
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, err
}

// Populated reports whether a cgroup or one of its descendants contains a process. It returns false if the cgroup does not exist.
func Populated(dir string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if absent(err) {
		return false, nil
	}
	return !bytes.Contains(data, []byte("populated 0")), err
}

// killCgroup kills all processes of a cgroup and its descendants in one operation. It returns nil if the cgroup does not exist.
func killCgroup(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("1")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		if _, gone := os.Stat(dir); absent(gone) {
			return nil
		}
	}
	return err
}

// RemoveCgroup removes a cgroup without processes, and its descendants. It returns nil if the cgroup does not exist.
func RemoveCgroup(dir string) error {
	below, err := subdirectories(dir)
	if err != nil {
		return err
	}
	for _, name := range below {
		if err := RemoveCgroup(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !absent(err) {
		return err
	}
	return nil
}
