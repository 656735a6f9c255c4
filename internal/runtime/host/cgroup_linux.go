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

// contain returns the cgroup of this install, and the lock of it, which the manager holds as long as it runs. Both are nil if trees can only be held by
// subreapers.
func contain(options Options) (root *os.File, err error) {
	switch options.Containment {
	case shim.Subreaper:
		return nil, nil
	case "", shim.Cgroup:
	default:
		return nil, fmt.Errorf("containment %q is neither %s nor %s", options.Containment, shim.Cgroup, shim.Subreaper)
	}
	parents := []string{options.CgroupRoot}
	if options.CgroupRoot == "" {
		parents = cgroupParents()
	}
	err = errors.New("there is no cgroup2 file system")
	for _, parent := range parents {
		if root, err = usable(filepath.Join(parent, options.install()), options.ShimPath); err == nil {
			return root, nil
		}
	}
	if options.Containment == shim.Cgroup || options.CgroupRoot != "" {
		return nil, fmt.Errorf("processes cannot be held in cgroups: %w", err)
	}
	options.Logger.Info("Processes are held by subreapers, as cgroups cannot be used", "reason", err.Error())
	return nil, nil
}

// installName matches what Options.install returns.
var installName = regexp.MustCompile(`^berth-[0-9a-f]{12}$`)

// removeEmptyCgroups removes the subtrees of other state directories in which no process is left and whose managers have ended: a manager that runs holds
// the lock of its subtree. The kernel refuses to remove a cgroup with a process.
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

// removeUnlocked removes the subtree of an install unless its manager runs. It reports no error: the subtree may belong to another user.
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

// makeLocked makes a cgroup, if it is not there, and locks it against removeUnlocked of other managers.
func makeLocked(root string) (*os.File, error) {
	for {
		if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		dir, err := os.Open(root)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed by another manager in between
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

// cgroupParents gives the directories to try: the highest first, as what is made there outlives a login session.
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

// cgroupMount gives where the cgroup2 file system is mounted, and which of its directories.
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

// usable makes and locks the subtree and starts a process in it, which is the only proof that it can be done.
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
			err = fmt.Errorf("start a process in cgroup %s: %w", trial, err)
		}
		return pid, err
	})
}

// trials is how often it is tried to start what somebody else kills.
const trials = 3

// tryOut starts a process that ends by itself at once. That it was killed says nothing of what can be done: without this, a manager whose first process
// is killed would hold nothing in cgroups, and leave those of the manager before.
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
		return fmt.Errorf("berth-shim could not be tried out: wait status %#x", uint32(status))
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
