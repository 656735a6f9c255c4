// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package dockertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/internal/shim"
)

// endProcesses kills the processes that a killed engine has left: its containerd, the shims, and the containers in its cgroup. If program is not empty, it
// kills only the processes of that program.
func (e *Engine) endProcesses(ctx context.Context, program string) error {
	var left []int
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(context.Context) (ended bool, err error) {
		left, err = e.processes(program)
		for _, pid := range left {
			e.kill(pid, program)
		}
		return len(left) == 0, err
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("processes of the engine are left: %v", left)
	}
	return err
}

// kill kills a process of this engine. It checks the owner after opening the pidfd, so that it cannot kill another process that reuses the process ID.
func (e *Engine) kill(pid int, program string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if e.owns(pid, program) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// owns reports whether a process belongs to this engine: either the process runs a containerd program whose arguments contain the directory of the engine, or
// it is in the cgroup of the engine's containers. If only is not empty, the process must also run the program with that name. Zombies do not count.
func (e *Engine) owns(pid int, only string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	if stat, err := os.ReadFile(filepath.Join(proc, "stat")); err != nil || bytes.Contains(stat, []byte(") Z ")) {
		return false
	}
	args, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
	program, rest, _ := bytes.Cut(args, []byte{0})
	if only != "" && filepath.Base(string(program)) != only {
		return false
	}
	if strings.HasPrefix(filepath.Base(string(program)), "containerd") && bytes.Contains(rest, []byte(e.dir+"/")) {
		return true
	}
	groups, _ := os.ReadFile(filepath.Join(proc, "cgroup"))
	return bytes.Contains(groups, []byte(":/"+e.group()+"/"))
}

func (e *Engine) processes(program string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() && e.owns(pid, program) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// unmount removes the mounts of the engine below its directory, in reverse order.
func (e *Engine) unmount() error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var failed error
	for _, line := range slices.Backward(strings.Split(string(table), "\n")) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], e.dir+"/") {
			failed = errors.Join(failed, unix.Unmount(fields[4], unix.MNT_DETACH))
		}
	}
	return failed
}

// removeGroups removes the engine's cgroups in all hierarchies, and retries while the kernel still uses them.
func (e *Engine) removeGroups(ctx context.Context) error {
	roots, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", e.group()))
	roots = append(roots, filepath.Join("/sys/fs/cgroup", e.group()))
	for _, root := range roots {
		var last error
		err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(context.Context) (bool, error) {
			last = shim.RemoveCgroup(root)
			return last == nil, nil
		})
		if err != nil {
			return fmt.Errorf("a cgroup of the engine is left: %w", last)
		}
	}
	return nil
}
