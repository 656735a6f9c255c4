// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/shim"
)

// contain returns the open directory of this install's cgroup, locked for as long as the manager runs. It returns nil if subreapers contain the process trees
// instead, because the options require this or because cgroups cannot be used.
func contain(options Options) (root *os.File, err error) {
	switch options.Containment {
	case shim.Subreaper:
		return nil, nil
	case "", shim.Cgroup:
	default:
		return nil, fmt.Errorf("unknown containment %q; use %s or %s", options.Containment, shim.Cgroup, shim.Subreaper)
	}
	parents := []string{options.CgroupRoot}
	if options.CgroupRoot == "" {
		parents = cgroupParents()
	}
	err = errors.New("no cgroup2 file system is mounted")
	for _, parent := range parents {
		if root, err = usable(filepath.Join(parent, options.install()), options.ShimPath); err == nil {
			return root, nil
		}
	}
	if options.Containment == shim.Cgroup || options.CgroupRoot != "" {
		return nil, fmt.Errorf("cannot use cgroups to contain processes: %w", err)
	}
	options.Logger.Info("Cannot use cgroups; containing processes with subreapers instead", "reason", err.Error())
	return nil, nil
}

// installName matches the result of Options.install.
var installName = regexp.MustCompile(`^berth-[0-9a-f]{12}$`)

// removeEmptyCgroups removes the subtrees of other state directories that have no process and whose managers have exited. A running manager holds the lock of
// its subtree, and the kernel refuses to remove a cgroup that contains a process.
func removeEmptyCgroups(own string) {
	parent := filepath.Dir(own)
	entries, _ := os.ReadDir(parent)
	for _, entry := range entries {
		root := filepath.Join(parent, entry.Name())
		if root == own || !installName.MatchString(entry.Name()) {
			continue
		}
		if populated, err := shim.Populated(root); err == nil && !populated {
			removeUnlocked(root)
		}
	}
}

// removeUnlocked removes the subtree of an install unless its manager is running. It reports no error, because the subtree may belong to another user.
func removeUnlocked(root string) {
	dir, err := os.Open(root)
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = shim.RemoveCgroup(root)
	}
}

// makeLocked creates a cgroup if it does not exist, and locks it against removeUnlocked of other managers.
func makeLocked(root string) (*os.File, error) {
	for {
		if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		dir, err := os.Open(root)
		if errors.Is(err, os.ErrNotExist) {
			continue // another manager has just removed it
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_SH); err != nil {
			return nil, errors.Join(fmt.Errorf("lock cgroup %s: %w", root, err), dir.Close())
		}
		locked, err := dir.Stat()
		if there, statErr := os.Stat(root); err == nil && statErr == nil && os.SameFile(locked, there) {
			return dir, nil
		}
		_ = dir.Close()
	}
}

// cgroupParents returns the candidate parent directories, from the top of the hierarchy down: a cgroup near the top outlives a login session.
func cgroupParents() []string {
	mount, root := cgroupMount()
	if mount == "" {
		return nil
	}
	parents := []string{mount}
	own := strings.TrimPrefix(ownCgroup(), strings.TrimSuffix(root, "/"))
	dir := mount
	for name := range strings.SplitSeq(strings.Trim(own, "/"), "/") {
		if name == "" || name == ".." {
			break
		}
		dir = filepath.Join(dir, name)
		parents = append(parents, dir)
	}
	return parents
}

// cgroupMount returns the mount point of the cgroup2 file system and the directory within that file system that is mounted there.
func cgroupMount() (mount, root string) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", ""
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 {
			return fields[4], fields[3]
		}
	}
	return "", ""
}

func ownCgroup() string {
	data, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	return "/"
}

// usable tests whether the cgroup root can be used. It creates and locks that cgroup and starts a process in it, because no simpler test is reliable. It
// returns the open and locked directory of that cgroup.
func usable(root, shimPath string) (locked *os.File, err error) {
	_, before := os.Stat(root)
	if locked, err = makeLocked(root); err != nil {
		return nil, err
	}
	trial := filepath.Join(root, ".probe") // no UID begins with a dot
	defer func() {
		_ = os.Remove(trial)
		if err != nil {
			_ = locked.Close()
			locked = nil
		}
		if err != nil && before != nil {
			_ = os.Remove(root)
		}
	}()
	if err := os.Mkdir(trial, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return locked, err
	}
	if _, err := os.Stat(filepath.Join(trial, "cgroup.events")); err != nil {
		return locked, fmt.Errorf("%s is not a cgroup: %w", trial, err)
	}
	fd, err := unix.Open(trial, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return locked, err
	}
	defer func() { _ = unix.Close(fd) }()
	return locked, tryOut(func() (int, error) {
		pid, err := syscall.ForkExec(shimPath, []string{"berth-shim", shim.Probe}, &syscall.ProcAttr{
			Env: []string{}, Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd},
		})
		if err != nil {
			err = fmt.Errorf("execute %s in cgroup %s: %w", shimPath, trial, err)
		}
		return pid, err
	})
}

// trials is the maximum number of test processes that tryOut starts. tryOut starts another process only if the previous process was killed.
const trials = 3

// tryOut starts a process that exits immediately, and waits for it. It repeats the test if a third party killed the process. Otherwise the manager would not
// use cgroups after such a kill, and would abandon the cgroups of the previous manager.
func tryOut(start func() (pid int, err error)) error {
	var status unix.WaitStatus
	for range trials {
		pid, err := start()
		if err != nil {
			return err
		}
		if status, err = await(pid); err != nil {
			return err
		}
		if !status.Signaled() {
			break
		}
	}
	if status != 0 {
		return fmt.Errorf("the test run of berth-shim failed with wait status %#x", uint32(status))
	}
	return nil
}

func await(pid int) (status unix.WaitStatus, err error) {
	for {
		if _, err = unix.Wait4(pid, &status, 0, nil); !errors.Is(err, unix.EINTR) {
			return status, err
		}
	}
}
