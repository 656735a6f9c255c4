// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// One Kill ends a fork bomb that has reached the process limit of its user. If Kill only sent SIGKILL, the surviving processes would replace each killed one.
func TestKill_KillsForkBomb(t *testing.T) {
	const more = 150
	forEachTier(t, func(f *fixture) {
		user := os.Getuid()
		if user == 0 { // the limit does not apply to root
			user = 54322
			f.options.RunAs = &shim.User{Name: "bomber", UID: uint32(user), GID: uint32(user), Home: "/"}
			f.options.ResultsDir = f.newResultsDir()
			f.reopen()
		}
		bomb := f.process("web", 1, "bomb", strconv.Itoa(countThreads(user)+more))
		bomb.Command[0] = filepath.Join(f.newResultsDir(), "bomb")
		program, err := os.ReadFile(conformance.Workload(t))
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(os.WriteFile(bomb.Command[0], program, 0o755)).To(Succeed()) //nolint:gosec // another user executes it
		f.Expect(f.Start(f.ctx, bomb)).To(Succeed())
		f.await("web", facts.Running)
		tree := f.processTree("web")
		members := func() (int, error) {
			found, err := tree.Members()
			return len(found), err
		}
		f.Eventually(members).WithTimeout(conformance.Timeout).WithPolling(10 * time.Millisecond).Should(BeNumerically(">", more/2))

		// The test calls tree.Kill and not Host.Kill, because a kill request would make the shim kill processes too.
		f.Expect(tree.Kill()).To(Succeed())
		f.Eventually(tree.Empty).WithTimeout(time.Second).WithPolling(5 * time.Millisecond).Should(BeTrue())
		f.Expect(f.await("web", facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
	})
}

// countThreads counts the threads of a user, as RLIMIT_NPROC does.
func countThreads(user int) (count int) {
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/*")
	for _, task := range tasks {
		if info, err := os.Stat(task); err == nil && int(info.Sys().(*syscall.Stat_t).Uid) == user {
			count++
		}
	}
	return count
}
