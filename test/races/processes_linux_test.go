// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
)

// The rows read the running processes from the process table, independently of the runtime.

// suiteProcess is a running process of the suite.
type suiteProcess struct {
	procstat.Process
	args []string
}

func (p suiteProcess) isShim() bool { return filepath.Base(p.args[0]) == "berth-shim" }

// isWarmShim reports whether the process is a shim that was started in advance and not used yet.
func (p suiteProcess) isWarmShim() bool { return strings.HasPrefix(p.args[0], shim.WarmShimName) }

// arg returns the value of a flag of the command line.
func (p suiteProcess) arg(flag string) string {
	if i := slices.Index(p.args, flag); i >= 0 && i+1 < len(p.args) {
		return p.args[i+1]
	}
	return ""
}

// suiteProcesses returns the running processes whose program belongs to the suite, such as shims, workloads and multiplexers.
func suiteProcesses() []suiteProcess {
	GinkgoHelper()
	entries, err := os.ReadDir("/proc")
	Expect(err).NotTo(HaveOccurred())
	var all []suiteProcess
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		program, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe"))
		if err != nil || !strings.HasPrefix(program, programs+"/") || processState(pid) == 'Z' {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		identity, failed := procstat.Identify(pid)
		if err != nil || failed != nil || len(line) == 0 {
			continue // the process has exited
		}
		all = append(all, suiteProcess{Process: identity, args: strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")})
	}
	return all
}

// workloadPIDs returns the PIDs of the current row's processes with that name, or of all its processes if name is empty.
func workloadPIDs(name string) []int {
	GinkgoHelper()
	var pids []int
	for _, p := range suiteProcesses() {
		if !p.isShim() && p.arg("-dir") == env.dir && (name == "" || p.arg("-name") == name) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// processState returns the letter for the state of a process in /proc/PID/stat, or 0 if there is no such process.
func processState(pid int) byte {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if err != nil || len(fields) < 2 {
		return 0
	}
	return fields[0][0]
}

// zombies returns the children of the suite that have exited and were not reaped.
func zombies() []int {
	GinkgoHelper()
	entries, err := os.ReadDir("/proc")
	Expect(err).NotTo(HaveOccurred())
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || processState(pid) != 'Z' {
			continue
		}
		data, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killProcess kills a process of the suite. Because p identifies the process, killProcess never kills another process that has the PID by now.
func killProcess(p procstat.Process) {
	fd, err := procstat.Open(p)
	if errors.Is(err, procstat.ErrGone) {
		return
	}
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// workloadNote is a line that a workload wrote about itself.
type workloadNote struct {
	name, what string
	pid        int
}

// notes returns the lines that the workload with that name wrote to a file of the row, or the lines of all workloads if name is empty.
func notes(file, name string) []workloadNote {
	GinkgoHelper()
	data, err := os.ReadFile(filepath.Join(env.dir, file))
	if !errors.Is(err, fs.ErrNotExist) {
		Expect(err).NotTo(HaveOccurred())
	}
	var all []workloadNote
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimRight(line, "\n"), " ", 3)
		pid, err := strconv.Atoi(parts[1])
		Expect(err).NotTo(HaveOccurred(), line)
		if name == "" || parts[0] == name {
			all = append(all, workloadNote{name: parts[0], pid: pid, what: parts[2]})
		}
	}
	return all
}

// signalsTo returns the number of signals that a process recorded.
func signalsTo(pid int) int {
	GinkgoHelper()
	n := 0
	for _, note := range notes("signals", "") {
		if note.pid == pid {
			n++
		}
	}
	return n
}

// expectNoOverlap fails if a workload ever found that another workload with its name was running.
func expectNoOverlap() {
	GinkgoHelper()
	Expect(notes("violations", "")).To(BeEmpty(), "one process per object: no two ran at once under one name")
}

// runtimeTraces returns what the host runtime keeps for UIDs: directories and cgroups.
func runtimeTraces(stateDir string) []string {
	GinkgoHelper()
	var left []string
	for _, dir := range append(cgroups(stateDir), filepath.Join(stateDir, "run"), filepath.Join(stateDir, "lsp")) {
		entries, err := os.ReadDir(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			Expect(err).NotTo(HaveOccurred())
		}
		for _, entry := range entries {
			if entry.IsDir() {
				left = append(left, filepath.Join(dir, entry.Name()))
			}
		}
	}
	return left
}
