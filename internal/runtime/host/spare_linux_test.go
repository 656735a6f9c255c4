// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// awaitSpare waits until a warm shim is ready, and returns its PID.
func (b *bench) awaitSpare() (pid int) {
	b.Helper()
	b.Eventually(func() int {
		b.spares.mu.Lock()
		defer b.spares.mu.Unlock()
		if b.spares.ready != nil {
			pid = b.spares.ready.pid
		}
		return pid
	}).WithTimeout(conformance.Timeout).WithPolling(time.Millisecond).ShouldNot(BeZero())
	return pid
}

func words(pid int) []string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.Split(strings.TrimRight(string(data), "\x00 "), "\x00")
}

// A warm shim supervises its process like any other shim, and the next warm shim is ready soon. Without cgroups there is none, and each start forks its own shim.
func TestSpareBecomesTheShim(t *testing.T) {
	t.Setenv("KUBECONFIG", "/of/the/manager")
	forTiers(t, func(b *bench) {
		if b.cgroup == "" {
			b.startWithout("held")
			b.Expect(b.spares.take()).To(BeNil())
			return
		}
		spare := b.awaitSpare()
		b.Expect(words(spare)).To(Equal([]string{shim.SpareName}))
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(spare) + "/environ")
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(string(environ)).NotTo(ContainSubstring("KUBECONFIG"), "the warm shim does not inherit the environment of the manager")
		b.start("held", "sleep")
		b.await("held", facts.Running)
		held := b.identity("held").Shim
		b.Expect(held.PID).To(Equal(spare))
		b.Expect(words(spare)).To(Equal([]string{"berth-shim", "tests/default/held"}))
		b.Expect(os.Readlink("/proc/" + strconv.Itoa(spare) + "/cwd")).To(Equal(b.dir("held")))
		b.Expect(os.Readlink("/proc/" + strconv.Itoa(spare) + "/fd/2")).To(Equal(filepath.Join(b.dir("held"), shim.DiagnosticsFile)))
		b.Expect(b.awaitSpare()).NotTo(Equal(spare))
		b.Expect(b.shimDir("held")).NotTo(BeADirectory(), "a warm shim has no cgroup of the UID")

		b.killShim("held")
		b.end("held")
		b.Expect(lives(held)).To(BeFalse())
	})
}

// startWithout checks a start without a warm shim.
func (b *bench) startWithout(uid types.UID) {
	b.Helper()
	b.start(uid, "sleep")
	b.await(uid, facts.Running)
	b.Expect(words(b.identity(uid).Shim.PID)).To(Equal([]string{"berth-shim", "tests/default/" + string(uid)}))
}

// A killed warm shim does not prevent a start, and a descriptor with the same number is not mistaken for its pidfd.
func TestSpareThatIsGone(t *testing.T) {
	forTiers(t, func(b *bench) {
		if b.cgroup == "" {
			b.startWithout("other")
			return
		}
		pid := b.awaitSpare()
		b.spares.mu.Lock()
		spare := *b.spares.ready
		b.spares.mu.Unlock()
		b.watcher.kill(spare.pidfd, pid)
		b.Eventually(func() error { _, err := os.Stat("/proc/" + strconv.Itoa(pid)); return err }).WithTimeout(conformance.Timeout).
			Should(MatchError(os.ErrNotExist), "the warm shim is reaped")
		b.Expect(b.watcher.assign(spare.pidfd, pid, "other")).To(BeFalse())
		b.startWithout("other")
		b.Expect(b.identity("other").Shim.PID).NotTo(Equal(pid))
		b.Expect(b.shimDir("other")).To(BeADirectory())
	})
}
