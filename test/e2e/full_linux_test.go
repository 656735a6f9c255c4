// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = Describe("berth status", func() {
	It("names the state directory that is full", NodeTimeout(startTimeout), func(ctx context.Context) {
		s := devServer("full", "", "gohello")
		s.GetProcessSpec().State = v1alpha1.StateStopped
		s.create(ctx)
		s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
		dir := filepath.Join(suiteBerth.state, "host", "run", string(s.GetUID()))
		cause, free := makeUnwritable(dir)
		DeferCleanup(func(ctx context.Context) {
			suiteBerth.run(ctx, "stop", s.path())
			s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
			free(true)
		})
		suiteBerth.run(ctx, "start", s.path())
		Eventually(func() string { return suiteBerth.run(ctx, "status", s.path()) }).WithTimeout(15 * time.Second).
			Should(And(ContainSubstring(v1alpha1.ReasonStartFailed), ContainSubstring(cause)))
		free(false)
		s.waitUntilReady(ctx)
	})
})

// makeUnwritable creates a directory that cannot be written to: for root it mounts a full file system there, for any other user it removes the user's write
// permission. free makes the directory writable again. For root, free(false) deletes a file to free space, and free(true) unmounts the file system.
func makeUnwritable(dir string) (cause string, free func(end bool)) {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o700)).To(Succeed())
	if os.Geteuid() != 0 {
		Expect(os.Chmod(dir, 0o500)).To(Succeed())
		return "permission denied", func(bool) { Expect(os.Chmod(dir, 0o700)).To(Succeed()) }
	}
	Expect(syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700")).To(Succeed())
	ballast := filepath.Join(dir, "ballast")
	Expect(os.WriteFile(ballast, make([]byte, 128<<10), 0o600)).To(MatchError(syscall.ENOSPC))
	return "is full; free some space there", func(end bool) {
		if !end {
			Expect(os.Remove(ballast)).To(Succeed())
			return
		}
		Expect(syscall.Unmount(dir, syscall.MNT_DETACH)).To(Succeed())
	}
}
