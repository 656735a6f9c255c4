// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
)

// osProcess is a process of this test run. Its executable identifies it, because the executables are built for this run only.
type osProcess struct {
	procstat.Process
	exe  string
	args []string
	env  map[string]string
}

func (p osProcess) String() string {
	text := fmt.Sprintf("%d %s", p.PID, strings.Join(p.args, " "))
	if name := p.env["CHAOS_NAME"]; name != "" {
		text += fmt.Sprintf(" (%s life %s revision %s)", name, p.env["CHAOS_LIFE"], p.env["CHAOS_REVISION"])
	}
	return text
}

func (p osProcess) isLeader() bool { return len(p.args) > 1 && p.args[1] == "leader" }

// isWarmShim reports whether the process is a warm shim: a shim that a manager has started in advance and that runs no workload yet.
func (p osProcess) isWarmShim() bool { return strings.HasPrefix(p.args[0], shim.WarmShimName) }

// processesOf returns the processes that execute one of the programs, without zombies.
func processesOf(programs ...string) ([]osProcess, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []osProcess
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink("/proc/" + entry.Name() + "/exe")
		if err != nil {
			continue // the process is gone, or it is a kernel thread
		}
		for _, program := range programs {
			if exe != program {
				continue
			}
			if p, err := readProcess(pid, exe); err == nil {
				found = append(found, p)
			}
		}
	}
	return found, nil
}

func readProcess(pid int, exe string) (osProcess, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	id, err := procstat.Identify(pid)
	if err != nil {
		return osProcess{}, err
	}
	cmdline, err := os.ReadFile(dir + "/cmdline")
	if err != nil {
		return osProcess{}, err
	}
	environ, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return osProcess{}, err
	}
	p := osProcess{Process: id, exe: exe, args: splitNul(cmdline), env: map[string]string{}}
	for _, entry := range splitNul(environ) {
		if name, value, ok := strings.Cut(entry, "="); ok && (strings.HasPrefix(name, "CHAOS_") || name == "PORT") {
			p.env[name] = value
		}
	}
	if now, err := os.Readlink(dir + "/exe"); err != nil || now != exe {
		return osProcess{}, procstat.ErrGone
	}
	return p, nil
}

func splitNul(data []byte) []string {
	return strings.Split(string(bytes.TrimSuffix(data, []byte{0})), "\x00")
}

// signal sends a signal to this process, and never to another process with the same PID. It returns no error if the process is gone.
func (p osProcess) signal(signal unix.Signal) error {
	fd, err := procstat.Open(p.Process)
	if errors.Is(err, procstat.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// kill kills this process, and never another process with the same PID, and waits until it has ended.
func (p osProcess) kill(patience time.Duration) error {
	fd, err := procstat.Open(p.Process)
	if errors.Is(err, procstat.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	for end := time.Now().Add(patience); ; {
		if ended, _ := procstat.Ended(fd); ended {
			return nil
		}
		left := time.Until(end)
		if left <= 0 {
			return fmt.Errorf("process %d did not end within %s of SIGKILL", p.PID, patience)
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// zombiesOf returns the zombie children of a process.
func zombiesOf(parent int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(parent) {
			found = append(found, pid)
		}
	}
	return found, nil
}
