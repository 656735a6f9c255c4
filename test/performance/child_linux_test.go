// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/performance/manager/stats"
)

// managerProcess is a manager in a separate process.
type managerProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	ended bool
}

// startManager starts a manager and waits until its cache has synced. If state is empty, processes exist only in the memory of
// the manager, or in Pods with the argument -pods. Otherwise state is the state directory of the host runtime. The parameter expect is the number of objects
// for Stats.AllObserved, and more contains additional arguments of the manager.
func startManager(t *testing.T, state string, expect int, more ...string) *managerProcess {
	t.Helper()
	g := NewWithT(t)
	arguments := []string{"-kubeconfig", kubeconfig, "-state", state, "-shim", shimPath, "-expect", strconv.Itoa(expect)}
	cmd := exec.Command(managerPath, append(arguments, more...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	g.Expect(err).NotTo(HaveOccurred())
	out, err := cmd.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmd.Start()).To(Succeed())
	c := &managerProcess{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	leftovers.addManager(cmd.Process)
	t.Cleanup(c.stop)
	g.Eventually(func() bool { return c.stats().Synced }).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(BeTrue())
	return c
}

// stats requests the manager's Stats.
func (c *managerProcess) stats() (s stats.Stats) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, "stats"); err != nil {
		c.t.Fatalf("request the stats of the manager: %v", err)
	}
	if !c.out.Scan() {
		c.t.Fatalf("the manager has exited: %v", c.out.Err())
	}
	if err := json.Unmarshal(c.out.Bytes(), &s); err != nil {
		c.t.Fatalf("decode the stats of the manager: %v", err)
	}
	return s
}

// memory returns the resident memory (VmRSS) of the manager in MiB.
func (c *managerProcess) memory() float64 {
	c.t.Helper()
	return float64(statusField(c.t, c.cmd.Process.Pid, "VmRSS")) / 1024
}

// stop stops the manager with SIGTERM.
func (c *managerProcess) stop() { c.end(syscall.SIGTERM) }

// kill kills the manager with SIGKILL, like a crash.
func (c *managerProcess) kill() { c.end(syscall.SIGKILL) }

func (c *managerProcess) end(signal syscall.Signal) {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.cmd.Process.Signal(signal)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.cmd.Wait()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		_ = c.cmd.Process.Kill()
		<-done
		c.t.Error("the manager did not exit after SIGTERM")
	}
}

// statusField reads a number from /proc/PID/status.
func statusField(t *testing.T, pid int, name string) int64 {
	t.Helper()
	return procField(t, filepath.Join("/proc", strconv.Itoa(pid), "status"), name)
}

// procField returns the sum of the named fields of a file in /proc whose lines have the format "name: number unit".
func procField(t *testing.T, path string, names ...string) (sum int64) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sumField(t, data, names...)
}

// sumField is like procField, but takes the content of the file instead of its path.
func sumField(t *testing.T, data []byte, names ...string) (sum int64) {
	t.Helper()
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		for _, wanted := range names {
			if name == wanted {
				n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
	}
	return sum
}
