// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

const (
	managerVariable     = "BERTH_TEST_MANAGER_STATE"
	tierVariable        = "BERTH_TEST_MANAGER_TIER"
	shimVariable        = "BERTH_TEST_MANAGER_SHIM"
	programVariable     = "BERTH_TEST_MANAGER_PROGRAM"
	processesPerManager = 12
)

// runManagerUntilKilled runs as a manager in a separate process. It starts processesPerManager processes one after another, and runs until it is killed.
func runManagerUntilKilled() {
	h, err := New(Options{StateDir: os.Getenv(managerVariable), ShimPath: os.Getenv(shimVariable), Containment: os.Getenv(tierVariable)})
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	fmt.Println("ready")
	for i := range processesPerManager {
		if err := h.Start(context.Background(), numberedProcess(os.Getenv(programVariable), os.Getenv(managerVariable), i)); err != nil {
			fmt.Println("failed:", err)
		}
	}
	select {}
}

// numberedProcess returns a process with a unique command line.
func numberedProcess(program, stateDir string, i int) runtime.Process {
	return runtime.Process{
		UID: types.UID("uid-" + strconv.Itoa(i)), Incarnation: 1, Name: "tests", Dir: "/", StopSignal: "SIGTERM",
		Command: []string{program, "sleep", stateDir + "#" + strconv.Itoa(i)},
	}
}

// countByLastArgument returns, for each word with the prefix, the number of processes whose command line ends with that word.
func countByLastArgument(prefix string) map[string]int {
	count := map[string]int{}
	entries, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, entry := range entries {
		data, err := os.ReadFile(entry)
		words := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
		if last := words[len(words)-1]; err == nil && strings.HasPrefix(last, prefix) {
			count[last]++
		}
	}
	return count
}

// Whenever a manager is killed, the next one finds the running processes and starts the missing ones, so that each runs exactly once.
func TestManager_RunsEachProcessOnceAfterKill(t *testing.T) {
	if os.Getenv(managerVariable) != "" {
		runManagerUntilKilled()
		return
	}
	forEachTier(t, func(f *fixture) {
		program := conformance.Workload(t)
		f.Expect(f.Close()).To(Succeed())
		for round := range 4 {
			delay := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
			t.Logf("round %d: killed %v after it was ready", round, delay)
			f.startAndKillManager(program, delay)
			f.open()
			for i := range processesPerManager {
				f.Expect(f.Start(f.ctx, numberedProcess(program, f.options.StateDir, i))).To(Succeed())
			}
			for i := range processesPerManager {
				f.await(numberedProcess("", "", i).UID, facts.Running)
			}
			f.Expect(countByLastArgument(f.options.StateDir + "#")).To(And(HaveLen(processesPerManager), HaveEach(1)))
			for i := range processesPerManager {
				uid := numberedProcess("", "", i).UID
				f.killAndWait(uid)
				f.Expect(f.Forget(f.ctx, uid)).To(Succeed())
			}
			f.Expect(countByLastArgument(f.options.StateDir + "#")).To(BeEmpty())
			f.Expect(f.Close()).To(Succeed())
		}
		f.open()
	})
}

func (f *fixture) startAndKillManager(program string, delay time.Duration) {
	f.Helper()
	self, err := os.Executable()
	f.Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command(self, "-test.run", "^TestManager_RunsEachProcessOnceAfterKill$")
	cmd.Env = append(os.Environ(), managerVariable+"="+f.options.StateDir, tierVariable+"="+f.options.Containment,
		shimVariable+"="+shimPath, programVariable+"="+program)
	out, err := cmd.StdoutPipe()
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(cmd.Start()).To(Succeed())
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		f.Expect(lines.Text()).NotTo(HavePrefix("failed"))
	}
	time.Sleep(delay) // not a wait for a condition: the test varies the moment of the kill
	f.Expect(cmd.Process.Kill()).To(Succeed())
	_ = cmd.Wait()
}
