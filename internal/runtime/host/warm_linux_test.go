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

// awaitWarmShim waits until a warm shim is ready, and returns its PID.
func (f *fixture) awaitWarmShim() (pid int) {
	f.Helper()
	f.Eventually(func() int {
		f.warm.mu.Lock()
		defer f.warm.mu.Unlock()
		if f.warm.ready != nil {
			pid = f.warm.ready.pid
		}
		return pid
	}).WithTimeout(conformance.Timeout).WithPolling(time.Millisecond).ShouldNot(BeZero())
	return pid
}

func commandLineOf(pid int) []string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.Split(strings.TrimRight(string(data), "\x00 "), "\x00")
}

// A warm shim supervises its process like any other shim, and the next warm shim is ready soon. Without cgroups there is no warm shim, and each start forks its
// own shim.
func TestWarmShim_BecomesShimOfNextStart(t *testing.T) {
	t.Setenv("KUBECONFIG", "/of/the/manager")
	forEachTier(t, func(f *fixture) {
		if f.cgroup == "" {
			f.startWithoutWarmShim("held")
			f.Expect(f.warm.take()).To(BeNil())
			return
		}
		warm := f.awaitWarmShim()
		f.Expect(commandLineOf(warm)).To(Equal([]string{shim.WarmShimName}))
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(warm) + "/environ")
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(string(environ)).NotTo(ContainSubstring("KUBECONFIG"), "the warm shim does not inherit the environment of the manager")
		f.start("held", "sleep")
		f.await("held", facts.Running)
		held := f.identity("held").Shim
		f.Expect(held.PID).To(Equal(warm))
		f.Expect(commandLineOf(warm)).To(Equal([]string{"berth-shim", "tests/default/held"}))
		f.Expect(os.Readlink("/proc/" + strconv.Itoa(warm) + "/cwd")).To(Equal(f.dir("held")))
		f.Expect(os.Readlink("/proc/" + strconv.Itoa(warm) + "/fd/2")).To(Equal(filepath.Join(f.dir("held"), shim.DiagnosticsFile)))
		f.Expect(f.awaitWarmShim()).NotTo(Equal(warm))
		f.Expect(f.shimDir("held")).NotTo(BeADirectory(), "a warm shim has no cgroup of the UID")

		f.killShim("held")
		f.killAndWait("held")
		f.Expect(isAlive(held)).To(BeFalse())
	})
}

// startWithoutWarmShim checks a start without a warm shim.
func (f *fixture) startWithoutWarmShim(uid types.UID) {
	f.Helper()
	f.start(uid, "sleep")
	f.await(uid, facts.Running)
	f.Expect(commandLineOf(f.identity(uid).Shim.PID)).To(Equal([]string{"berth-shim", "tests/default/" + string(uid)}))
}

// A killed warm shim does not prevent a start, and does not become the shim of an object.
func TestWarmShim_KillDoesNotPreventStart(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		if f.cgroup == "" {
			f.startWithoutWarmShim("other")
			return
		}
		pid := f.awaitWarmShim()
		f.warm.mu.Lock()
		warm := f.warm.ready.watched
		f.warm.mu.Unlock()
		f.watcher.kill(warm)
		f.Eventually(func() error { _, err := os.Stat("/proc/" + strconv.Itoa(pid)); return err }).WithTimeout(conformance.Timeout).
			Should(MatchError(os.ErrNotExist), "the warm shim is reaped")
		f.Expect(f.watcher.assign(warm, "other")).To(BeFalse())
		f.startWithoutWarmShim("other")
		f.Expect(f.identity("other").Shim.PID).NotTo(Equal(pid))
		f.Expect(f.shimDir("other")).To(BeADirectory())
	})
}
