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
func TestKill_EndsAForkBomb(t *testing.T) {
	const more = 150
	forTiers(t, func(b *bench) {
		user := os.Getuid()
		if user == 0 { // the limit does not apply to root
			user = 54322
			b.options.RunAs = &shim.User{Name: "bomber", UID: uint32(user), GID: uint32(user), Home: "/"}
			b.options.ResultsDir = b.results()
			b.reopen()
		}
		bomb := b.process("web", 1, "bomb", strconv.Itoa(threads(user)+more))
		bomb.Command[0] = filepath.Join(b.results(), "bomb")
		program, err := os.ReadFile(conformance.Workload(t))
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(os.WriteFile(bomb.Command[0], program, 0o755)).To(Succeed()) //nolint:gosec // another user executes it
		b.Expect(b.Start(b.ctx, bomb)).To(Succeed())
		b.await("web", facts.Running)
		tree := b.trees("web")
		members := func() (int, error) {
			found, err := tree.Members()
			return len(found), err
		}
		b.Eventually(members).WithTimeout(conformance.Timeout).WithPolling(10 * time.Millisecond).Should(BeNumerically(">", more/2))

		// The test calls tree.Kill and not Host.Kill, because a kill request would make the shim kill processes too.
		b.Expect(tree.Kill()).To(Succeed())
		b.Eventually(tree.Empty).WithTimeout(time.Second).WithPolling(5 * time.Millisecond).Should(BeTrue())
		b.Expect(b.await("web", facts.Exited).Exit.Signal).To(Equal("SIGKILL"))
	})
}

// threads counts the threads of a user, as RLIMIT_NPROC does.
func threads(user int) (count int) {
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/*")
	for _, task := range tasks {
		if info, err := os.Stat(task); err == nil && int(info.Sys().(*syscall.Stat_t).Uid) == user {
			count++
		}
	}
	return count
}
