// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/testenv"
)

// objectMark is the environment variable that marks the processes of one object. Children inherit it, so processTree also finds detached processes.
const objectMark = "E2E_OBJECT"

// processesWithVariable returns the processes that have NAME=value in their environment, as "PID command line". It omits processes that have already exited.
func processesWithVariable(name, value string) []string {
	entries, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, path := range entries {
		if !hasVariable(path, name, value) {
			continue
		}
		dir := filepath.Dir(path)
		words, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(words) == 0 {
			continue
		}
		found = append(found, filepath.Base(dir)+" "+string(bytes.ReplaceAll(bytes.TrimRight(words, "\x00"), []byte{0}, []byte{' '})))
	}
	return found
}

func hasVariable(path, name, value string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false // the process has exited or belongs to another user
	}
	return slices.Contains(strings.Split(string(text), "\x00"), name+"="+value)
}

// processTree returns the PIDs of all processes of an object.
func processTree(mark string) []int64 {
	var pids []int64
	for _, process := range processesWithVariable(objectMark, mark) {
		pid, _, _ := strings.Cut(process, " ")
		if n, err := strconv.ParseInt(pid, 10, 64); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

// signalTo sends a signal to a process directly, as an unrelated program would, after checking that the process belongs to the object.
func signalTo(pid int64, mark string, signal syscall.Signal) {
	GinkgoHelper()
	Expect(processTree(mark)).To(ContainElement(pid), "process %d does not belong to %s", pid, mark)
	Expect(syscall.Kill(int(pid), signal)).To(Succeed())
}

// killServers kills all processes of suiteBerth that run this program, and waits until these processes have exited.
func killServers(program string) {
	GinkgoHelper()
	isOne := ContainSubstring("/" + program + " ")
	servers := processesWithVariable(suiteMark, suiteBerth.mark)
	Expect(servers).To(ContainElement(isOne))
	for _, server := range servers {
		if pid, line, _ := strings.Cut(server, " "); strings.HasPrefix(line, filepath.Join(suiteBerth.root, "bin", program)+" ") {
			n, err := strconv.Atoi(pid)
			Expect(err).NotTo(HaveOccurred())
			Expect(syscall.Kill(n, syscall.SIGKILL)).To(Succeed())
		}
	}
	Eventually(func() []string { return processesWithVariable(suiteMark, suiteBerth.mark) }).ShouldNot(ContainElement(isOne))
}

// isListening reports whether a process accepts connections on the port.
func isListening(port int32) bool {
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, fmt.Sprint(port)), time.Second)
		if err == nil {
			_ = conn.Close()
			return true
		}
	}
	return false
}

// installCgroup matches the cgroup of an installation and those below it, but not that of a test cluster on the same machine.
var installCgroup = regexp.MustCompile(`/berth-[0-9a-f]{12}(/|$)`)

// cgroups returns the cgroups of all installations.
func cgroups() map[string]bool {
	found := map[string]bool{}
	// Ignore cgroups that disappear during the walk.
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && installCgroup.MatchString(path) {
			found[path] = true
		}
		return nil
	})
	return found
}

// cgroupsBelow returns the cgroups of installations, except those that the parameter "before" contains. It omits the root cgroup of an installation if this
// cgroup contains no process.
func cgroupsBelow(before map[string]bool) []string {
	var found []string
	for path := range cgroups() {
		processes, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		isRoot := strings.HasPrefix(filepath.Base(path), "berth-")
		if !before[path] && (!isRoot || err == nil && len(processes) > 0) {
			found = append(found, path)
		}
	}
	return found
}

// residentMemory returns the resident memory of a process in bytes.
func residentMemory(pid int) int64 {
	GinkgoHelper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	Expect(err).NotTo(HaveOccurred())
	fields := strings.Fields(string(text))
	Expect(len(fields)).To(BeNumerically(">", 1))
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	Expect(err).NotTo(HaveOccurred())
	return pages * int64(os.Getpagesize())
}

// parentOf returns the PID of the parent of a process.
func parentOf(pid int64) int64 {
	GinkgoHelper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	Expect(err).NotTo(HaveOccurred())
	// The name is in parentheses and may contain spaces; the state and the PID of the parent follow the name.
	_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')'):]), " ")
	fields := strings.Fields(rest)
	Expect(len(fields)).To(BeNumerically(">", 1))
	parent, err := strconv.ParseInt(fields[1], 10, 64)
	Expect(err).NotTo(HaveOccurred())
	return parent
}

// commandOf returns the command line of a process, or "" after its exit.
func commandOf(pid int64) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return string(bytes.ReplaceAll(text, []byte{0}, []byte{' '}))
}

func containsBytes(text []byte, words string) bool { return bytes.Contains(text, []byte(words)) }

// listenOnFreePort listens on a free port of this machine.
func listenOnFreePort() net.Listener {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	return listener
}

func portOf(listener net.Listener) *int32 {
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	return &port
}

// freePort returns a port on which no process listens.
func freePort() string {
	GinkgoHelper()
	port, err := testenv.FreePort()
	Expect(err).NotTo(HaveOccurred())
	return fmt.Sprint(port)
}
