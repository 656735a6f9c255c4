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
func (f *fixture) awaitSpare() (pid int) {
	f.Helper()
	f.Eventually(func() int {
		f.spares.mu.Lock()
		defer f.spares.mu.Unlock()
		if f.spares.ready != nil {
			pid = f.spares.ready.pid
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
func TestSpare_BecomesShimOfNextStart(t *testing.T) {
	t.Setenv("KUBECONFIG", "/of/the/manager")
	forEachTier(t, func(f *fixture) {
		if f.cgroup == "" {
			f.startWithoutSpare("held")
			f.Expect(f.spares.take()).To(BeNil())
			return
		}
		spare := f.awaitSpare()
		f.Expect(commandLineOf(spare)).To(Equal([]string{shim.SpareName}))
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(spare) + "/environ")
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(string(environ)).NotTo(ContainSubstring("KUBECONFIG"), "the warm shim does not inherit the environment of the manager")
		f.start("held", "sleep")
		f.await("held", facts.Running)
		held := f.identity("held").Shim
		f.Expect(held.PID).To(Equal(spare))
		f.Expect(commandLineOf(spare)).To(Equal([]string{"berth-shim", "tests/default/held"}))
		f.Expect(os.Readlink("/proc/" + strconv.Itoa(spare) + "/cwd")).To(Equal(f.dir("held")))
		f.Expect(os.Readlink("/proc/" + strconv.Itoa(spare) + "/fd/2")).To(Equal(filepath.Join(f.dir("held"), shim.DiagnosticsFile)))
		f.Expect(f.awaitSpare()).NotTo(Equal(spare))
		f.Expect(f.shimDir("held")).NotTo(BeADirectory(), "a warm shim has no cgroup of the UID")

		f.killShim("held")
		f.killAndWait("held")
		f.Expect(isAlive(held)).To(BeFalse())
	})
}

// startWithoutSpare checks a start without a warm shim.
func (f *fixture) startWithoutSpare(uid types.UID) {
	f.Helper()
	f.start(uid, "sleep")
	f.await(uid, facts.Running)
	f.Expect(commandLineOf(f.identity(uid).Shim.PID)).To(Equal([]string{"berth-shim", "tests/default/" + string(uid)}))
}

// A killed warm shim does not prevent a start, and does not become the shim of an object.
func TestSpare_KillDoesNotPreventStart(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		if f.cgroup == "" {
			f.startWithoutSpare("other")
			return
		}
		pid := f.awaitSpare()
		f.spares.mu.Lock()
		spare := f.spares.ready.watched
		f.spares.mu.Unlock()
		f.watcher.kill(spare)
		f.Eventually(func() error { _, err := os.Stat("/proc/" + strconv.Itoa(pid)); return err }).WithTimeout(conformance.Timeout).
			Should(MatchError(os.ErrNotExist), "the warm shim is reaped")
		f.Expect(f.watcher.assign(spare, "other")).To(BeFalse())
		f.startWithoutSpare("other")
		f.Expect(f.identity("other").Shim.PID).NotTo(Equal(pid))
		f.Expect(f.shimDir("other")).To(BeADirectory())
	})
}
