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
	managerVariable = "BERTH_TEST_MANAGER_STATE"
	tierVariable    = "BERTH_TEST_MANAGER_TIER"
	shimVariable    = "BERTH_TEST_MANAGER_SHIM"
	programVariable = "BERTH_TEST_MANAGER_PROGRAM"
	perManager      = 12
)

// lostManager is a manager in a separate process. It starts one process after another until it is killed.
func lostManager() {
	h, err := New(Options{StateDir: os.Getenv(managerVariable), ShimPath: os.Getenv(shimVariable), Containment: os.Getenv(tierVariable)})
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	fmt.Println("ready")
	for i := range perManager {
		if err := h.Start(context.Background(), numbered(os.Getenv(programVariable), os.Getenv(managerVariable), i)); err != nil {
			fmt.Println("failed:", err)
		}
	}
	select {}
}

// numbered returns a process with a unique command line.
func numbered(program, stateDir string, i int) runtime.Process {
	return runtime.Process{
		UID: types.UID("uid-" + strconv.Itoa(i)), Incarnation: 1, Name: "tests", Dir: "/", StopSignal: "SIGTERM",
		Command: []string{program, "sleep", stateDir + "#" + strconv.Itoa(i)},
	}
}

// copies counts the processes by the last word of their command line, if that word has the prefix.
func copies(prefix string) map[string]int {
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

// Whenever a manager is killed, the next one finds the processes that run and starts those that are missing, so that each runs exactly once.
func TestManagerKilledAtAnyMoment(t *testing.T) {
	if os.Getenv(managerVariable) != "" {
		lostManager()
		return
	}
	forTiers(t, func(b *bench) {
		program := conformance.Workload(t)
		b.Expect(b.Close()).To(Succeed())
		for round := range 4 {
			delay := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
			t.Logf("round %d: killed %v after it was ready", round, delay)
			b.killManager(program, delay)
			b.open()
			for i := range perManager {
				b.Expect(b.Start(b.ctx, numbered(program, b.options.StateDir, i))).To(Succeed())
			}
			for i := range perManager {
				b.await(numbered("", "", i).UID, facts.Running)
			}
			b.Expect(copies(b.options.StateDir + "#")).To(And(HaveLen(perManager), HaveEach(1)))
			for i := range perManager {
				uid := numbered("", "", i).UID
				b.end(uid)
				b.Expect(b.Forget(b.ctx, uid)).To(Succeed())
			}
			b.Expect(copies(b.options.StateDir + "#")).To(BeEmpty())
			b.Expect(b.Close()).To(Succeed())
		}
		b.open()
	})
}

func (b *bench) killManager(program string, delay time.Duration) {
	b.Helper()
	self, err := os.Executable()
	b.Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command(self, "-test.run", "^TestManagerKilledAtAnyMoment$")
	cmd.Env = append(os.Environ(), managerVariable+"="+b.options.StateDir, tierVariable+"="+b.options.Containment,
		shimVariable+"="+shimPath, programVariable+"="+program)
	out, err := cmd.StdoutPipe()
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(cmd.Start()).To(Succeed())
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		b.Expect(lines.Text()).NotTo(HavePrefix("failed"))
	}
	time.Sleep(delay) // not a wait for a condition: the test varies the moment of the kill
	b.Expect(cmd.Process.Kill()).To(Succeed())
	_ = cmd.Wait()
}
