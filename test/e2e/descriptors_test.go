// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("file descriptors", func() {
	It("are not passed on from the caller of berth to other programs", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		s := instance("descriptors", "/bin/sh", "-c", "ls -l /proc/self/fd; exec sleep infinity").create(ctx).waitUntilReady(ctx)
		Eventually(func() string { return suiteBerth.run(ctx, "logs", s.path()) }).Should(
			And(MatchRegexp(`(?m) 2 -> `), Not(ContainSubstring(suiteBerth.inherited))))

		Expect(holders(suiteBerth.inherited)).To(ConsistOf(suiteBerth.cmd.Process.Pid), "no shim, control plane or program has the file")
	})
})

// holders returns the PIDs of the processes of suiteBerth that have a file open.
func holders(path string) (pids []int) {
	GinkgoHelper()
	processes := processesWithVariable(suiteMark, suiteBerth.mark)
	Expect(len(processes)).To(BeNumerically(">", 2))
	for _, process := range processes {
		name, _, _ := strings.Cut(process, " ")
		pid, err := strconv.Atoi(name)
		Expect(err).NotTo(HaveOccurred())
		open, err := filepath.Glob(filepath.Join("/proc", name, "fd", "*"))
		Expect(err).NotTo(HaveOccurred())
		for _, link := range open {
			if target, err := os.Readlink(link); err == nil && target == path {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}
